//! Where files lie.

use std::ops::Range;

use batchfs_store::{Error, Result};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// A file of a dataset, and what tells one version of it from another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct File {
    /// Its name within the dataset, with `/` between folders.
    pub(crate) key: String,
    /// Bytes.
    pub(crate) size: u64,
    /// Changes whenever the file does: an ETag, or the time of change in nanoseconds.
    pub(crate) version: String,
    /// When it was changed, in nanoseconds since 1970.
    pub(crate) modified: u64,
}

/// A folder or a bucket's prefix.
pub(crate) trait Place: Send + Sync {
    /// Path or address, for people.
    fn origin(&self) -> &str;

    /// Path or address of a file, for people.
    fn name(&self, key: &str) -> String;

    /// The files of the dataset, ordered by the bytes of their keys.
    fn list(&self) -> Result<Vec<File>>;

    /// Reads a range of `file`; an error if it is another version by now, or shorter.
    fn read(&self, file: &File, range: Range<u64>) -> Result<Bytes>;

    /// Says which ranges will be read next.
    fn announce(&self, ranges: Vec<(File, Range<u64>)>) {
        drop(ranges);
    }

    /// How many reads should be under way at a time.
    fn parallel(&self) -> usize;

    /// Bytes received so far.
    fn received(&self) -> u64;
}

/// Whether a key names a data file: none of its parts is hidden, and it says that it is Parquet.
pub(crate) fn is_data(key: &str) -> bool {
    !key.split('/').any(|part| is_hidden(part.as_bytes())) && has_suffix(key)
}

/// Whether a file or folder of this name does not count: it is hidden, or a helper's.
pub(crate) fn is_hidden(name: &[u8]) -> bool {
    name.starts_with(b"_") || name.starts_with(b".")
}

/// Whether a name ends as those of Parquet files do.
pub(crate) fn has_suffix(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, end)| end.eq_ignore_ascii_case("parquet"))
}

/// What to do about a file whose bytes are not what they were.
pub(crate) const REWRITE: &str = "write the file again or remove it, then mount again";

pub(crate) fn bad_file(name: String, why: impl Into<String>) -> Error {
    Error::BadStore { path: name.into(), why: why.into() }
}

/// What is said of a file that is not there any more.
pub(crate) const GONE: &str =
    "a dataset must not change while it is used: put the file back, or mount again without it";

/// What is said of a file that is not the one that the index was made from.
pub(crate) const CHANGED: &str =
    "has changed since it was indexed, so its tokens are not the same any more; mount again";
