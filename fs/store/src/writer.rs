use std::fs;
use std::io::IoSlice;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::SystemTime;

use rayon::prelude::*;

use crate::compress::Encoder;
use crate::encode::{encode, pieces};
use crate::geometry::{Geometry, Run};
use crate::header::{DICTIONARY, Dictionary, HEADER, Header, MAX_RECORD, Packing, SEAL, seal};
use crate::index::IndexWriter;
use crate::publish::TempFolder;
use crate::write::{Output, sync_folder};
use crate::{Codec, Error, Layout, Result, Schema, hash};

/// How a store is to be written.
#[derive(Clone, Debug)]
pub struct WriteOptions {
    /// Files that the records are spread over, 1..=255; 4 by default. More of them make
    /// writing and cold reading more parallel.
    pub shards: u32,
    /// How records are kept.
    pub codec: Codec,
    /// The level of the codecs that compress, 3 by default: the higher, the smaller and the
    /// slower to write. Reading is as fast at all of them.
    pub level: i32,
    /// The dictionary for [`Codec::ZstdDict`], and for it alone: what
    /// [`train_dict`](crate::train_dict) or zstd's own tools make.
    pub dictionary: Option<Vec<u8>>,
    /// Records that go to one shard before the next one's turn, a power of two. Chosen so that a
    /// stripe has up to 256 KiB, or of 256 ragged records, if not given.
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
            level: 3,
            dictionary: None,
            stripe: None,
            created: None,
            writer: concat!("batchfs ", env!("CARGO_PKG_VERSION")).into(),
        }
    }
}

/// Payload per stripe that is aimed at, in bytes.
const STRIPE: u64 = 256 << 10;
/// Records per stripe where their size is not known, and the most of compressed ones.
const STRIPE_RAGGED: u64 = 256;
const STRIPE_PACKED: u64 = 4096;
/// Bytes that are hashed, then written while still in the cache.
const STEP: usize = 512 << 10;
/// Bytes of an append that are at work at once: bounds the memory for their checksums.
const CHUNK: usize = 64 << 20;
/// The same where records differ in size: bytes, unless one record has more, and records.
const CHUNK_PACKED: u64 = 16 << 20;
const CHUNK_RECORDS: usize = 64 << 10;
/// Less than this is not worth a second thread, and less than that not if it is to be compressed.
const PARALLEL: usize = 256 << 10;
const PARALLEL_ZSTD: usize = 64 << 10;

/// Writes one store, which is there under its name once [`finish`](Self::finish) returned, and
/// not before. Dropped without that, it leaves nothing.
pub struct StoreWriter {
    header: Header,
    /// Bytes of a dense record, 0 for ragged ones.
    item: usize,
    shards: Vec<Output>,
    index: IndexWriter,
    encoder: Option<Encoder>,
    dictionary: Option<Vec<u8>>,
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

    fn temp(&self) -> &TempFolder {
        match self {
            Place::Alone(temp) => temp,
            Place::Within { parent, .. } => parent,
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
        if let Place::Within { folder, parent, records } = self
            && records.get().is_none()
            && parent.is_ours()
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
    /// [`Error::Exists`] if there is a `dest`, [`Error::Invalid`] if dense records have no bytes or
    /// more than 2 GiB, ragged ones no axis, or an option does not fit, [`Error::Io`] if nothing can
    /// be written there.
    pub fn create(
        dest: impl AsRef<Path>,
        schema: Schema,
        options: WriteOptions,
    ) -> Result<StoreWriter> {
        let dest = dest.as_ref();
        let plan = Plan::new(dest, schema, options)?;
        Self::start(plan, Place::Alone(TempFolder::create(dest)?))
    }

    pub(crate) fn within(
        parent: Arc<TempFolder>,
        name: &str,
        schema: Schema,
        options: WriteOptions,
        records: Arc<OnceLock<u64>>,
    ) -> Result<StoreWriter> {
        let told = parent.dest().join(name);
        let plan = Plan::new(&told, schema, options)?;
        let folder = parent.path().join(name);
        fs::create_dir(&folder).map_err(Error::io(told, "cannot create"))?;
        Self::start(plan, Place::Within { folder, parent, records })
    }

    fn start(plan: Plan, place: Place) -> Result<StoreWriter> {
        let Plan { header, encoder, dictionary } = plan;
        let told = place.told();
        // Its length does not depend on the number of rows: one page holds any.
        let start = header.shard_front(0).len() as u64;
        let shards = (0..header.geometry.shards)
            .map(|k| {
                let mut out = Output::create(&place.folder().join(header.shard_name(k)), &told)?;
                out.skip(start);
                Ok(out)
            })
            .collect::<Result<Vec<_>>>()?;
        let index = IndexWriter::create(place.folder(), &told, header.form())?;
        let item = header.schema.item_bytes().unwrap_or(0) as usize;
        Ok(StoreWriter { header, item, shards, index, encoder, dictionary, failed: false, place })
    }

    /// Appends whole dense records, C-contiguous and little-endian, and returns once they are
    /// written. The memory needed does not grow with their number: raw ones are written from where
    /// they are, others compressed on all cores some at a time.
    ///
    /// # Errors
    /// [`Error::Invalid`] if `records` is not a whole number of records, or the store is a ragged
    /// one, which changes nothing.
    /// [`Error::Io`] if they cannot be written (disk full, file size limit …): then nothing will be
    /// published, and every further call fails.
    pub fn append(&mut self, records: &[u8]) -> Result<()> {
        self.check_usable()?;
        if let Layout::Ragged { .. } = self.header.schema.layout {
            return Err(
                self.invalid("ragged records come with their shapes, by append_ragged".into())
            );
        }
        if !records.len().is_multiple_of(self.item) {
            let why = format!(
                "{} bytes are not a whole number of records of {} bytes",
                records.len(),
                self.item
            );
            return Err(self.invalid(why));
        }
        if self.header.packed.is_some() {
            let lens = std::iter::repeat_n(self.item as u32, records.len() / self.item);
            return self.append_packed(records, lens, &[]);
        }
        let chunk = (CHUNK / self.item).max(1) * self.item;
        for chunk in records.chunks(chunk) {
            let done = self.append_chunk(chunk);
            self.failed |= done.is_err();
            done?;
        }
        Ok(())
    }

    /// Appends ragged records and returns once they are written. `values` are the records, each
    /// C-contiguous and little-endian, back to back; `shapes` are theirs, `ndim` numbers for each.
    /// A record may be empty: then an axis of it is 0. The memory needed does not grow with their
    /// number.
    ///
    /// ```
    /// use batchfs_store::{Codec, DType, OpenOptions, Schema, Store, StoreWriter, Stream, WriteOptions};
    /// # let tmp = tempfile::tempdir().unwrap();
    /// # let dest = tmp.path().join("text");
    /// let options = WriteOptions { codec: Codec::Zstd, ..WriteOptions::default() };
    /// let mut writer = StoreWriter::create(&dest, Schema::ragged(DType::UInt8, 1), options)?;
    /// writer.append_ragged(b"onethree", &[3, 0, 5])?;
    /// writer.finish()?;
    ///
    /// let store = Store::open(&dest, OpenOptions::default())?;
    /// let mut elements = [0; 2];
    /// store.elements(&[2, 0], &mut elements)?;
    /// assert_eq!(elements, [5, 3]);
    /// let mut batch = [0; 8];
    /// store.gather(&[2, 0], &mut batch)?;
    /// assert_eq!(&batch, b"threeone");
    /// # Ok::<(), batchfs_store::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if `shapes` is not a whole number of shapes, if these do not make the bytes
    /// of `values`, if a record has more than 2 GiB or an axis more than 2^32 - 1, or if the store is
    /// a dense one: all of this changes nothing. [`Error::Io`] as from [`append`](Self::append).
    pub fn append_ragged(&mut self, values: &[u8], shapes: &[u64]) -> Result<()> {
        self.check_usable()?;
        let Layout::Ragged { ndim } = self.header.schema.layout else {
            return Err(
                self.invalid("dense records have no shapes of their own; use append".into())
            );
        };
        if !shapes.len().is_multiple_of(ndim as usize) {
            let why =
                format!("{} numbers are not a whole number of shapes of {ndim}", shapes.len());
            return Err(self.invalid(why));
        }
        let size = self.header.schema.dtype.size() as u64;
        let mut total = 0u64;
        for (i, shape) in shapes.chunks_exact(ndim as usize).enumerate() {
            if let Some(axis) = shape.iter().find(|n| u32::try_from(**n).is_err()) {
                return Err(self.invalid(format!("record {i} of the append has an axis of {axis}")));
            }
            let len = bytes_of(shape, size);
            if len > MAX_RECORD {
                let why =
                    format!("record {i} of the append, of shape {shape:?}, is larger than 2 GiB");
                return Err(self.invalid(why));
            }
            total = total.saturating_add(len);
        }
        if total != values.len() as u64 {
            let why = format!("the shapes make {total} bytes, but there are {}", values.len());
            return Err(self.invalid(why));
        }
        let lens = shapes.chunks_exact(ndim as usize).map(|shape| bytes_of(shape, size) as u32);
        self.append_packed(values, lens, shapes)
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
        let StoreWriter { header, mut shards, index, dictionary, place, .. } = self;
        let (folder, told) = (place.folder().to_owned(), place.told());
        shards.par_iter_mut().zip(0..header.geometry.shards).try_for_each(|(out, k)| {
            out.fill(&header.shard_front(k), 0)?;
            out.sync()
        })?;
        drop(shards);
        if let Some(bytes) = dictionary {
            Output::whole(&folder.join(DICTIONARY), &told, &bytes)?;
        }
        let sums = index.finish()?;
        let json = header.to_json();
        Output::whole(&folder.join(HEADER), &told, &json)?;
        Output::whole(&folder.join(SEAL), &told, seal(&json, &sums).as_bytes())?;
        place.finish(header.geometry.records)
    }

    fn check_usable(&self) -> Result<()> {
        // The files' positions are shared with the parent.
        self.place.temp().check_ours()?;
        if self.failed {
            return Err(self.invalid("an earlier append failed; nothing will be published".into()));
        }
        Ok(())
    }

    fn invalid(&self, why: String) -> Error {
        Error::Invalid { path: self.place.told(), why }
    }

    fn append_chunk(&mut self, bytes: &[u8]) -> Result<()> {
        let first = self.header.geometry.records;
        let mut grown = self.header.clone();
        grown.geometry.records += (bytes.len() / self.item) as u64;
        grown.check_sizes().map_err(|why| self.invalid(why))?;

        let runs = grown.geometry.runs(first, bytes.len() / self.item);
        let item = self.item;
        let write = |(out, runs): (&mut Output, &Vec<Run>)| write_runs(out, runs, bytes, item);
        let written: Vec<Vec<u64>> = if bytes.len() < PARALLEL {
            self.shards.iter_mut().zip(&runs).map(write).collect::<Result<_>>()?
        } else {
            self.shards.par_iter_mut().zip(&runs).map(write).collect::<Result<_>>()?
        };

        let mut entries = vec![0; bytes.len() / item * 8];
        for (runs, written) in runs.iter().zip(&written) {
            let mut written = written.iter();
            for run in runs {
                let place = run.first * 8..(run.first + run.count) * 8;
                for (entry, sum) in entries[place].chunks_exact_mut(8).zip(&mut written) {
                    entry.copy_from_slice(&sum.to_le_bytes());
                }
            }
        }
        self.index.push(&entries)?;
        self.header = grown;
        Ok(())
    }

    /// Appends records of `lens` bytes, some at a time; `shapes` are for their entries.
    fn append_packed(
        &mut self,
        mut values: &[u8],
        lens: impl Iterator<Item = u32>,
        mut shapes: &[u64],
    ) -> Result<()> {
        let mut lens = lens.peekable();
        let ndim = if shapes.is_empty() { 0 } else { self.header.schema.ndim() };
        let mut chunk = Vec::new();
        while lens.peek().is_some() {
            chunk.clear();
            let mut bytes = 0u64;
            while let Some(len) = lens.next_if(|len| {
                chunk.is_empty()
                    || (chunk.len() < CHUNK_RECORDS && bytes + u64::from(*len) <= CHUNK_PACKED)
            }) {
                bytes += u64::from(len);
                chunk.push(len);
            }
            let (now, later) = values.split_at(bytes as usize);
            let (theirs, others) = shapes.split_at(chunk.len() * ndim);
            let done = self.append_packed_chunk(now, &chunk, theirs);
            self.failed |= done.is_err();
            done?;
            (values, shapes) = (later, others);
        }
        Ok(())
    }

    fn append_packed_chunk(&mut self, bytes: &[u8], lens: &[u32], shapes: &[u64]) -> Result<()> {
        let first = self.header.geometry.records;
        let mut grown = self.header.clone();
        grown.geometry.records += lens.len() as u64;
        let Some(packed) = &mut grown.packed else {
            return Err(self.invalid("is not of a kind whose records differ in size".into()));
        };

        let parallel = bytes.len() >= PARALLEL;
        let pieces = pieces(grown.geometry, first, lens, bytes);
        let many = parallel || self.encoder.is_some() && bytes.len() >= PARALLEL_ZSTD;
        let encoded = encode(&pieces, self.encoder.as_ref(), many).map_err(|why| {
            let last = first + lens.len() as u64 - 1;
            self.invalid(format!("records {first} to {last} cannot be compressed: {why}"))
        })?;

        let ndim = if lens.is_empty() { 0 } else { shapes.len() / lens.len() };
        let mut entries = Vec::with_capacity(lens.len() * self.header.form().entry());
        let mut parts: Vec<Vec<IoSlice<'_>>> = self.shards.iter().map(|_| Vec::new()).collect();
        for (piece, encoded) in pieces.iter().zip(&encoded) {
            let end = &mut packed.shard_bytes[piece.shard as usize];
            for ((stored, sum), record) in encoded.marks.iter().zip(piece.first..) {
                entries.extend_from_slice(&end.to_le_bytes());
                entries.extend_from_slice(&sum.to_le_bytes());
                entries.extend_from_slice(&stored.to_le_bytes());
                let shape = &shapes[record * ndim..(record + 1) * ndim];
                entries.extend(shape.iter().flat_map(|n| (*n as u32).to_le_bytes()));
                *end += u64::from(*stored);
            }
            // A call that is given nothing but empty parts writes nothing, as on a full disk.
            if !encoded.bytes.is_empty() {
                parts[piece.shard as usize].push(IoSlice::new(&encoded.bytes));
            }
        }
        packed.raw_bytes += bytes.len() as u64;
        grown.check_sizes().map_err(|why| self.invalid(why))?;

        let write = |(out, parts): (&mut Output, &mut Vec<IoSlice<'_>>)| out.append_all(parts);
        if parallel {
            self.shards.par_iter_mut().zip(&mut parts).try_for_each(write)?;
        } else {
            self.shards.iter_mut().zip(&mut parts).try_for_each(write)?;
        }
        self.index.push(&entries)?;
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

/// Bytes of a record of `shape`; what does not fit 64 bits is larger than any record anyway.
fn bytes_of(shape: &[u64], size: u64) -> u64 {
    shape.iter().fold(size, |n, d| n.saturating_mul(*d))
}

/// What a writer begins with.
struct Plan {
    header: Header,
    encoder: Option<Encoder>,
    dictionary: Option<Vec<u8>>,
}

impl Plan {
    fn new(told: &Path, schema: Schema, options: WriteOptions) -> Result<Self> {
        let invalid = |why: String| Error::Invalid { path: told.into(), why };
        let codec = options.codec;
        let dictionary = match (codec, options.dictionary) {
            (Codec::ZstdDict, None) => {
                let why = "codec zstd_dict needs a dictionary, which `batchfs train-dict` makes";
                return Err(invalid(why.into()));
            }
            (Codec::Raw | Codec::Zstd, Some(_)) => {
                let why = format!("codec {} takes no dictionary; zstd_dict does", codec.name());
                return Err(invalid(why));
            }
            (_, dictionary) => dictionary,
        };
        let encoder = match codec {
            Codec::Raw => None,
            Codec::Zstd | Codec::ZstdDict => {
                Some(Encoder::new(options.level, dictionary.as_deref()).map_err(invalid)?)
            }
        };
        let packed = Header::is_packed(&schema, codec).then(|| Packing {
            level: encoder.is_some().then_some(options.level),
            dictionary: dictionary
                .as_deref()
                .map(|bytes| Dictionary { bytes: bytes.len() as u64, sum: hash::of(bytes) }),
            raw_bytes: 0,
            shard_bytes: vec![0; options.shards.min(255) as usize],
        });
        let most = if packed.is_some() { STRIPE_PACKED } else { u64::MAX };
        let stripe = match (options.stripe, schema.item_bytes()) {
            (Some(n), _) if n.is_power_of_two() => n,
            (Some(n), _) => {
                return Err(invalid(format!("a stripe of {n} records is not a power of two")));
            }
            (None, Some(item)) => (STRIPE / item.max(1)).clamp(1, most),
            (None, None) => STRIPE_RAGGED,
        };
        let header = Header {
            schema,
            codec,
            geometry: Geometry { records: 0, shards: options.shards, stripe_log2: stripe.ilog2() },
            created: options.created.unwrap_or_else(SystemTime::now),
            writer: options.writer,
            packed,
        };
        header.check_sizes().map_err(invalid)?;
        if header.created < SystemTime::UNIX_EPOCH {
            return Err(invalid("a store cannot be older than 1970".into()));
        }
        Ok(Self { header, encoder, dictionary })
    }
}
