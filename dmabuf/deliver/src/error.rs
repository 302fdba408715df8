use std::io;

use crate::hip::HipError;

/// Something of the machine that is wanted and cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} cannot be used: {why}")]
pub struct Unavailable {
    /// Its name.
    pub what: &'static str,
    /// The cause.
    pub why: String,
    /// What would help.
    pub way_out: String,
}

/// What goes wrong with dma-bufs.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine lacks something.
    #[error("{0}; {way_out}", way_out = .0.way_out)]
    Unavailable(#[from] Unavailable),
    /// A descriptor that was expected to be a dma-buf is something else.
    #[error("the descriptor is no dma-buf")]
    NotDmaBuf,
    /// The memory is none that udmabuf takes.
    #[error("no dma-buf can be made of this file: {why}")]
    Memory {
        /// What it lacks or has too much.
        why: &'static str,
    },
    /// A part of a file that no dma-buf can be made of.
    #[error("no dma-buf can be made of bytes {offset} to {} of a file of {file_len} bytes: {why}", u128::from(*offset) + u128::from(*len))]
    Range {
        /// Where it begins.
        offset: u64,
        /// Its bytes.
        len: u64,
        /// The file's length.
        file_len: u64,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// More bytes than the machine allows in one dma-buf.
    #[error(
        "a dma-buf of {len} bytes is larger than this machine allows, {limit} bytes; root raises it with \
         `echo {} > /sys/module/udmabuf/parameters/size_limit_mb`", len.div_ceil(1 << 20)
    )]
    TooLarge {
        /// Bytes asked for.
        len: u64,
        /// Bytes allowed.
        limit: u64,
    },
    /// More pieces than the machine allows in one dma-buf.
    #[error(
        "a dma-buf of {count} pieces has more than this machine allows, {limit}; root raises it with \
         `echo {count} > /sys/module/udmabuf/parameters/list_limit`"
    )]
    TooManyRanges {
        /// Pieces asked for.
        count: usize,
        /// Pieces allowed.
        limit: u64,
    },
    /// Something of the HIP runtime.
    #[error(transparent)]
    Hip(#[from] HipError),
    /// The kernel refused.
    #[error("cannot {doing}: {source}")]
    Os {
        /// What was tried.
        doing: &'static str,
        /// The cause.
        source: io::Error,
    },
}

impl Error {
    /// For `map_err`.
    pub(crate) fn os<E: Into<io::Error>>(doing: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::Os { doing, source: source.into() }
    }
}
