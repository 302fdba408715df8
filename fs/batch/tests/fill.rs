//! Regions that are written and regions that are filled through a mapping hold the same.
#![allow(clippy::unwrap_used)]

use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use batchfs_batch::{Dataset, Engine, Face, Item, Key, NamedStream, Options, View};
use batchfs_region::{Arena, Config};
use batchfs_sampler::Spec;
use batchfs_store::{Codec, DType, OpenOptions, Schema, Store, StoreWriter, WriteOptions};

const RECORDS: u64 = 40;

/// Bytes without a pattern that a shift could hide.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let step = |x: &mut u64| {
        *x ^= *x << 13;
        *x ^= *x >> 7;
        *x ^= *x << 17;
        (*x >> 32) as u8
    };
    (0..len).map(|_| step(&mut x)).collect()
}

fn dense(dir: &Path, name: &str, item: u64, codec: Codec) -> NamedStream {
    let options = WriteOptions { codec, ..WriteOptions::default() };
    let mut writer =
        StoreWriter::create(dir.join(name), Schema::dense(DType::UInt8, [item]), options).unwrap();
    for i in 0..RECORDS {
        writer.append(&noise(item as usize, i)).unwrap();
    }
    writer.finish().unwrap();
    open(dir, name)
}

fn ragged(dir: &Path, name: &str, lengths: impl Fn(u64) -> u64) -> NamedStream {
    let schema = Schema::ragged(DType::UInt8, 1);
    let mut writer = StoreWriter::create(dir.join(name), schema, WriteOptions::default()).unwrap();
    for i in 0..RECORDS {
        writer.append_ragged(&noise(lengths(i) as usize, 77 + i), &[lengths(i)]).unwrap();
    }
    writer.finish().unwrap();
    open(dir, name)
}

fn open(dir: &Path, name: &str) -> NamedStream {
    let stream = Arc::new(Store::open(dir.join(name), OpenOptions::default()).unwrap());
    NamedStream { name: name.to_owned(), stream }
}

fn spec(text: &str) -> Spec {
    text.parse().unwrap()
}

fn engine(threads: usize) -> Engine {
    let arena = Arena::new(&Config { limit: 1 << 30, backing: None }).unwrap();
    Engine::new(arena, &Options { threads }).unwrap()
}

#[test]
fn both_ways_to_fill_a_region_give_the_same_bytes() {
    let tmp = tempfile::tempdir().unwrap();
    let dir = tmp.path();
    let streams = vec![
        dense(dir, "small", 12, Codec::Raw),
        // Written from the mapping itself once the records were seen; no part of it is aligned.
        dense(dir, "large", 150_001, Codec::Raw),
        // Larger than the buffer.
        dense(dir, "huge", 1_500_007, Codec::Raw),
        dense(dir, "packed", 30_011, Codec::Zstd),
        ragged(dir, "ragged", |i| i * 9001 % 300_000),
        ragged(dir, "giants", |i| if i % 3 == 0 { 1_300_003 } else { i % 2 }),
    ];
    let data = Arc::new(Dataset::new(dir, streams).unwrap());
    let view = Arc::new(View::new(0, "", data.clone(), spec("batch=32,seed=5")).unwrap());
    // A single thread writes regions of any size.
    let (mapped, written) = (engine(2), engine(1));
    written.show_regions();
    let streams = 0..data.streams().len() as u16;
    let faces = [Face::Bare, Face::Npy, Face::Safetensors];
    let mut keys: Vec<Key> = streams
        .flat_map(|s| faces.map(|face| Key { view: 0, item: Item::Batch(s), face, number: 0 }))
        .filter(|key| view.layout(*key).is_ok())
        .collect();
    keys.push(Key { view: 0, item: Item::All, face: Face::Safetensors, number: 0 });
    keys.push(Key { view: 0, item: Item::Index, face: Face::Npy, number: 0 });
    keys.push(Key { view: 0, item: Item::Record(4), face: Face::Npy, number: 39 });
    assert_eq!(keys.len(), 6 * 3 - 2 + 3);
    // Steps far apart, so that none was filled ahead; records of later ones were seen before.
    for step in [3, 1000, 2000] {
        for key in &keys {
            let number = if matches!(key.item, Item::Record(_)) { key.number } else { step };
            let key = Key { number, ..*key };
            let want = mapped.wait(key, &view).unwrap();
            let got = written.wait(key, &view).unwrap();
            let want = want.region().bytes().unwrap();
            let region = got.region();
            // As readers outside get it.
            let file = std::fs::File::from(region.expose().as_fd().try_clone_to_owned().unwrap());
            assert_eq!(file.metadata().unwrap().len(), want.len() as u64);
            let mut bytes = vec![0; want.len()];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes == want, "{key:?} differs");
        }
    }
}

#[test]
fn a_source_that_was_cut_short_is_an_error_in_both_ways() {
    let tmp = tempfile::tempdir().unwrap();
    let stream = dense(tmp.path(), "x", 150_001, Codec::Raw);
    let data = Arc::new(Dataset::new(tmp.path(), vec![stream]).unwrap());
    let view = Arc::new(View::new(0, "", data, spec("batch=40,mode=sequential")).unwrap());
    let engine = engine(1);
    engine.show_regions();
    let key = |number| Key { view: 0, item: Item::Batch(0), face: Face::Bare, number };
    let whole = engine.wait(key(0), &view).unwrap();
    for shard in 0..4 {
        let path = tmp.path().join(format!("x/data-00{shard}.npy"));
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(5000).unwrap();
    }
    let said = engine.wait(key(100), &view).err().unwrap().to_string();
    assert!(said.contains("x/batch/100") && said.contains("record"), "{said}");
    assert_eq!(whole.region().bytes().unwrap()[..150_001], noise(150_001, 0));
}
