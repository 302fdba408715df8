use std::time::Duration;

use batchfs_region::Holder;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a batch, record or index cannot be had. Every variant names it as the mount would.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The streams of a dataset do not fit together.
    #[error("{0}")]
    Dataset(String),
    /// The spec does not fit the data.
    #[error(transparent)]
    Sample(#[from] batchfs_sampler::SpecError),
    /// Reading the data failed.
    #[error("{item}: {source}")]
    Store {
        /// What was asked for.
        item: String,
        /// Store, shard, record and cause.
        source: batchfs_store::Error,
    },
    /// The stream cannot be shown in this form.
    #[error("{item}: there is no such file: {why}")]
    NoFace {
        /// What was asked for.
        item: String,
        /// The reason.
        why: String,
    },
    /// A ragged batch has more values than its int32 offsets can count.
    #[error(
        "{item}: the records have more than 2147483647 values together, which is more than cu_seqlens (int32) can count; mount with a smaller batch"
    )]
    Overflow {
        /// What was asked for.
        item: String,
    },
    /// The step's rows have more pieces of documents than the spec leaves room for.
    #[error(
        "{item}: its rows are made of {needed} pieces of documents, and there is room for {room}; mount with a larger pieces= in the spec (room per row), or read the bare file"
    )]
    TooManyPieces {
        /// What was asked for.
        item: String,
        /// Pieces of the step.
        needed: u64,
        /// Room for them.
        room: u64,
    },
    /// The budget for decoded row groups cannot hold what one step needs.
    #[error(
        "{spec} needs {needed} bytes for the decoded row groups that one step can be made of ({largest}), and the budget is {limit}; give a larger --budget, or take a smaller window"
    )]
    Budget {
        /// The spec.
        spec: String,
        /// The least budget.
        needed: u64,
        /// The largest row group, and what it takes.
        largest: String,
        /// The budget.
        limit: u64,
    },
    /// The system has no memory for records that are to stay in it.
    #[error(
        "to keep all records in memory takes {needed} bytes, and the system has {available}; mount without --resident"
    )]
    NotEnough {
        /// Bytes of all records, padded.
        needed: u64,
        /// Bytes that the system has.
        available: u64,
    },
    /// There is such a file, but not a byte in it, so that it has no region.
    #[error("{item}: it is empty")]
    Empty {
        /// What was asked for.
        item: String,
    },
    /// There is no such record.
    #[error("{item}: there is no such record; there are {len}, numbered from 0")]
    NoRecord {
        /// What was asked for.
        item: String,
        /// Number of records.
        len: u64,
    },
    /// A step has more records than ids are held for.
    #[error(
        "{item}: the record ids alone take {needed} bytes, and at most {limit} are held for a step; take a smaller batch"
    )]
    TooManyIds {
        /// What was asked for.
        item: String,
        /// Bytes that the ids take.
        needed: u64,
        /// Most bytes of ids.
        limit: u64,
    },
    /// Larger than the whole budget.
    #[error(
        "{item} takes {needed} bytes, more than the memory budget of {limit} bytes; mount with a larger --memory or a smaller batch"
    )]
    TooLarge {
        /// What was asked for.
        item: String,
        /// Bytes it takes.
        needed: u64,
        /// The budget.
        limit: u64,
    },
    /// The budget was in use for as long as an open may wait.
    #[error("{item}: no room for {needed} bytes within {waited:?}: {used} of {limit} bytes are in use, by {}; close or unmap some, or mount with a larger --memory", name_holders(.holders))]
    NoRoom {
        /// What was asked for.
        item: String,
        /// Bytes it takes.
        needed: u64,
        /// Bytes in use.
        used: u64,
        /// The budget.
        limit: u64,
        /// How long was waited.
        waited: Duration,
        /// Who has them, largest first.
        holders: Vec<Holder>,
    },
    /// The system gave no memory.
    #[error("{item}: {source}")]
    Memory {
        /// What was asked for.
        item: String,
        /// The cause.
        source: batchfs_region::AllocError,
    },
    /// A panic in this program.
    #[error("{item}: {}, with the daemon's log", batchfs_store::ITSELF_FAILED)]
    Bug {
        /// What was asked for.
        item: String,
    },
    /// The engine was stopped meanwhile.
    #[error("{item}: unmounted while it was being made")]
    Stopped {
        /// What was asked for.
        item: String,
    },
}

fn name_holders(holders: &[Holder]) -> String {
    const NAMED: usize = 8;
    let mut names: Vec<String> = holders
        .iter()
        .take(NAMED)
        .map(|h| {
            format!("{}{}", h.label, if h.outside { " (still mapped by a reader)" } else { "" })
        })
        .collect();
    if holders.len() > NAMED {
        names.push(format!("{} more", holders.len() - NAMED));
    }
    if names.is_empty() { "nobody any more".to_owned() } else { names.join(", ") }
}
