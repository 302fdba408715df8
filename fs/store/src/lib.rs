//! Typed, ordered, immutable sequences of records, and the record store that keeps them on disk.
//!
//! A [`Stream`] is what everything above this crate reads: a schema, a length, and
//! [`gather`](Stream::gather), which copies records into memory that the caller owns.
//!
//! A store is a folder. It is written by a [`StoreWriter`] and is there whole or not at all; a
//! [`Store`] reads it and gives the bytes that were written, or an error that says what is
//! damaged. Its format is told in docs/format.md.
//!
//! ```
//! use batchfs_store::{DType, OpenOptions, Schema, Store, StoreWriter, Stream, WriteOptions};
//! # let tmp = tempfile::tempdir().unwrap();
//! # let dest = tmp.path().join("tokens");
//! let mut writer =
//!     StoreWriter::create(&dest, Schema::dense(DType::UInt8, [4]), WriteOptions::default())?;
//! writer.append(b"aaaabbbbcccc")?;
//! writer.finish()?;
//!
//! let store = Store::open(&dest, OpenOptions::default())?;
//! let mut batch = [0; 8];
//! store.gather(&[2, 0], &mut batch)?;
//! assert_eq!(&batch, b"ccccaaaa");
//! # Ok::<(), batchfs_store::Error>(())
//! ```

#[cfg(target_endian = "big")]
compile_error!(
    "stores are little-endian and are mapped as they are; there is no port to big-endian hosts"
);

mod announce;
mod chunks;
mod codec;
mod compress;
mod dataset;
mod dictionary;
mod dtype;
mod encode;
mod error;
mod geometry;
mod guarded;
mod hash;
mod header;
mod heads;
mod index;
pub mod npy;
mod packed;
mod publish;
mod records;
mod rows;
mod schema;
mod store;
mod stream;
mod sys;
mod token_vec;
mod tokens;
mod verify;
mod write;
mod writer;

pub use chunks::{Chunk, chunks};
pub use codec::{Codec, UnknownCodec};
pub use dataset::{DatasetWriter, check_lengths, check_stream_name};
pub use dictionary::{Trained, train_dict};
pub use dtype::{DType, UnknownDType};
pub use error::{Error, ITSELF_FAILED, Result};
pub use guarded::GuardedFile;
pub use publish::{TempFolder, is_unfinished, leftovers, remove_leftovers};
pub use records::{Locate, Place, Records};
pub use rows::{Rows, Verify};
pub use schema::{Layout, Schema};
pub use store::{OpenOptions, Store};
pub use stream::{Stream, check_ids, check_request};
pub use sys::keep_freed_memory;
pub use token_vec::{Buffer, Spare, TokenVec, write_wide};
pub use tokens::{
    GroupCounts, GroupPlace, GroupRead, PackedGroup, TokenFile, TokenGroup, TokenSource,
};
pub use verify::{Report, read_all, verify};
pub use write::Output;
pub use writer::{StoreWriter, WriteOptions};
