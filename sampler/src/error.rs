//! What can be wrong with a spec, by itself or for the data at hand.

use crate::spec::Mode;
use thiserror::Error;

/// Why a spec was refused. Every message names the values and says what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SpecError {
    /// An item is not `key=value`.
    #[error("{item:?} is not key=value; a spec reads like mode=cyclic,batch=256,seed=42")]
    NotKeyValue {
        /// The item as given.
        item: String,
    },
    /// A key that does not exist.
    #[error("unknown key {key:?}{}; the keys are {}", did_you_mean(*.nearest), .keys.join(", "))]
    UnknownKey {
        /// The key as given.
        key: String,
        /// The key that is spelled most like it, if one is close.
        nearest: Option<&'static str>,
        /// The keys that there are.
        keys: &'static [&'static str],
    },
    /// A key given twice.
    #[error("the key {key} is given twice")]
    DuplicateKey {
        /// The key.
        key: &'static str,
    },
    /// A value that its key does not take.
    #[error("{key}={value:?} is not valid; {key} takes {allowed}")]
    BadValue {
        /// The key.
        key: &'static str,
        /// The value as given.
        value: String,
        /// What the key takes, in words.
        allowed: &'static str,
    },
    /// `batch=0`.
    #[error("batch=0 is not valid; a batch has at least 1 record")]
    ZeroBatch,
    /// `world=0`.
    #[error("world=0 is not valid; there is at least 1 rank")]
    ZeroWorld,
    /// A rank outside the world.
    #[error("rank={rank} does not exist in world={world}; ranks count from 0 to world - 1 = {}", world.saturating_sub(1))]
    RankOutOfRange {
        /// The rank.
        rank: u64,
        /// The number of ranks.
        world: u64,
    },
    /// A global batch that the ranks cannot share equally.
    #[error(
        "batch={batch} does not divide among world={world} ranks; \
         batch counts the records of all ranks together and must be a multiple of world"
    )]
    Indivisible {
        /// The global batch.
        batch: u64,
        /// The number of ranks.
        world: u64,
    },
    /// `remainder` with a mode that has none.
    #[error(
        "remainder has no meaning with mode={mode}; only mode=cyclic has one, leave the key out"
    )]
    RemainderWithoutCycle {
        /// The mode.
        mode: Mode,
    },
    /// A batch larger than the random stream of one step.
    #[error(
        "batch={batch} is too large for mode=iid; at most 2^61 = 2305843009213693952 records can be drawn in a step"
    )]
    IidBatchTooLarge {
        /// The global batch.
        batch: u64,
    },
    /// 0 for what must be at least 1.
    #[error("{key}=0 is not valid; it is at least 1")]
    Zero {
        /// The key.
        key: &'static str,
    },
    /// Lanes that the ranks cannot share equally.
    #[error(
        "lanes={lanes} do not divide among world={world} ranks; \
         lanes count the rows of a step of all ranks together and must be a multiple of world"
    )]
    LanesIndivisible {
        /// The lanes.
        lanes: u64,
        /// The number of ranks.
        world: u64,
    },
    /// More tokens in a rank's part of a step than int32 offsets can count.
    #[error(
        "{rows} rows of seq_len={seq_len} are more than the 2147483647 tokens that cu_seqlens (int32) can count; \
         take fewer lanes, shorter rows or more ranks"
    )]
    StepTooLarge {
        /// Rows of the rank.
        rows: u64,
        /// Tokens of a row.
        seq_len: u64,
    },
    /// Room for more pieces than a row has tokens.
    #[error("pieces={pieces} is not valid; a row of seq_len={seq_len} has 1 to {seq_len} pieces")]
    PiecesOutOfRange {
        /// The key's value.
        pieces: u64,
        /// Tokens of a row.
        seq_len: u64,
    },
    /// Fewer tokens than a step takes.
    #[error(
        "lanes={lanes},seq_len={seq_len} take {} tokens a step, more than the {tokens} that the data has; \
         take fewer lanes or shorter rows", u128::from(*.lanes) * u128::from(*.seq_len)
    )]
    TooFewTokens {
        /// The lanes.
        lanes: u64,
        /// Tokens of a row.
        seq_len: u64,
        /// Tokens of the data.
        tokens: u64,
    },
    /// An item of a mixture is not `name=weight`.
    #[error(
        "{item:?} is not NAME=WEIGHT; a mixture reads like web=0.7,code=0.3, with names of letters, digits, '.', '_' and '-'"
    )]
    NotNameWeight {
        /// The item as given.
        item: String,
    },
    /// A weight that is none.
    #[error(
        "{name}={value:?} is no weight; a weight is a decimal above 0, such as 0.7 or 3, with up to 9 digits on either side of the point"
    )]
    BadWeight {
        /// The source.
        name: String,
        /// The weight as given.
        value: String,
    },
    /// A source named twice.
    #[error("the source {name} is given twice")]
    DuplicateSource {
        /// The source.
        name: String,
    },
    /// A weight that comes to no row.
    #[error(
        "the weight of {name} is too small beside the others: it comes to no row in a block of {block}; give it more, or leave it out"
    )]
    WeightTooSmall {
        /// The source.
        name: String,
        /// Rows of a block.
        block: u64,
    },
    /// What does not fit one source of a mixture.
    #[error("source {name}: {why}")]
    Source {
        /// The source.
        name: String,
        /// What is wrong.
        why: Box<SpecError>,
    },
    /// More row groups or tokens than can be counted.
    #[error("the data has more than {what}; split it into several datasets")]
    TooMuchData {
        /// What there is too much of.
        what: &'static str,
    },
    /// No records.
    #[error("the data has 0 records; there is nothing to sample")]
    EmptyData,
    /// A batch larger than the data, in a mode that would then repeat records within a batch.
    #[error(
        "batch={batch} is larger than the data's {len} records, and mode={mode} would repeat records within a batch; \
         take a batch of at most {len}, or mode=iid, which draws with replacement"
    )]
    BatchLargerThanData {
        /// The global batch.
        batch: u64,
        /// The number of records.
        len: u64,
        /// The mode.
        mode: Mode,
    },
}

fn did_you_mean(nearest: Option<&'static str>) -> String {
    nearest.map(|key| format!(" (did you mean {key}?)")).unwrap_or_default()
}
