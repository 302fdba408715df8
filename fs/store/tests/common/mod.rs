//! What the tests of the store share.
#![allow(clippy::unwrap_used, dead_code)]

use std::path::Path;
use std::time::{Duration, SystemTime};

use batchfs_store::{
    OpenOptions, Result, Schema, Store, StoreWriter, Stream, Verify, WriteOptions,
};

/// 2024-02-29T12:00:00Z
pub fn leap_day() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_709_208_000)
}

pub fn options(shards: u32, stripe: u64) -> WriteOptions {
    WriteOptions {
        shards,
        stripe: Some(stripe),
        created: Some(leap_day()),
        writer: "a test".into(),
        ..WriteOptions::default()
    }
}

/// Bytes that look like nothing in particular and are the same every time.
pub fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(2).wrapping_add(1);
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 32) as u8
        })
        .collect()
}

pub fn write(dest: &Path, schema: Schema, options: WriteOptions, data: &[u8]) {
    let mut writer = StoreWriter::create(dest, schema, options).unwrap();
    writer.append(data).unwrap();
    writer.finish().unwrap();
}

pub fn gather(store: &Store, ids: &[u64]) -> Result<Vec<u8>> {
    let mut out = vec![0xaa; ids.len() * store.schema().item_bytes().unwrap() as usize];
    store.gather(ids, &mut out)?;
    Ok(out)
}

/// Opens a store and reads it all.
pub fn read(dest: &Path, verify: Verify) -> Result<Vec<u8>> {
    let store = Store::open(dest, OpenOptions { verify })?;
    gather(&store, &(0..store.len()).collect::<Vec<_>>())
}
