use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};

use crate::announce::{Wanted, announce};
use crate::geometry::Geometry;
use crate::stream::check_ids;
use crate::sys::{AtomicBits, physical_memory, send};
use crate::{Error, GuardedFile, Result};

/// When a record's bytes are held against its checksum.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// The first time that this process reads it through this handle.
    #[default]
    First,
    /// Every time.
    Always,
    /// Not at all: a damaged record is read as it is. Headers and the index are checked all the same.
    Never,
}

/// Records of one size in the rows of one or more files: what `gather` is for dense data.
pub struct Rows {
    origin: PathBuf,
    files: Vec<GuardedFile>,
    /// They are shards of a store, not one file by itself.
    sharded: bool,
    geometry: Geometry,
    item: usize,
    /// Where row 0 starts, in every file.
    start: u64,
    /// Records that this handle has read, and checked if that was asked for.
    seen: AtomicBits,
    /// The files do not fit into memory well: announce every read, not only first ones.
    announce: bool,
}

/// Bytes of a record to come that the processor is told of; it finds the rest by itself.
const PREFETCH: usize = 512;
/// Records and calls from these sizes on are copied past the caches: what such a call writes does
/// not stay there until it is read.
pub(crate) const LARGE_RECORD: usize = 16 << 10;
pub(crate) const LARGE_CALL: usize = 4 << 20;

impl Rows {
    /// The rows of a single file, `records` of `item` bytes each from byte `start` on.
    ///
    /// # Errors
    /// [`Error::Invalid`] if they do not lie within the file, or `item` is 0.
    pub fn single(file: GuardedFile, start: u64, records: u64, item: usize) -> Result<Self> {
        let geometry = Geometry { records, shards: 1, stripe_log2: 0 };
        let rows = Self::new(file.path().to_owned(), vec![file], geometry, start, item)?;
        Ok(Self { sharded: false, ..rows })
    }

    pub(crate) fn new(
        origin: PathBuf,
        files: Vec<GuardedFile>,
        geometry: Geometry,
        start: u64,
        item: usize,
    ) -> Result<Self> {
        for (file, shard) in files.iter().zip(0..) {
            let end = (item as u64)
                .checked_mul(geometry.rows(shard))
                .and_then(|bytes| bytes.checked_add(start));
            if item == 0 || end.is_none_or(|end| end > file.len()) {
                let why = "the records do not lie within the file".into();
                return Err(Error::Invalid { path: file.path().to_owned(), why });
            }
        }
        let announce = files.iter().map(GuardedFile::len).sum::<u64>() > physical_memory() / 2;
        if announce {
            files.iter().for_each(GuardedFile::random);
        }
        let seen = AtomicBits::new(geometry.records);
        Ok(Self { origin, files, sharded: true, geometry, item, start, seen, announce })
    }

    /// Number of records.
    pub fn len(&self) -> u64 {
        self.geometry.records
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies records to `out` as [`Stream::gather`](crate::Stream::gather) does.
    ///
    /// # Errors
    /// Those of [`Stream::gather`](crate::Stream::gather).
    pub fn gather(&self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        self.gather_checked(ids, out, Verify::Never, |_, _| Ok(None))
    }

    /// As [`gather`](Self::gather); `check` says what is wrong with a record's bytes, and is asked
    /// when `verify` says so.
    pub(crate) fn gather_checked(
        &self,
        ids: &[u64],
        out: &mut [u8],
        verify: Verify,
        check: impl Fn(u64, &[u8]) -> Result<Option<String>>,
    ) -> Result<()> {
        self.check_request(ids, out.len())?;
        let all_seen = ids.iter().all(|id| self.seen.get(*id));
        if !all_seen || self.announce {
            self.announce(ids);
        }

        let ahead = (8192 / self.item).clamp(4, 16);
        let past_cache = self.item >= LARGE_RECORD && out.len() >= LARGE_CALL;
        let warm = all_seen && verify != Verify::Always;
        for (i, (&id, out)) in ids.iter().zip(out.chunks_exact_mut(self.item)).enumerate() {
            if let Some(&next) = ids.get(i + ahead) {
                let (file, offset) = self.place(next);
                file.prefetch(offset, self.item.min(PREFETCH));
            }
            let (file, offset) = self.place(id);
            if warm {
                if past_cache {
                    file.copy_past_cache(offset, out);
                } else {
                    file.copy_to(offset, out);
                }
                continue;
            }
            file.copy_to(offset, out);
            let due = match verify {
                Verify::First => !self.seen.get(id),
                Verify::Always => true,
                Verify::Never => false,
            };
            if due && check(id, out)?.is_some() {
                self.read_again(id, out, &check)?;
            }
            // A file that failed under the mapping is read again below, without this bit.
            self.seen.set(id);
        }

        let damaged = if ids.len() < self.files.len() {
            ids.iter().any(|id| self.place(*id).0.damaged())
        } else {
            self.files.iter().any(GuardedFile::damaged)
        };
        if damaged {
            for (&id, out) in ids.iter().zip(out.chunks_exact_mut(self.item)) {
                if self.place(id).0.damaged() {
                    self.read_again(id, out, &check)?;
                }
            }
        }
        Ok(())
    }

    /// Writes records to `file` as [`Stream::gather_to_file`](crate::Stream::gather_to_file) does.
    ///
    /// # Errors
    /// Those of [`Stream::gather_to_file`](crate::Stream::gather_to_file).
    pub fn gather_to_file(&self, ids: &[u64], file: BorrowedFd<'_>, at: u64) -> Result<bool> {
        check_ids(&self.origin, ids, self.len())?;
        // What has to be checked, or read from the disk, has to come into this process first.
        let direct = self.item >= LARGE_RECORD && ids.iter().all(|id| self.seen.get(*id));
        if !direct || self.announce || self.files.iter().any(|f| f.mapping().is_none()) {
            return Ok(false);
        }
        let ranges = ids.iter().filter_map(|id| {
            let (file, offset) = self.place(*id);
            Some((file.mapping()?, offset as usize, self.item))
        });
        let sent = send(ranges, file, at)
            .map_err(Error::io(&self.origin, "cannot write a batch of it to memory"))?;
        Ok(sent && !self.files.iter().any(GuardedFile::damaged))
    }

    fn check_request(&self, ids: &[u64], out: usize) -> Result<()> {
        if ids.len().checked_mul(self.item) != Some(out) {
            let why = format!(
                "{} records of {} bytes do not make the {out} bytes of the buffer",
                ids.len(),
                self.item
            );
            return Err(Error::Invalid { path: self.origin.clone(), why });
        }
        check_ids(&self.origin, ids, self.len())
    }

    #[inline]
    fn place(&self, id: u64) -> (&GuardedFile, u64) {
        let (shard, row) = self.geometry.locate(id);
        (&self.files[shard as usize], self.start + row * self.item as u64)
    }

    /// Has the kernel read what is to come.
    fn announce(&self, ids: &[u64]) {
        let wanted = ids.iter().filter(|id| self.announce || !self.seen.get(**id)).map(|id| {
            let (file, row) = self.geometry.locate(*id);
            let begin = self.start + row * self.item as u64;
            Wanted { file, begin, end: begin + self.item as u64 }
        });
        announce(&self.files, wanted.collect());
    }

    /// The slow and exact way, for a record whose bytes did not come right from the mapping.
    #[cold]
    fn read_again(
        &self,
        id: u64,
        out: &mut [u8],
        check: &impl Fn(u64, &[u8]) -> Result<Option<String>>,
    ) -> Result<()> {
        let (file, offset) = self.place(id);
        let path = self.origin.clone();
        let (shard, _) = self.geometry.locate(id);
        match file.read_at(offset, out) {
            Ok(()) => match check(id, out)? {
                None => Ok(()),
                Some(why) => Err(Error::Damaged { path, shard, record: id, why }),
            },
            Err(Error::BadStore { why, .. }) if !self.sharded => {
                Err(Error::DamagedFile { path, record: id, why })
            }
            Err(e) => Err(damage_of(e, |why| Error::Damaged { path, shard, record: id, why })),
        }
    }

    pub(crate) fn files(&self) -> &[GuardedFile] {
        &self.files
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }
}

/// An error of reading a record: a file that is not what it was has damaged that record.
pub(crate) fn damage_of(e: Error, damaged: impl FnOnce(String) -> Error) -> Error {
    match e {
        Error::BadStore { path, why } => damaged(format!("{} {why}", name_of(&path))),
        e => e,
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned()
}
