//! Training gives a dictionary that can be used, or says in words why there is none.
#![allow(clippy::unwrap_used)]
mod common;

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::SystemTime;

use batchfs_store::{
    Codec, DType, Error, OpenOptions, Result, Schema, Store, Stream, Trained, Verify, WriteOptions,
    train_dict,
};
use common::{noise, options, read};

/// Records made as they are asked for.
struct Made<F> {
    schema: Schema,
    lens: Vec<u64>,
    make: F,
}

impl<F: Fn(u64) -> u8 + Send + Sync> Stream for Made<F> {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.lens.len() as u64
    }

    fn gather(&self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        let mut rest = out;
        for id in ids {
            let (now, later) = rest.split_at_mut(self.lens[*id as usize] as usize);
            assert!(now.len() <= 1 << 20, "a record of {} bytes was read", now.len());
            for (i, byte) in now.iter_mut().enumerate() {
                *byte = (self.make)(id * 4096 + i as u64);
            }
            rest = later;
        }
        assert!(rest.is_empty());
        Ok(())
    }

    fn elements(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        ids.iter().zip(out).for_each(|(id, out)| *out = self.lens[*id as usize]);
        Ok(())
    }

    fn shapes(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        self.elements(ids, out)
    }

    fn origin(&self) -> &Path {
        Path::new("/made")
    }

    fn modified(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }
}

fn made<F: Fn(u64) -> u8 + Send + Sync>(lens: impl Into<Vec<u64>>, make: F) -> Made<F> {
    Made { schema: Schema::ragged(DType::UInt8, 1), lens: lens.into(), make }
}

/// Words of a small vocabulary.
fn text(i: u64) -> u8 {
    let word = (i / 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
    (word.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> (i % 8 * 8)) as u8
}

fn random(i: u64) -> u8 {
    (i.wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_mul(i | 1) >> 51) as u8
}

/// The reason why there is no dictionary: ours, not the library's.
fn refused(stream: &dyn Stream, size: usize) -> String {
    let e = train_dict(stream, size).map(|t| t.bytes.len()).unwrap_err();
    let Error::Invalid { why, .. } = &e else { panic!("{e}") };
    assert!(!why.contains("Src size") && !why.contains("generic"), "{why}");
    why.clone()
}

/// A dictionary that can be used, or words; in no case anything else.
fn either(stream: &dyn Stream, size: usize) -> Option<Trained> {
    let trained = match train_dict(stream, size) {
        Ok(trained) => trained,
        Err(_) => {
            assert!(refused(stream, size).contains("plain zstd"));
            return None;
        }
    };
    assert!(trained.bytes.len() <= size);
    let dir = tempfile::tempdir().unwrap();
    let ids: Vec<u64> = (0..stream.len()).collect();
    let mut lens = vec![0; ids.len()];
    stream.elements(&ids, &mut lens).unwrap();
    let mut values = vec![0; lens.iter().sum::<u64>() as usize];
    stream.gather(&ids, &mut values).unwrap();
    let store = |codec, dictionary| {
        let options = WriteOptions { codec, dictionary, ..options(1, 64) };
        let dest = dir.path().join(format!("{codec:?}"));
        let mut writer =
            batchfs_store::StoreWriter::create(&dest, stream.schema().clone(), options).unwrap();
        writer.append_ragged(&values, &lens).unwrap();
        writer.finish().unwrap();
        assert!(read(&dest, Verify::First).unwrap() == values);
        Store::open(&dest, OpenOptions::default()).unwrap().stored_bytes() as i64
    };
    let with = store(Codec::ZstdDict, Some(trained.bytes.clone())) + trained.bytes.len() as i64;
    let without = store(Codec::Zstd, None);
    // What is told is an estimate, but of the right kind.
    if trained.warning().is_none() {
        assert!(with < without, "{with} {without} {}", trained.saves);
    }
    Some(trained)
}

#[test]
fn small_similar_records_get_a_dictionary_that_pays_and_is_always_the_same() {
    let stream = made(vec![200; 4000], text);
    let one = either(&stream, 4096).unwrap();
    assert_eq!(one.warning(), None);
    assert!(one.with * 2 < one.without, "{} {}", one.with, one.without);
    assert_eq!(train_dict(&stream, 4096).unwrap().bytes, one.bytes);
}

#[test]
fn too_few_records_are_said_so() {
    for n in [0, 1, 6] {
        let why = refused(&made(vec![256; n], text), 1024);
        assert!(why.contains(&format!("of {n} records all told, {n} have")), "{why}");
        assert!(why.contains("at least 7 are needed; use plain zstd"), "{why}");
    }
    either(&made(vec![256; 7], text), 1024);
    either(&made(vec![256; 8], text), 256);
}

#[test]
fn records_too_short_or_too_long_do_not_count() {
    let why = refused(&made(vec![1; 2000], text), 1024);
    assert!(why.contains("of 2000 records all told, 0 have 8 bytes to 1 MiB"), "{why}");
    let why = refused(&made(vec![2 << 30], text), 112_640);
    assert!(why.contains("of 1 records all told, 0 have"), "{why}");

    // Among others they are passed over: `Made` refuses to make the long one.
    let mut lens = vec![200; 3000];
    lens[1500] = 2 << 30;
    lens[10..20].fill(0);
    let trained = train_dict(&made(lens, text), 4096).unwrap();
    assert!(trained.with < trained.without);
    let why = refused(&made(vec![0; 50], text), 1024);
    assert!(why.contains("of 50 records all told, 0 have"), "{why}");
}

#[test]
fn equal_and_random_records_give_no_surprises() {
    either(&made(vec![100; 300], |i| (i % 4096 % 7) as u8), 1024);
    either(&made(vec![100; 300], |_| 0), 1024);
    either(&made(vec![8; 300], text), 1024);
    if let Some(trained) = either(&made(vec![300; 3000], random), 16 << 10) {
        assert!(trained.warning().unwrap().contains("use plain zstd"), "{trained:?}");
    }
}

#[test]
fn sizes_that_cannot_be_are_said_so() {
    let stream = made(vec![200; 4000], text);
    for size in [0, 255, 1 << 30] {
        let why = refused(&stream, size);
        assert!(why.contains(&format!("a dictionary of {size} bytes cannot be")), "{why}");
    }
    either(&stream, 256);
    either(&stream, 16 << 20);
}

#[test]
fn what_is_read_is_bounded_and_comes_from_all_over() {
    let bytes = AtomicU64::new(0);
    let (first, last) = (AtomicU64::new(u64::MAX), AtomicU64::new(0));
    let stream = made(vec![64 << 10; 100_000], |i| {
        bytes.fetch_add(1, Relaxed);
        first.fetch_min(i / 4096, Relaxed);
        last.fetch_max(i / 4096, Relaxed);
        text(i)
    });
    let trained = train_dict(&stream, 4096).unwrap();
    assert!(trained.samples >= 7);
    assert!(bytes.into_inner() <= 32 << 20);
    assert!(first.into_inner() < 25_000 && last.into_inner() > 75_000);
}

#[test]
fn a_store_is_a_stream_to_train_on() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let data: Vec<u8> = noise(64_000, 1).iter().map(|b| b & 7).collect();
    common::write(&dest, Schema::dense(DType::UInt8, [64]), options(2, 16), &data);
    let store = Store::open(&dest, OpenOptions::default()).unwrap();
    let trained = train_dict(&store, 512).unwrap();
    assert!(trained.bytes.len() <= 512 && trained.samples > 0);
}
