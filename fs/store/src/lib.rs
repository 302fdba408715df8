//! Typed, ordered, immutable sequences of records, and the record store that keeps them on disk.
//!
//! A [`Stream`] is what everything above this crate reads: a schema, a length, and
//! [`gather`](Stream::gather), which copies records into memory that the caller owns.

mod dtype;
mod error;
mod schema;
mod stream;

pub use dtype::{DType, UnknownDType};
pub use error::{Error, Result};
pub use schema::{Layout, Schema};
pub use stream::Stream;
