use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::header::{HEADER, Header, SEAL, bad, read_small, seal, shard_name};
use crate::index::Index;
use crate::rows::{Rows, Verify};
use crate::{Codec, Error, GuardedFile, Result, Schema, Stream, hash, is_unfinished};

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
    index: Index,
    rows: Rows,
    verify: Verify,
}

impl Store {
    /// Opens the store in the folder `path`. What it reads does not grow with the number of
    /// records, but for one checksum per 8,192 of them.
    ///
    /// # Errors
    /// [`Error::Io`] if files are missing or cannot be read, [`Error::UnknownVersion`] for a format
    /// of another version, [`Error::BadStore`] for a header, seal, index or shard that is not
    /// exactly as it was written, as far as its length and checksums tell.
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
        let index = Index::open(path, header.geometry.records)?;
        if text != seal(&json, index.block_sums()).as_bytes() {
            let why = format!("does not match {HEADER} and the index: one of the three is damaged");
            return Err(bad(&found, why));
        }
        let (files, start) = open_shards(path, &header)?;
        let item = header.schema.item_bytes().unwrap_or(0) as usize;
        let rows = Rows::new(path.into(), files, header.geometry, start, item)?;
        Ok(Store { path: path.into(), header, index, rows, verify: options.verify })
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

    /// Bytes of all records, headers and checksums not counted.
    pub fn payload_bytes(&self) -> u64 {
        self.header.geometry.records * self.item()
    }

    /// Bytes of one record.
    pub(crate) fn item(&self) -> u64 {
        self.header.schema.item_bytes().unwrap_or(0)
    }

    pub(crate) fn rows(&self) -> &Rows {
        &self.rows
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }

    pub(crate) fn data_start(&self) -> u64 {
        self.header.npy(0).len() as u64
    }

    pub(crate) fn mismatch(&self, id: u64, bytes: &[u8]) -> Result<Option<String>> {
        let (want, found) = (self.index.entry(id)?, hash::of(bytes));
        Ok(mismatch(want, found))
    }
}

pub(crate) fn mismatch(want: u64, found: u64) -> Option<String> {
    (want != found)
        .then(|| format!("the bytes have checksum {found:016x}, but were written with {want:016x}"))
}

fn open_shards(path: &Path, header: &Header) -> Result<(Vec<GuardedFile>, u64)> {
    let item = header.schema.item_bytes().unwrap_or(0);
    let mut start = 0;
    let mut files = Vec::with_capacity(header.geometry.shards as usize);
    for k in 0..header.geometry.shards {
        let file = GuardedFile::open(path.join(shard_name(k)))?;
        let want = header.npy(k);
        let rows = header.geometry.rows(k);
        start = want.len() as u64;
        if file.len() != start + rows * item {
            let why = format!(
                "has {} bytes, but shard {k} with {rows} records has {}",
                file.len(),
                start + rows * item
            );
            return Err(bad(file.path(), why));
        }
        let mut found = vec![0; want.len()];
        file.read_at(0, &mut found)?;
        if found != want {
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

    fn gather(&self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        self.rows.gather_checked(ids, out, self.verify, |id, bytes| {
            if self.verify == Verify::Never { Ok(None) } else { self.mismatch(id, bytes) }
        })
    }

    fn origin(&self) -> &Path {
        &self.path
    }

    /// When the store was written: a copy of it keeps this time.
    fn modified(&self) -> SystemTime {
        self.header.created
    }
}
