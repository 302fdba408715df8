use std::path::Path;
use std::time::SystemTime;

use crate::{Result, Schema};

/// An ordered, typed, immutable sequence of records `0..len`.
///
/// Whoever implements this promises that a record never has other values than it was made with:
/// what is damaged is an [`Error`](crate::Error), not different bytes.
pub trait Stream: Send + Sync {
    /// Element type and layout of the records.
    fn schema(&self) -> &Schema;

    /// Number of records.
    fn len(&self) -> u64;

    /// Whether there are no records at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Copies the records `ids` back to back into `out`, in the order of `ids`; an id may come
    /// more than once. For a dense stream `out` is `ids.len() * item_bytes` long.
    ///
    /// Runs on the calling thread alone; callers split a batch over threads. On an error what
    /// `out` holds is unspecified.
    ///
    /// # Errors
    /// [`Error::Damaged`](crate::Error::Damaged) names the first record found that does not match
    /// its checksum or lies in a file that was cut short; [`Error::Io`](crate::Error::Io) is a
    /// read that failed; [`Error::NoSuchRecord`](crate::Error::NoSuchRecord) an id out of range.
    fn gather(&self, ids: &[u64], out: &mut [u8]) -> Result<()>;

    /// Where the data lies, for messages.
    fn origin(&self) -> &Path;

    /// When the data was last changed; the mount gives its files this time.
    fn modified(&self) -> SystemTime;
}
