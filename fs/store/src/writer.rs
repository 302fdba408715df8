use std::fs;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use rayon::prelude::*;

use crate::geometry::{Geometry, Run};
use crate::header::{HEADER, Header, SEAL, seal, shard_name};
use crate::index::IndexWriter;
use crate::publish::TempFolder;
use crate::write::{Output, sync_folder};
use crate::{Codec, Error, Result, Schema, hash};

/// How a store is to be written.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Files that the records are spread over, 1..=255; 4 by default. More of them make
    /// writing and cold reading more parallel.
    pub shards: u32,
    /// How records are kept.
    pub codec: Codec,
    /// Records that go to one shard before the next one's turn, a power of two. Chosen so that a
    /// stripe has up to 256 KiB, if not given.
    pub stripe: Option<u64>,
    /// The time that the store carries, in whole seconds; now, if not given. With it given, the
    /// same records make the same bytes.
    pub created: Option<SystemTime>,
    /// What the header names as the store's writer.
    pub writer: String,
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            shards: 4,
            codec: Codec::Raw,
            stripe: None,
            created: None,
            writer: concat!("batchfs ", env!("CARGO_PKG_VERSION")).into(),
        }
    }
}

/// Payload per stripe that is aimed at, in bytes.
const STRIPE: u64 = 256 << 10;
/// Bytes that are hashed, then written while still in the cache.
const STEP: usize = 512 << 10;
/// Bytes of an append that are at work at once: bounds the memory for their checksums.
const CHUNK: usize = 64 << 20;
/// Less than this is not worth a second thread.
const PARALLEL: usize = 256 << 10;

/// Writes one store, which is there under its name once [`finish`](Self::finish) returned, and
/// not before. Dropped without that, it leaves nothing.
pub struct StoreWriter {
    header: Header,
    item: usize,
    shards: Vec<Output>,
    index: IndexWriter,
    failed: bool,
    /// Last, so that it is dropped, and the folder removed, after the files are closed.
    place: Place,
}

enum Place {
    /// A store of its own.
    Alone(TempFolder),
    /// A stream of a dataset, which is published with the rest.
    Within { folder: PathBuf, parent: Arc<TempFolder>, records: Arc<OnceLock<u64>> },
}

impl Place {
    fn folder(&self) -> &Path {
        match self {
            Place::Alone(temp) => temp.path(),
            Place::Within { folder, .. } => folder,
        }
    }

    fn told(&self) -> PathBuf {
        match self {
            Place::Alone(temp) => temp.dest().into(),
            Place::Within { folder, parent, .. } => match folder.file_name() {
                Some(name) => parent.dest().join(name),
                None => parent.dest().into(),
            },
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Place::Within { folder, records, .. } = self
            && records.get().is_none()
        {
            let _ = fs::remove_dir_all(folder);
        }
    }
}

impl StoreWriter {
    /// Starts a store that will be the folder `dest`. What killed writers of `dest` left beside
    /// it is removed.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is a `dest`, [`Error::Invalid`] if records have no bytes or more
    /// than 2 GiB or `shards` is not within 1..=255, [`Error::Io`] if nothing can be written there.
    pub fn create(
        dest: impl AsRef<Path>,
        schema: Schema,
        options: WriteOptions,
    ) -> Result<StoreWriter> {
        let dest = dest.as_ref();
        let header = header(dest, schema, options)?;
        Self::start(header, Place::Alone(TempFolder::create(dest)?))
    }

    pub(crate) fn within(
        parent: Arc<TempFolder>,
        name: &str,
        schema: Schema,
        options: WriteOptions,
        records: Arc<OnceLock<u64>>,
    ) -> Result<StoreWriter> {
        let told = parent.dest().join(name);
        let header = header(&told, schema, options)?;
        let folder = parent.path().join(name);
        fs::create_dir(&folder).map_err(Error::io(told, "cannot create"))?;
        Self::start(header, Place::Within { folder, parent, records })
    }

    fn start(header: Header, place: Place) -> Result<StoreWriter> {
        let told = place.told();
        // Its length does not depend on the number of rows: one page holds any.
        let start = header.npy(0).len() as u64;
        let shards = (0..header.geometry.shards)
            .map(|k| {
                let mut out = Output::create(&place.folder().join(shard_name(k)), &told)?;
                out.skip(start);
                Ok(out)
            })
            .collect::<Result<Vec<_>>>()?;
        let index = IndexWriter::create(place.folder(), &told)?;
        let item = header.schema.item_bytes().unwrap_or(0) as usize;
        Ok(StoreWriter { header, item, shards, index, failed: false, place })
    }

    /// Appends whole records, C-contiguous and little-endian, and returns once they are written.
    /// They are written from where they are; the memory needed does not grow with their number.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `records` is not a whole number of records, which changes nothing.
    /// [`Error::Io`] if they cannot be written (disk full, file size limit …): then nothing will be
    /// published, and every further call fails.
    pub fn append(&mut self, records: &[u8]) -> Result<()> {
        self.check_usable()?;
        if !records.len().is_multiple_of(self.item) {
            let why = format!(
                "{} bytes are not a whole number of records of {} bytes",
                records.len(),
                self.item
            );
            return Err(Error::Invalid { path: self.place.told(), why });
        }
        let chunk = (CHUNK / self.item).max(1) * self.item;
        for chunk in records.chunks(chunk) {
            let done = self.append_chunk(chunk);
            self.failed |= done.is_err();
            done?;
        }
        Ok(())
    }

    /// Records appended so far.
    pub fn records(&self) -> u64 {
        self.header.geometry.records
    }

    /// Writes index, header and seal, brings all to the disk, and gives the store its name; a
    /// stream of a dataset gets it with the dataset.
    ///
    /// # Errors
    /// [`Error::Exists`] if `dest` has come into being meanwhile; it is left as it is.
    /// [`Error::Io`] if something cannot be written. Nothing is published then, with one exception:
    /// where flushing the parent folder fails the store is there, whole, but its name might not
    /// outlast a power cut.
    pub fn finish(self) -> Result<()> {
        self.check_usable()?;
        let StoreWriter { header, mut shards, index, place, .. } = self;
        let (folder, told) = (place.folder().to_owned(), place.told());
        shards.par_iter_mut().zip(0..header.geometry.shards).try_for_each(|(out, k)| {
            out.fill(&header.npy(k), 0)?;
            out.sync()
        })?;
        drop(shards);
        let sums = index.finish()?;
        let json = header.to_json();
        Output::whole(&folder.join(HEADER), &told, &json)?;
        Output::whole(&folder.join(SEAL), &told, seal(&json, &sums).as_bytes())?;
        place.finish(header.geometry.records)
    }

    fn check_usable(&self) -> Result<()> {
        if self.failed {
            let why = "an earlier append failed; nothing will be published".into();
            return Err(Error::Invalid { path: self.place.told(), why });
        }
        Ok(())
    }

    fn append_chunk(&mut self, bytes: &[u8]) -> Result<()> {
        let first = self.header.geometry.records;
        let mut grown = self.header.clone();
        grown.geometry.records += (bytes.len() / self.item) as u64;
        grown.check_sizes().map_err(|why| Error::Invalid { path: self.place.told(), why })?;

        let runs = grown.geometry.runs(first, bytes.len() / self.item);
        let item = self.item;
        let write = |(out, runs): (&mut Output, &Vec<Run>)| write_runs(out, runs, bytes, item);
        let written: Vec<Vec<u64>> = if bytes.len() < PARALLEL {
            self.shards.iter_mut().zip(&runs).map(write).collect::<Result<_>>()?
        } else {
            self.shards.par_iter_mut().zip(&runs).map(write).collect::<Result<_>>()?
        };

        let mut sums = vec![0; bytes.len() / item];
        for (runs, written) in runs.iter().zip(&written) {
            let mut written = written.as_slice();
            for run in runs {
                let (now, later) = written.split_at(run.count);
                sums[run.first..run.first + run.count].copy_from_slice(now);
                written = later;
            }
        }
        self.index.push(&sums)?;
        self.header = grown;
        Ok(())
    }
}

impl Place {
    fn finish(mut self, count: u64) -> Result<()> {
        match &mut self {
            Place::Within { folder, parent, records } => {
                sync_folder(folder, parent.dest())?;
                let _ = records.set(count);
                Ok(())
            }
            Place::Alone(temp) => temp.publish(),
        }
    }
}

/// Writes a shard's runs and gives the checksums of its records.
fn write_runs(out: &mut Output, runs: &[Run], bytes: &[u8], item: usize) -> Result<Vec<u64>> {
    let mut sums = Vec::with_capacity(runs.iter().map(|r| r.count).sum());
    let mut parts = Vec::new();
    let mut pending = 0;
    for run in runs {
        let run = &bytes[run.first * item..(run.first + run.count) * item];
        sums.extend(run.chunks_exact(item).map(hash::of));
        parts.push(IoSlice::new(run));
        pending += run.len();
        if pending >= STEP {
            out.append_all(&mut parts)?;
            parts.clear();
            pending = 0;
        }
    }
    out.append_all(&mut parts)?;
    Ok(sums)
}

fn header(told: &Path, schema: Schema, options: WriteOptions) -> Result<Header> {
    let invalid = |why: String| Error::Invalid { path: told.into(), why };
    let item = schema.item_bytes().unwrap_or(0);
    let stripe = match options.stripe {
        Some(n) if n.is_power_of_two() => n,
        Some(n) => return Err(invalid(format!("a stripe of {n} records is not a power of two"))),
        None => (STRIPE / item.max(1)).max(1),
    };
    let header = Header {
        schema,
        codec: options.codec,
        geometry: Geometry { records: 0, shards: options.shards, stripe_log2: stripe.ilog2() },
        created: options.created.unwrap_or_else(SystemTime::now),
        writer: options.writer,
    };
    header.check_sizes().map_err(invalid)?;
    if header.created < SystemTime::UNIX_EPOCH {
        return Err(invalid("a store cannot be older than 1970".into()));
    }
    Ok(header)
}
