use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::SystemTime;

use crate::{Error, Layout, Result, Schema};

/// An ordered, typed, immutable sequence of records `0..len`.
///
/// Whoever implements this promises that a record never has other values than it was made with:
/// what is damaged is an [`Error`], not different bytes.
pub trait Stream: Send + Sync {
    /// Element type and layout of the records.
    fn schema(&self) -> &Schema;

    /// Number of records.
    fn len(&self) -> u64;

    /// Whether there are no records at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of all records together, as [`gather`](Self::gather) gives them.
    ///
    /// Whoever implements a ragged stream implements this; for a dense one it is given.
    fn payload_bytes(&self) -> u64 {
        self.schema().item_bytes().unwrap_or(0).saturating_mul(self.len())
    }

    /// Copies the records `ids` back to back into `out`, in the order of `ids`; an id may come
    /// more than once. For a dense stream `out` is `ids.len() * item_bytes` long, for a ragged one
    /// the sum of the records' [`elements`](Self::elements) times the bytes of an element.
    ///
    /// Runs on the calling thread alone; callers split a batch over threads. On an error what
    /// `out` holds is unspecified.
    ///
    /// # Errors
    /// [`Error::Damaged`] names the first record found that does not match
    /// its checksum or lies in a file that was cut short; [`Error::Io`] is a
    /// read that failed; [`Error::NoSuchRecord`] an id out of range.
    fn gather(&self, ids: &[u64], out: &mut [u8]) -> Result<()>;

    /// Writes the records `ids` back to back to `file`, from byte `at` on, as
    /// [`gather`](Self::gather) would copy them, where that is faster than to gather and then
    /// write them: for large records that lie in the source as they are, and were read before.
    /// Says whether it did; if not, or on an error, what the file holds there is unspecified.
    ///
    /// # Errors
    /// [`Error::NoSuchRecord`] for an id out of range, [`Error::Io`] if the file cannot be
    /// written. A record that cannot be read is no error here, but `false`: `gather` says why.
    fn gather_to_file(&self, ids: &[u64], file: BorrowedFd<'_>, at: u64) -> Result<bool> {
        let _ = (file, at);
        check_ids(self.origin(), ids, self.len())?;
        Ok(false)
    }

    /// Writes the number of elements of each of the records `ids` to `out`, which is as long as
    /// `ids`. No record is read for it.
    ///
    /// Whoever implements a ragged stream implements this; for a dense one it is given.
    ///
    /// # Errors
    /// [`Error::NoSuchRecord`] for an id out of range, [`Error::Invalid`] if `out` has another
    /// length; those of reading the index.
    fn elements(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        dense_elements(self, ids, out)
    }

    /// Writes the shape of each of the records `ids` to `out`, one after the other: `ids.len() *
    /// ndim` numbers. No record of a store is read for it; other sources may have to.
    ///
    /// Whoever implements a ragged stream implements this; for a dense one it is given.
    ///
    /// # Errors
    /// Those of [`elements`](Self::elements).
    fn shapes(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        dense_shapes(self, ids, out)
    }

    /// Whether records are decoded when they are gathered, rather than copied: a call then takes
    /// some ten times as long, and it pays to spread even a small one over threads.
    fn decodes(&self) -> bool {
        false
    }

    /// Where the data lies, for messages.
    fn origin(&self) -> &Path;

    /// When the data was last changed; the mount gives its files this time.
    fn modified(&self) -> SystemTime;
}

pub(crate) fn dense_elements<S: Stream + ?Sized>(
    stream: &S,
    ids: &[u64],
    out: &mut [u64],
) -> Result<()> {
    let Some(elements) = stream.schema().item_elements() else { return Err(untold(stream)) };
    check_request(stream, ids, 1, out.len())?;
    out.fill(elements);
    Ok(())
}

pub(crate) fn dense_shapes<S: Stream + ?Sized>(
    stream: &S,
    ids: &[u64],
    out: &mut [u64],
) -> Result<()> {
    let Layout::Dense { item_shape } = &stream.schema().layout else { return Err(untold(stream)) };
    check_request(stream, ids, item_shape.len(), out.len())?;
    if !item_shape.is_empty() {
        out.chunks_exact_mut(item_shape.len()).for_each(|out| out.copy_from_slice(item_shape));
    }
    Ok(())
}

/// Whether all `ids` are there, and `out` has room for `each` numbers of every one.
///
/// # Errors
/// [`Error::NoSuchRecord`], [`Error::Invalid`].
pub fn check_request<S: Stream + ?Sized>(
    stream: &S,
    ids: &[u64],
    each: usize,
    out: usize,
) -> Result<()> {
    let path = || stream.origin().to_owned();
    if ids.len().checked_mul(each) != Some(out) {
        let why = format!("{} records have {each} numbers each, the buffer has {out}", ids.len());
        return Err(Error::Invalid { path: path(), why });
    }
    check_ids(stream.origin(), ids, stream.len())
}

/// Whether all `ids` are within `0..len`.
///
/// # Errors
/// [`Error::NoSuchRecord`] with the first that is not.
pub fn check_ids(origin: &Path, ids: &[u64], len: u64) -> Result<()> {
    match ids.iter().find(|id| **id >= len) {
        Some(&record) => Err(Error::NoSuchRecord { path: origin.to_owned(), record, len }),
        None => Ok(()),
    }
}

fn untold<S: Stream + ?Sized>(stream: &S) -> Error {
    let why = "has records that differ in size, but does not tell their sizes".into();
    Error::Invalid { path: stream.origin().to_owned(), why }
}
