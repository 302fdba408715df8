//! How fast this machine writes, verifies and gathers. Run it as
//! `cargo test --release -p batchfs-store --test speed -- --ignored --nocapture`.
#![allow(clippy::unwrap_used)]

use std::hint::black_box;
use std::time::Instant;

use batchfs_store::{
    Codec, DType, OpenOptions, Schema, Store, StoreWriter, Stream, Verify, WriteOptions, train_dict,
};
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

/// The `i`-th of some numbers below 2^24 that look random.
fn mix(i: u64) -> u64 {
    let mut x = i.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x ^ x >> 31) >> 40
}

/// `u / 2^24` of `n`.
fn part(n: u64, u: u64) -> u64 {
    (n * u) >> 24
}

/// Token ids that are mostly small, as those of text are.
fn token(i: u64) -> i32 {
    let u = mix(i);
    part(part(part(50_257, u), u), u) as i32
}

/// Lengths of 16 to 512, half of them below 140.
fn length(i: u64) -> u64 {
    let u = mix(i + (1 << 40));
    16 + part(part(496, u), u)
}

fn pixel(i: u64) -> u8 {
    ((i >> 5) as u8 & 0x7f) + (mix(i) & 7) as u8
}

/// Records of a workload: `values`, and shapes if they are ragged.
struct Data {
    schema: Schema,
    values: Vec<u8>,
    shapes: Vec<u64>,
}

impl Data {
    fn named(name: &str) -> Self {
        let tokens = |n: u64| (0..n).flat_map(|i| token(i).to_le_bytes()).collect();
        match name {
            "image" => Self {
                schema: Schema::dense(DType::UInt8, [3, 224, 224]),
                values: (0..2_500 * 3 * 224 * 224).map(pixel).collect(),
                shapes: Vec::new(),
            },
            "token" => Self {
                schema: Schema::dense(DType::Int32, [512]),
                values: tokens(200_000 * 512),
                shapes: Vec::new(),
            },
            _ => {
                let shapes: Vec<u64> = (0..200_000).map(length).collect();
                let schema = Schema::ragged(DType::Int32, 1);
                Self { schema, values: tokens(shapes.iter().sum()), shapes }
            }
        }
    }

    fn write(&self, dest: &std::path::Path, options: WriteOptions) -> StoreWriter {
        let mut writer = StoreWriter::create(dest, self.schema.clone(), options).unwrap();
        match self.shapes.is_empty() {
            true => writer.append(&self.values).unwrap(),
            false => writer.append_ragged(&self.values, &self.shapes).unwrap(),
        }
        writer
    }
}

/// Batches to take the median of.
fn rounds(data: &Data) -> usize {
    if data.schema.item_bytes().is_some_and(|n| n > 64 << 10) { 20 } else { 600 }
}

fn packed(name: &str) {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let data = Data::named(name);
    let bytes = data.values.len();
    let gbs = |bytes: usize, seconds: f64| bytes as f64 / seconds / 1e9;
    let mut dictionary = None;
    for codec in Codec::ALL {
        let dest = dir.path().join(codec.name());
        let given = dictionary.clone().filter(|_| *codec == Codec::ZstdDict);
        let options = WriteOptions { codec: *codec, dictionary: given, ..WriteOptions::default() };
        let t = Instant::now();
        let writer = data.write(&dest, options);
        let appended = t.elapsed().as_secs_f64();
        writer.finish().unwrap();
        let finished = t.elapsed().as_secs_f64();
        let store = Store::open(&dest, OpenOptions::default()).unwrap();
        let ratio = store.payload_bytes() as f64 / store.stored_bytes() as f64;
        let codec = codec.name();
        println!(
            "{name} {codec}: {ratio:.2}x smaller; append {:.2} GB/s, with the flush {:.2} GB/s",
            gbs(bytes, appended),
            gbs(bytes, finished)
        );
        if dictionary.is_none() {
            let t = Instant::now();
            let made = train_dict(&store, 110 << 10).unwrap();
            println!("{name}: {} in {:?}; {:?}", made.bytes.len(), t.elapsed(), made.warning());
            dictionary = Some(made.bytes);
        }

        let t = Instant::now();
        assert!(batchfs_store::verify(&dest, &|_| ()).unwrap().is_whole());
        println!("{name} {codec}: verify {:.2} GB/s", gbs(bytes, t.elapsed().as_secs_f64()));

        let size = data.schema.dtype.size();
        let mut all = huge(bytes);
        let ids_all: Vec<u64> = (0..store.len()).collect();
        let t = Instant::now();
        store.gather(&ids_all, &mut all[..bytes]).unwrap();
        let first = gbs(bytes, t.elapsed().as_secs_f64());
        assert!(all[..bytes] == data.values);
        let t = Instant::now();
        store.gather(&ids_all, &mut all[..bytes]).unwrap();
        let second = gbs(bytes, t.elapsed().as_secs_f64());
        println!("{name} {codec}: whole, first {first:.2}, again {second:.2} GB/s");

        let mut seed = 42;
        let mut elements = vec![0; BATCH];
        let mut copied = 0;
        for threads in [1, 2] {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            let mut rates = Vec::new();
            for _ in 0..rounds(&data) {
                let ids = ids(&mut seed, store.len());
                let rate = pool.install(|| {
                    let t = Instant::now();
                    store.elements(&ids, &mut elements).unwrap();
                    let len = |n: &[u64]| n.iter().sum::<u64>() as usize * size;
                    let half = BATCH / threads;
                    let (a, b) = all[..len(&elements)].split_at_mut(len(&elements[..half]));
                    copied = a.len() + b.len();
                    if threads == 1 {
                        store.gather(&ids, a).unwrap();
                    } else {
                        rayon::join(
                            || store.gather(&ids[..half], a).unwrap(),
                            || store.gather(&ids[half..], b).unwrap(),
                        );
                    }
                    gbs(copied, t.elapsed().as_secs_f64())
                });
                rates.push(rate);
                black_box(&all);
            }
            println!("{name} {codec}: {threads} thread(s), warm {:.2} GB/s", median(rates));
        }
        println!("{name} {codec}: bare loop, 1 thread, {:.2} GB/s", bare(&data, &store, &mut all));
    }
}

/// The limit: the same by a loop of memcpy, or of libzstd over frames in memory.
fn bare(data: &Data, store: &Store, all: &mut [u8]) -> f64 {
    let ids_all: Vec<u64> = (0..store.len()).collect();
    let mut lens = vec![0; ids_all.len()];
    store.elements(&ids_all, &mut lens).unwrap();
    let size = data.schema.dtype.size();
    let mut ends = vec![0];
    lens.iter().for_each(|n| ends.push(ends[ends.len() - 1] + *n as usize * size));
    let dictionary = std::fs::read(store.origin().join("dictionary.bin")).ok();
    let prepared = dictionary.as_deref().map(zstd::zstd_safe::DDict::create);
    let mut context = zstd::zstd_safe::DCtx::create();
    let frames: Vec<Vec<u8>> = match store.level() {
        None => Vec::new(),
        Some(level) => {
            let dictionary = dictionary.unwrap_or_default();
            let mut c = zstd::bulk::Compressor::with_dictionary(level, &dictionary).unwrap();
            c.include_contentsize(false).unwrap();
            c.include_dictid(false).unwrap();
            let record = |i: usize| &data.values[ends[i]..ends[i + 1]];
            (0..lens.len().min(50_000)).map(|i| c.compress(record(i)).unwrap()).collect()
        }
    };
    let n = if frames.is_empty() { lens.len() } else { frames.len() };
    let (mut seed, mut rates) = (7, Vec::new());
    for _ in 0..rounds(data) {
        let ids = ids(&mut seed, n as u64);
        let (mut rest, mut copied) = (&mut all[..], 0);
        let t = Instant::now();
        for id in ids {
            let from = ends[id as usize]..ends[id as usize + 1];
            let (now, later) = rest.split_at_mut(from.len());
            copied += now.len();
            rest = later;
            match (frames.get(id as usize), &prepared) {
                (None, _) => now.copy_from_slice(&data.values[from]),
                (Some(frame), None) => assert!(context.decompress(now, frame).is_ok()),
                (Some(frame), Some(d)) => {
                    assert!(context.decompress_using_ddict(now, frame, d).is_ok());
                }
            }
        }
        rates.push(copied as f64 / t.elapsed().as_secs_f64() / 1e9);
        black_box(&all);
    }
    median(rates)
}

#[test]
#[ignore = "measures; run with --release --ignored --nocapture"]
fn speed_of_what_differs_in_size() {
    for name in ["ragged", "token", "image"] {
        if std::env::var("BATCHFS_SPEED_OF").is_ok_and(|only| only != name) {
            continue;
        }
        packed(name);
    }
}

#[test]
#[ignore = "measures; run with --release --ignored --nocapture"]
fn speed() {
    workload("image", DType::UInt8, &[3, 224, 224], 2_500);
    workload("token", DType::Int32, &[512], 200_000);
    workload("label", DType::Int64, &[], 1_000_000);
}
