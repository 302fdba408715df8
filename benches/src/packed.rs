//! Batches of compressed and of ragged stores, in process.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::Context as _;
use batchfs_batch::gather_records;
use batchfs_store::{OpenOptions, Store, Stream};
use memmap2::MmapMut;
use rayon::{ThreadPool, ThreadPoolBuilder};

use crate::memory;

/// Records in a batch.
const BATCH: usize = 256;

/// A store with all that is needed to gather from it into a kept buffer.
pub struct Packed {
    store: Arc<Store>,
    ids: Vec<u64>,
    buffer: MmapMut,
    offsets: Vec<i32>,
    pool: ThreadPool,
}

impl Packed {
    pub fn open(store: &Path, ids: &Path) -> anyhow::Result<Self> {
        let store = Arc::new(Store::open(store, OpenOptions::default())?);
        let ids = memory::ids(ids)?;
        let largest = largest_batch(&store, &ids)?;
        let pool = ThreadPoolBuilder::new().build()?;
        let buffer = memory::huge_buffer(largest)?;
        let packed = Self { store, ids, buffer, offsets: vec![0; BATCH + 1], pool };
        // Every record once, so that no first read and no first checksum is measured.
        let all: Vec<u64> = (0..packed.store.len()).collect();
        for ids in all.chunks(BATCH) {
            let mut elements = vec![0; ids.len()];
            packed.store.elements(ids, &mut elements)?;
            let bytes = elements.iter().sum::<u64>() as usize * packed.store.schema().dtype.size();
            packed.store.gather(ids, &mut vec![0; bytes])?;
        }
        Ok(packed)
    }

    /// Nanoseconds of each of `count` batches, on one thread or on all.
    pub fn time(&mut self, all: bool, from: usize, count: usize) -> anyhow::Result<Vec<u64>> {
        (from..from + count).map(|number| Ok(self.once(all, number)?.0)).collect()
    }

    /// Gathers batch `number` and writes its values to `path`.
    pub fn dump(&mut self, all: bool, number: usize, path: &Path) -> anyhow::Result<()> {
        self.buffer.fill(0xaa);
        let (_, bytes) = self.once(all, number)?;
        Ok(std::fs::write(path, &self.buffer[..bytes])?)
    }

    /// The whole of it: the lengths, where each record starts, and the values.
    fn once(&mut self, all: bool, number: usize) -> anyhow::Result<(u64, usize)> {
        let batches = (self.ids.len() / BATCH).max(1);
        let from = number % batches * BATCH;
        let ids = &self.ids[from..from + BATCH];
        let mut elements = [0; BATCH];
        let start = Instant::now();
        self.store.elements(ids, &mut elements)?;
        let mut end = 0;
        for (offset, n) in self.offsets[1..].iter_mut().zip(elements) {
            end += n;
            *offset = i32::try_from(end)?;
        }
        let bytes = end as usize * self.store.schema().dtype.size();
        let out = self.buffer.get_mut(..bytes).context("larger than the largest batch")?;
        if all {
            gather_records(&*self.store, ids, out, &self.pool)?;
        } else {
            self.store.gather(ids, out)?;
        }
        Ok((start.elapsed().as_nanos() as u64, bytes))
    }
}

fn largest_batch(store: &Store, ids: &[u64]) -> anyhow::Result<usize> {
    let mut largest = 0;
    for ids in ids.chunks_exact(BATCH) {
        let mut elements = [0; BATCH];
        store.elements(ids, &mut elements)?;
        largest = largest.max(elements.iter().sum::<u64>());
    }
    Ok(largest as usize * store.schema().dtype.size())
}
