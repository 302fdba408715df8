//! What the tests of the store share.
#![allow(clippy::unwrap_used, dead_code)]

use std::path::Path;
use std::time::{Duration, SystemTime};

use batchfs_store::{
    Codec, DType, OpenOptions, Result, Schema, Store, StoreWriter, Stream, Verify, WriteOptions,
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
    gather_any(&store, &(0..store.len()).collect::<Vec<_>>())
}

/// Values and shapes of `records` ragged records of up to `most` elements an axis; some are empty.
pub fn ragged(records: usize, ndim: usize, most: u64, size: usize, seed: u64) -> Ragged {
    let dims = noise(records * ndim, seed);
    let shapes: Vec<u64> = dims.iter().map(|d| u64::from(*d) * (most + 1) / 256).collect();
    let mut ends = vec![0];
    for shape in shapes.chunks_exact(ndim) {
        ends.push(ends[ends.len() - 1] + shape.iter().product::<u64>() as usize * size);
    }
    // Half of it noise, half of it not, so that some records shrink and some do not.
    let mut values = noise(ends[records], seed + 1);
    values.chunks_mut(512).step_by(2).for_each(|part| part.iter_mut().for_each(|b| *b &= 3));
    Ragged { ndim, shapes, values, ends }
}

/// Ragged records, and where each ends in `values`.
pub struct Ragged {
    pub ndim: usize,
    pub shapes: Vec<u64>,
    pub values: Vec<u8>,
    pub ends: Vec<usize>,
}

impl Ragged {
    pub fn len(&self) -> usize {
        self.ends.len() - 1
    }

    pub fn record(&self, id: u64) -> &[u8] {
        &self.values[self.ends[id as usize]..self.ends[id as usize + 1]]
    }

    pub fn records(&self, ids: &[u64]) -> Vec<u8> {
        ids.iter().flat_map(|id| self.record(*id)).copied().collect()
    }

    /// Appends in parts of `cut` records.
    pub fn append(&self, writer: &mut StoreWriter, cut: usize) {
        for first in (0..self.len()).step_by(cut.max(1)) {
            let end = self.len().min(first + cut.max(1));
            let values = &self.values[self.ends[first]..self.ends[end]];
            writer.append_ragged(values, &self.shapes[first * self.ndim..end * self.ndim]).unwrap();
        }
    }

    pub fn write(&self, dest: &Path, dtype: DType, options: WriteOptions) {
        let schema = Schema::ragged(dtype, self.ndim as u32);
        let mut writer = StoreWriter::create(dest, schema, options).unwrap();
        self.append(&mut writer, usize::MAX);
        writer.finish().unwrap();
    }
}

/// Gathers records of any kind, asking for their sizes first.
pub fn gather_any(store: &Store, ids: &[u64]) -> Result<Vec<u8>> {
    let mut elements = vec![0; ids.len()];
    store.elements(ids, &mut elements)?;
    let size = store.schema().dtype.size();
    let mut out = vec![0xaa; elements.iter().sum::<u64>() as usize * size];
    store.gather(ids, &mut out)?;
    Ok(out)
}

/// A dictionary made of records, small and always the same.
pub fn dictionary(samples: &[&[u8]]) -> Vec<u8> {
    zstd::dict::from_samples(samples, 1 << 10).unwrap()
}

pub fn with_codec(codec: Codec, dictionary: &[u8], options: WriteOptions) -> WriteOptions {
    let dictionary = (codec == Codec::ZstdDict).then(|| dictionary.to_vec());
    WriteOptions { codec, dictionary, ..options }
}
