use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::compress::{Decoder, check_dictionary};
use crate::header::{DICTIONARY, HEADER, Header, SEAL, bad, read_at_most, read_small, seal};
use crate::index::Index;
use crate::packed::{Entries, Packed};
use crate::records::Records;
use crate::rows::{Rows, Verify};
use crate::stream::{check_ids, check_request, dense_elements, dense_shapes};
use crate::{Codec, Error, GuardedFile, Layout, Result, Schema, Stream, hash, is_unfinished};

/// How a store is to be read.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// When records are held against their checksums.
    pub verify: Verify,
}

impl OpenOptions {
    /// Options with this `verify`.
    pub fn verify(verify: Verify) -> Self {
        Self { verify }
    }
}

/// A record store on disk, open for reading.
pub struct Store {
    path: PathBuf,
    header: Header,
    body: Body,
    verify: Verify,
}

/// The records, by how they lie.
pub(crate) enum Body {
    /// Dense and raw: place and size of a record follow from its id.
    Rows {
        /// Where each record is.
        rows: Rows,
        /// A checksum of each record.
        index: Index,
    },
    /// Ragged or compressed: the index tells.
    Packed(Packed),
}

impl Store {
    /// Opens the store in the folder `path`. What it reads does not grow with the number of
    /// records, but for one checksum per block of the index: 8,192 records that are dense and raw,
    /// mostly 2,048 others.
    ///
    /// # Errors
    /// [`Error::Io`] if files are missing or cannot be read, [`Error::UnknownVersion`] for a format
    /// of another version, [`Error::BadStore`] for a header, seal, index, dictionary or shard that is
    /// not exactly as it was written, as far as its length and checksums tell.
    pub fn open(path: impl AsRef<Path>, options: OpenOptions) -> Result<Store> {
        let path = path.as_ref();
        if is_unfinished(path) {
            let why = "is the folder of a writer that has not finished".into();
            return Err(bad(path, why));
        }
        let head = path.join(HEADER);
        let json = read_small(&head).map_err(|e| match &e {
            Error::Io { source, .. }
                if source.kind() == io::ErrorKind::NotFound && path.is_dir() =>
            {
                bad(path, format!("is not a store: it has no {HEADER}"))
            }
            _ => e,
        })?;
        Header::check_version(&head, &json)?;
        let found = path.join(SEAL);
        let text = read_small(&found)?;
        let header = Header::parse(&head, &json)?;
        let index = Index::open(path, header.geometry.records, header.form())?;
        if text != seal(&json, index.block_sums()).as_bytes() {
            let why = format!("does not match {HEADER} and the index: one of the three is damaged");
            return Err(bad(&found, why));
        }
        let (files, start) = open_shards(path, &header)?;
        let body = if header.packed.is_some() {
            let decoder = open_decoder(path, &header)?;
            let lens = files.iter().map(GuardedFile::len).collect();
            let index = Entries::new(path.into(), &header, index, lens);
            Body::Packed(Records::with_decoder(path.into(), files, index, decoder))
        } else {
            let item = header.schema.item_bytes().unwrap_or(0) as usize;
            let rows = Rows::new(path.into(), files, header.geometry, start, item)?;
            Body::Rows { rows, index }
        };
        Ok(Store { path: path.into(), header, body, verify: options.verify })
    }

    /// How the records are kept.
    pub fn codec(&self) -> Codec {
        self.header.codec
    }

    /// Number of files that the records are spread over.
    pub fn shards(&self) -> u32 {
        self.header.geometry.shards
    }

    /// Records that lie side by side in a shard before the next shard's turn.
    pub fn stripe(&self) -> u64 {
        1 << self.header.geometry.stripe_log2
    }

    /// When the store was written, in whole seconds.
    pub fn created(&self) -> SystemTime {
        self.header.created
    }

    /// The program that wrote it.
    pub fn writer(&self) -> &str {
        &self.header.writer
    }

    /// The compression level that the records were written with, of codecs that have one.
    pub fn level(&self) -> Option<i32> {
        self.header.packed.as_ref()?.level
    }

    /// Bytes of all records, decompressed; headers and checksums not counted.
    pub fn payload_bytes(&self) -> u64 {
        match &self.header.packed {
            Some(packed) => packed.raw_bytes,
            None => self.header.geometry.records * self.header.schema.item_bytes().unwrap_or(0),
        }
    }

    /// Bytes that the records take on disk, without the index and what else there is.
    pub fn stored_bytes(&self) -> u64 {
        match &self.header.packed {
            Some(packed) => packed.shard_bytes.iter().sum(),
            None => self.payload_bytes(),
        }
    }

    pub(crate) fn body(&self) -> &Body {
        &self.body
    }

    pub(crate) fn data_start(&self) -> u64 {
        self.header.shard_front(0).len() as u64
    }
}

pub(crate) fn mismatch(want: u64, found: u64) -> Option<String> {
    (want != found)
        .then(|| format!("the bytes have checksum {found:016x}, but were written with {want:016x}"))
}

fn open_decoder(path: &Path, header: &Header) -> Result<Decoder> {
    let file = path.join(DICTIONARY);
    let Some(told) = header.packed.as_ref().and_then(|packed| packed.dictionary) else {
        return Decoder::new(None).map_err(|why| bad(path, why));
    };
    let bytes = read_at_most(&file, told.bytes)?;
    if bytes.len() as u64 != told.bytes || hash::of(&bytes) != told.sum {
        let why = format!("is not the dictionary that {HEADER} tells of: it is damaged");
        return Err(bad(&file, why));
    }
    check_dictionary(&bytes)
        .and_then(|()| Decoder::new(Some(&bytes)))
        .map_err(|why| bad(&file, why))
}

fn open_shards(path: &Path, header: &Header) -> Result<(Vec<GuardedFile>, u64)> {
    let mut start = 0;
    let mut files = Vec::with_capacity(header.geometry.shards as usize);
    for k in 0..header.geometry.shards {
        let file = GuardedFile::open(path.join(header.shard_name(k)))?;
        let want = header.shard_len(k);
        if file.len() != want {
            let rows = header.geometry.rows(k);
            let why =
                format!("has {} bytes, but shard {k} with {rows} records has {want}", file.len());
            return Err(bad(file.path(), why));
        }
        let front = header.shard_front(k);
        start = front.len() as u64;
        let mut found = vec![0; front.len()];
        if !found.is_empty() {
            file.read_at(0, &mut found)?;
        }
        if found != front {
            return Err(bad(
                file.path(),
                "does not begin with the header that the store's schema gives it".into(),
            ));
        }
        files.push(file);
    }
    Ok((files, start))
}

impl Stream for Store {
    fn schema(&self) -> &Schema {
        &self.header.schema
    }

    fn len(&self) -> u64 {
        self.header.geometry.records
    }

    fn payload_bytes(&self) -> u64 {
        Store::payload_bytes(self)
    }

    fn gather(&self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        match &self.body {
            Body::Rows { rows, index } => {
                rows.gather_checked(ids, out, self.verify, |id, bytes| {
                    Ok(match self.verify {
                        Verify::Never => None,
                        _ => mismatch(index.sum(id)?, hash::of(bytes)),
                    })
                })
            }
            Body::Packed(packed) => packed.gather(ids, out, self.verify),
        }
    }

    fn gather_to_file(&self, ids: &[u64], file: BorrowedFd<'_>, at: u64) -> Result<bool> {
        match &self.body {
            Body::Rows { rows, .. } if self.verify != Verify::Always => {
                rows.gather_to_file(ids, file, at)
            }
            _ => check_ids(&self.path, ids, self.len()).map(|()| false),
        }
    }

    fn elements(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        match (&self.body, &self.header.schema.layout) {
            (Body::Packed(packed), Layout::Ragged { .. }) => {
                check_request(self, ids, 1, out.len())?;
                packed.index().elements(ids, out)
            }
            _ => dense_elements(self, ids, out),
        }
    }

    fn shapes(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        match (&self.body, &self.header.schema.layout) {
            (Body::Packed(packed), Layout::Ragged { ndim }) => {
                check_request(self, ids, *ndim as usize, out.len())?;
                packed.index().shapes(ids, out)
            }
            _ => dense_shapes(self, ids, out),
        }
    }

    fn decodes(&self) -> bool {
        self.header.codec != Codec::Raw
    }

    fn origin(&self) -> &Path {
        &self.path
    }

    /// When the store was written: a copy of it keeps this time.
    fn modified(&self) -> SystemTime {
        self.header.created
    }
}
