use std::io;
use std::path::PathBuf;

/// What is said of a panic: it is nobody's fault but ours.
pub const ITSELF_FAILED: &str = "batchfs itself failed; please report this";

/// What can go wrong with stores and streams. Every variant names the path it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused something.
    #[error("{path}: {action}: {source}", path = path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was being done, as in "cannot read".
        action: &'static str,
        /// The cause.
        source: io::Error,
    },
    /// A record's bytes are not those that were written.
    #[error("{path}: shard {shard}, record {record}: {why}", path = path.display())]
    Damaged {
        /// The store.
        path: PathBuf,
        /// Shard number.
        shard: u32,
        /// Record id.
        record: u64,
        /// What does not match.
        why: String,
    },
    /// A row group cannot be trusted or understood.
    #[error("{file}: row group {group}{}: {why}", name_row(*.row))]
    RowGroup {
        /// The file, as a path or an address.
        file: String,
        /// The row group's number in the file.
        group: u64,
        /// The row in it, if one can be named.
        row: Option<u64>,
        /// What is wrong and, where there is one, the way out.
        why: String,
    },
    /// A record of a single file cannot be had any more.
    #[error("{path}: record {record}: {why}", path = path.display())]
    DamagedFile {
        /// The file.
        path: PathBuf,
        /// Record id.
        record: u64,
        /// What is wrong.
        why: String,
    },
    /// A file of the store as a whole cannot be trusted or understood.
    #[error("{path}: {why}", path = path.display())]
    BadStore {
        /// The file.
        path: PathBuf,
        /// What is wrong with it and, where there is one, the way out.
        why: String,
    },
    /// The store is of a format version that this build does not know.
    #[error("{path}: store format version {found} is not known to this batchfs, which reads {known}; a newer batchfs wrote it", path = path.display())]
    UnknownVersion {
        /// The header.
        path: PathBuf,
        /// The version found there.
        found: u64,
        /// The versions that can be read.
        known: &'static str,
    },
    /// An id outside of `0..len`.
    #[error("{path}: there is no record {record}; the stream has {len}", path = path.display())]
    NoSuchRecord {
        /// The store or file.
        path: PathBuf,
        /// The id asked for.
        record: u64,
        /// Number of records.
        len: u64,
    },
    /// The target of a writer is there already.
    #[error("{path}: exists already; stores are never overwritten, remove it or choose another name", path = path.display())]
    Exists {
        /// The target.
        path: PathBuf,
    },
    /// What the caller passed does not fit.
    #[error("{path}: {why}", path = path.display())]
    Invalid {
        /// The store or file concerned.
        path: PathBuf,
        /// What does not fit.
        why: String,
    },
}

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An [`Error::Io`], for `map_err`.
    pub fn io(path: impl Into<PathBuf>, action: &'static str) -> impl FnOnce(io::Error) -> Error {
        let path = path.into();
        move |source| Error::Io { path, action, source }
    }

    /// The same error for another one who waits for the same thing.
    pub fn again(&self) -> Error {
        match self {
            Error::Io { path, action, source } => Error::Io {
                path: path.clone(),
                action,
                source: io::Error::new(source.kind(), source.to_string()),
            },
            Error::Damaged { path, shard, record, why } => Error::Damaged {
                path: path.clone(),
                shard: *shard,
                record: *record,
                why: why.clone(),
            },
            Error::RowGroup { file, group, row, why } => {
                Error::RowGroup { file: file.clone(), group: *group, row: *row, why: why.clone() }
            }
            Error::DamagedFile { path, record, why } => {
                Error::DamagedFile { path: path.clone(), record: *record, why: why.clone() }
            }
            Error::BadStore { path, why } => {
                Error::BadStore { path: path.clone(), why: why.clone() }
            }
            Error::UnknownVersion { path, found, known } => {
                Error::UnknownVersion { path: path.clone(), found: *found, known }
            }
            Error::NoSuchRecord { path, record, len } => {
                Error::NoSuchRecord { path: path.clone(), record: *record, len: *len }
            }
            Error::Exists { path } => Error::Exists { path: path.clone() },
            Error::Invalid { path, why } => Error::Invalid { path: path.clone(), why: why.clone() },
        }
    }
}

fn name_row(row: Option<u64>) -> String {
    row.map(|row| format!(", row {row}")).unwrap_or_default()
}
