//! How fast this machine writes, verifies and gathers. Run it as
//! `cargo test --release -p batchfs-store --test speed -- --ignored --nocapture`.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use batchfs_store::{DType, OpenOptions, Schema, Store, StoreWriter, Stream, Verify, WriteOptions};
use memmap2::{Advice, MmapMut, MmapOptions};

const BATCH: usize = 256;

fn huge(len: usize) -> MmapMut {
    let mut buffer = MmapOptions::new().len(len.next_multiple_of(2 << 20)).map_anon().unwrap();
    let _ = buffer.advise(Advice::HugePage);
    buffer.fill(1);
    buffer
}

fn ids(seed: &mut u64, n: u64) -> Vec<u64> {
    let mut next = || {
        *seed ^= *seed << 13;
        *seed ^= *seed >> 7;
        *seed ^= *seed << 17;
        *seed % n
    };
    (0..BATCH).map(|_| next()).collect()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn workload(name: &str, dtype: DType, shape: &[u64], records: u64) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dest = dir.path().join(name);
    let schema = Schema::dense(dtype, shape);
    let item = schema.item_bytes().unwrap() as usize;
    let bytes = records as usize * item;
    let data: Vec<u8> =
        (0..bytes as u64).map(|i| (i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u8).collect();
    let gbs = |bytes: usize, seconds: f64| bytes as f64 / seconds / 1e9;

    let t = Instant::now();
    let mut writer = StoreWriter::create(&dest, schema, WriteOptions::default()).unwrap();
    for batch in data.chunks(BATCH * item) {
        writer.append(batch).unwrap();
    }
    let appended = t.elapsed().as_secs_f64();
    writer.finish().unwrap();
    let finished = t.elapsed().as_secs_f64();
    println!(
        "{name}: append {:.2} GB/s, with the flush to disk {:.2} GB/s",
        gbs(bytes, appended),
        gbs(bytes, finished)
    );

    let t = Instant::now();
    assert!(batchfs_store::verify(&dest, &|_| ()).unwrap().is_whole());
    println!("{name}: verify {:.2} GB/s", gbs(bytes, t.elapsed().as_secs_f64()));

    let mut out = huge(BATCH * item);
    let out = &mut out[..BATCH * item];
    let mut seed = 42;
    for verify in [Verify::First, Verify::Always, Verify::Never] {
        let store = Store::open(&dest, OpenOptions::verify(verify)).unwrap();
        let all: Vec<u64> = (0..records).collect();
        let t = Instant::now();
        for some in all.chunks(BATCH) {
            store.gather(some, &mut out[..some.len() * item]).unwrap();
        }
        let first = gbs(bytes, t.elapsed().as_secs_f64());
        for threads in [1, 2] {
            let part = BATCH / threads;
            let mut taken = Vec::new();
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            for _ in 0..400 {
                let ids = ids(&mut seed, records);
                taken.push(pool.install(|| {
                    let t = Instant::now();
                    if threads == 1 {
                        store.gather(&ids, out).unwrap();
                    } else {
                        let (a, b) = out.split_at_mut(part * item);
                        rayon::join(
                            || store.gather(&ids[..part], a).unwrap(),
                            || store.gather(&ids[part..], b).unwrap(),
                        );
                    }
                    t.elapsed().as_secs_f64()
                }));
                black_box(&out);
            }
            println!(
                "{name}: {verify:?}, {threads} thread(s): first pass {first:.2}, warm {:.2} GB/s",
                gbs(BATCH * item, median(taken))
            );
        }
    }

    // The limit: the same bytes by a bare loop of memcpy.
    for threads in [1, 2] {
        let part = BATCH / threads;
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let mut taken = Vec::new();
        for _ in 0..200 {
            let ids = ids(&mut seed, records);
            let copy = |ids: &[u64], out: &mut [u8]| {
                for (id, out) in ids.iter().zip(out.chunks_exact_mut(item)) {
                    out.copy_from_slice(&data[*id as usize * item..][..item]);
                }
            };
            taken.push(pool.install(|| {
                let t = Instant::now();
                if threads == 1 {
                    copy(&ids, out);
                } else {
                    let (a, b) = out.split_at_mut(part * item);
                    rayon::join(|| copy(&ids[..part], a), || copy(&ids[part..], b));
                }
                t.elapsed().as_secs_f64()
            }));
            black_box(&out);
        }
        println!(
            "{name}: bare memcpy from memory, {threads} thread(s): {:.2} GB/s",
            gbs(BATCH * item, median(taken))
        );
    }
}

#[test]
#[ignore = "measures; run with --release --ignored --nocapture"]
fn speed() {
    workload("image", DType::UInt8, &[3, 224, 224], 2_500);
    workload("token", DType::Int32, &[512], 200_000);
    workload("label", DType::Int64, &[], 1_000_000);
}
