//! How fast batches are gathered from each kind of source. Run it as
//! `cargo test --release -p batchfs-source --test speed -- --ignored --nocapture`.
#![allow(clippy::unwrap_used)]
mod common;

use std::hint::black_box;
use std::time::Instant;

use batchfs_source::{NpyFile, RaggedNpy, Zrecord, convert_npy};
use batchfs_store::{Codec, DType, Stream};
use common::{Data, open_store};

const BATCH: usize = 256;

/// Nanoseconds of a batch of random records, gathered by one thread: the median.
fn gather(stream: &dyn Stream, rounds: usize) -> u64 {
    let mut state = 1u64;
    let mut times = Vec::new();
    let (mut out, mut elements) = (Vec::new(), vec![0; BATCH]);
    let mut shapes = vec![0; BATCH * stream.schema().ndim()];
    for _ in 0..rounds {
        let ids: Vec<u64> = (0..BATCH)
            .map(|_| {
                state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
                (state >> 33) % stream.len()
            })
            .collect();
        let began = Instant::now();
        stream.elements(&ids, &mut elements).unwrap();
        let bytes = elements.iter().sum::<u64>() as usize * stream.schema().dtype.size();
        if out.len() < bytes {
            out.resize(bytes, 0);
            continue;
        }
        stream.gather(&ids, &mut out[..bytes]).unwrap();
        if stream.schema().item_bytes().is_none() {
            stream.shapes(&ids, &mut shapes).unwrap();
        }
        black_box(&mut out);
        times.push(began.elapsed().as_nanos() as u64);
    }
    times.sort_unstable();
    times[times.len() / 2]
}

#[test]
#[ignore = "measures; run with --release --ignored --nocapture"]
fn speed() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = Data::dense(DType::UInt8, &[3, 224, 224], 1500);
    let token = Data::dense(DType::Int32, &[512], 100_000);
    let ragged =
        Data::ragged_of(DType::Int32, &|i| vec![16 + (i * i % 7919) as u64 % 230], 200_000);
    let boxes = Data::ragged_of(DType::UInt8, &|i| vec![3, 20 + i as u64 % 30, 64], 50_000);
    for (name, data, rounds) in [
        ("image", image, 40),
        ("token", token, 600),
        ("ragged", ragged, 600),
        ("boxes", boxes, 600),
    ] {
        let batch = data.values().len() / data.records.len() * BATCH;
        let told = |what: &str, ns: u64| {
            println!("{name:<8} {what:<18} {ns:>10} ns {:>6.2} GB/s", batch as f64 / ns as f64);
        };
        for codec in [Codec::Raw, Codec::Zstd] {
            let (store, container) = (dir.path().join("store"), dir.path().join("container"));
            data.write_store(&store, codec, 4);
            data.write_zrecord(&container, codec, 4);
            let began = Instant::now();
            let (store_stream, zrecord) = (open_store(&store), Zrecord::open(&container).unwrap());
            println!("{name:<8} opened in {:?}", began.elapsed());
            for _ in 0..3 {
                told(&format!("store {}", codec.name()), gather(&store_stream, rounds));
                told(&format!("zrecord {}", codec.name()), gather(&zrecord, rounds));
            }
            std::fs::remove_dir_all(&store).unwrap();
            std::fs::remove_dir_all(&container).unwrap();
        }
        if data.schema.item_bytes().is_none() {
            let folder = dir.path().join("npy");
            data.write_ragged_npy(&folder);
            told("npy", gather(&RaggedNpy::open(&folder, None).unwrap(), rounds));
            std::fs::remove_dir_all(&folder).unwrap();
            continue;
        }
        let file = dir.path().join("a.npy");
        data.write_npy(&file);
        told("npy", gather(&NpyFile::open(&file).unwrap(), rounds));
        for (what, fortran, big) in [("big-endian", false, true), ("fortran", true, false)] {
            common::write_other_order(&file, &data, fortran, big);
            let stream = convert_npy(&file, None).unwrap();
            let began = Instant::now();
            let mut buffer = Vec::new();
            for chunk in batchfs_store::chunks(&*stream, 64 << 20) {
                chunk.unwrap().read(&*stream, &mut buffer).unwrap();
            }
            let seconds = began.elapsed().as_secs_f64();
            let bytes = data.values().len() as f64;
            println!("{name:<8} {what:<18} all in order {:>9.2} GB/s", bytes / seconds / 1e9);
        }
    }
}
