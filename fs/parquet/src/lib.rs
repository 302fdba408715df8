//! Token streams straight from Parquet: a column of lists of integers, in one file or a folder of
//! them, on this machine or in object storage, as a [`TokenSource`](batchfs_store::TokenSource).
//!
//! An index says how many tokens and documents each row group has. It is made from the footers, or
//! where these do not prove the count from one scan, and kept on disk. After that a row group is
//! one ranged read of the token column alone.

mod allowance;
mod bounded;
mod cache;
mod chunk;
mod column;
mod count;
mod decode;
mod dictionary;
mod footer;
mod index;
mod levels;
mod local;
mod packed;
mod place;
mod remote;
mod runs;
mod source;
mod stripped;
mod values;

pub use source::{FileCounts, Options, ParquetTokens, is_parquet};

pub use batchfs_store::{Error, Result};
