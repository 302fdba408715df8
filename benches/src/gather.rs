//! Batches and single records in process: ours, and the machine's limit.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use batchfs_batch::{Dataset, Engine, Face, Item, Key, NamedStream, Options, View, gather_records};
use batchfs_region::{Arena, Config, RegionMut};
use batchfs_sampler::Spec;
use batchfs_store::{OpenOptions, Store, Stream};
use memmap2::{Mmap, MmapMut};
use rayon::{ThreadPool, ThreadPoolBuilder};
use serde::Deserialize;

use crate::memory;

/// Records in a batch.
const BATCH: usize = 256;

/// Which code fills the buffer.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// `Store::gather` on the calling thread, into a kept region.
    Store,
    /// The engine's gather on all threads, into a kept region.
    Split,
    /// The whole engine, as the mount uses it: plan, region from the pool, gather on all threads. It
    /// takes ids from its own sampler, in iid mode, at steps that it cannot foresee.
    Engine,
    /// A loop of memcpy on one core.
    Limit1,
    /// The same on two.
    Limit2,
}

/// A dataset with all that is needed to gather from it.
pub struct Loaded {
    store: Arc<Store>,
    item: usize,
    npy: Mmap,
    npy_start: usize,
    ids: Vec<u64>,
    region: RegionMut,
    one: Vec<u8>,
    buffer: MmapMut,
    view: Arc<View>,
    engine: Engine,
    all: ThreadPool,
    two: ThreadPool,
}

impl Loaded {
    pub fn open(store: &Path, npy: &Path, ids: &Path) -> anyhow::Result<Self> {
        let store = Arc::new(Store::open(store, OpenOptions::default())?);
        let item = store.schema().item_bytes().context("item size")? as usize;
        let len = store.len();
        let npy = memory::map(npy)?;
        let npy_start = memory::npy_start(&npy)?;
        ensure!(npy.len() - npy_start == item * len as usize, "store and .npy differ in size");
        let ids = memory::ids(ids)?;
        ensure!(ids.iter().all(|id| *id < len), "an id is out of range");
        let arena = Arena::new(&Config { limit: 1 << 30, backing: None })?;
        let mut region = arena.alloc(BATCH * item, "bench".into())?;
        region.bytes_mut()?.fill(1);
        let streams =
            vec![NamedStream { name: "data".into(), stream: store.clone() as Arc<dyn Stream> }];
        let dataset = Arc::new(Dataset::new("bench", streams)?);
        let spec: Spec = format!("mode=iid,batch={BATCH},seed=1").parse()?;
        let view = Arc::new(View::new(0, "", dataset, spec)?);
        let engine = Engine::new(arena, &Options { threads: 0 })?;
        let mut loaded = Self {
            store,
            item,
            npy,
            npy_start,
            ids,
            region,
            one: vec![1; item],
            buffer: memory::huge_buffer(BATCH * item)?,
            view,
            engine,
            all: ThreadPoolBuilder::new().build()?,
            two: ThreadPoolBuilder::new().num_threads(2).build()?,
        };
        loaded.warm()?;
        Ok(loaded)
    }

    /// Reads every record once, so that what is measured is neither a first read nor a first
    /// checksum.
    fn warm(&mut self) -> anyhow::Result<()> {
        let all: Vec<u64> = (0..self.store.len()).collect();
        for ids in all.chunks(BATCH) {
            let region = &mut self.region.bytes_mut()?[..ids.len() * self.item];
            self.store.gather(ids, region)?;
            copy(&self.npy[self.npy_start..], ids, &mut self.buffer, self.item);
        }
        Ok(())
    }

    fn batch(&self, number: usize) -> &[u64] {
        let batches = (self.ids.len() / BATCH).max(1);
        let from = number % batches * BATCH;
        &self.ids[from..from + BATCH]
    }

    /// Nanoseconds of each of `count` batches.
    pub fn time(&mut self, how: How, from: usize, count: usize) -> anyhow::Result<Vec<u64>> {
        (from..from + count).map(|number| self.once(how, number)).collect()
    }

    fn once(&mut self, how: How, number: usize) -> anyhow::Result<u64> {
        let len = BATCH * self.item;
        let ids = self.batch(number).to_vec();
        let data = &self.npy[self.npy_start..];
        let item = self.item;
        Ok(match how {
            How::Store => {
                let region = self.region.bytes_mut()?;
                let start = Instant::now();
                self.store.gather(&ids, region)?;
                nanos(start)
            }
            How::Split => {
                let region = self.region.bytes_mut()?;
                let start = Instant::now();
                gather_records(&*self.store, &ids, region, &self.all)?;
                nanos(start)
            }
            How::Engine => {
                let key = self.key(number);
                let start = Instant::now();
                let batch = self.engine.wait(key, &self.view).map_err(anyhow::Error::from)?;
                let taken = nanos(start);
                ensure!(batch.region().len() == len);
                taken
            }
            How::Limit1 => {
                let start = Instant::now();
                copy(data, &ids, &mut self.buffer[..len], item);
                nanos(start)
            }
            How::Limit2 => {
                let (ids_a, ids_b) = ids.split_at(BATCH / 2);
                let (a, b) = self.buffer[..len].split_at_mut(len / 2);
                self.two.install(|| {
                    let start = Instant::now();
                    rayon::join(|| copy(data, ids_a, a, item), || copy(data, ids_b, b, item));
                    nanos(start)
                })
            }
        })
    }

    /// A step so far from the last one that nothing is prefetched for it.
    fn key(&self, number: usize) -> Key {
        let n = number as u64 + 1;
        Key { view: 0, item: Item::Batch(0), face: Face::Bare, number: 100 * n * n }
    }

    /// Nanoseconds of a gather of one record, for `count` records.
    pub fn time_one(&mut self, from: usize, count: usize) -> anyhow::Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(count);
        for number in from..from + count {
            let id = self.batch(number)[0];
            let start = Instant::now();
            self.store.gather(&[id], &mut self.one)?;
            taken.push(nanos(start));
        }
        Ok(taken)
    }

    /// Gathers batch `number` and writes it to `path`; gives the ids that it should have.
    pub fn dump(&mut self, how: How, number: usize, path: &Path) -> anyhow::Result<Vec<u64>> {
        let len = BATCH * self.item;
        if matches!(how, How::Engine) {
            let key = self.key(number);
            let batch = self.engine.wait(key, &self.view).map_err(anyhow::Error::from)?;
            std::fs::write(path, batch.region().bytes()?)?;
            return Ok(self.view.plan(key)?);
        }
        self.region.bytes_mut()?.fill(0xaa);
        self.buffer.fill(0xaa);
        self.once(how, number)?;
        let bytes = match how {
            How::Store | How::Split => &*self.region.bytes_mut()?,
            _ => &self.buffer[..len],
        };
        std::fs::write(path, bytes)?;
        Ok(self.batch(number).to_vec())
    }
}

fn copy(data: &[u8], ids: &[u64], out: &mut [u8], item: usize) {
    for (id, out) in ids.iter().zip(out.chunks_exact_mut(item)) {
        let at = *id as usize * item;
        out.copy_from_slice(&data[at..at + item]);
    }
}

fn nanos(start: Instant) -> u64 {
    start.elapsed().as_nanos() as u64
}
