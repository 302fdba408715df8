//! The one place where errors become errnos.

use std::io::ErrorKind;

use batchfs_batch::Error;
use batchfs_store::Error as Store;
use fuser::Errno;

/// The errno that a reader sees for `error`.
pub(crate) fn errno(error: &Error) -> Errno {
    match error {
        Error::NoFace { .. } | Error::NoRecord { .. } => Errno::ENOENT,
        Error::Overflow { .. } | Error::TooManyPieces { .. } => Errno::EOVERFLOW,
        Error::TooLarge { .. }
        | Error::TooManyIds { .. }
        | Error::NoRoom { .. }
        | Error::Memory { .. } => Errno::ENOMEM,
        Error::Store { source: Store::Io { source, .. }, .. } => match source.kind() {
            ErrorKind::TimedOut => Errno::ETIMEDOUT,
            ErrorKind::PermissionDenied => Errno::EACCES,
            _ => Errno::EIO,
        },
        _ => Errno::EIO,
    }
}

/// Lines of this kind in the error log share a limit; `None` for failures, which have none.
pub(crate) fn kind(error: &Error) -> Option<&'static str> {
    match error {
        Error::NoFace { .. } => Some("no face"),
        Error::NoRecord { .. } => Some("no record"),
        _ => None,
    }
}
