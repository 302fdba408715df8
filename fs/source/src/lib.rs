//! Foreign data as streams: `.npy` files and zrecord containers, read in place; and
//! [`open_path`] and [`open_dataset`], which find out what a path is. docs/sources.md says what is
//! read, converted and refused.

mod convert;
mod dtypes;
mod export;
mod header;
mod npy;
mod open;
mod ragged;
mod zrecord;

pub use convert::convert_npy;
pub use dtypes::{DTypes, Said};
pub use export::{Format, What, export};
pub use npy::NpyFile;
pub use open::{
    Kind, Streams, convert_dataset, convert_path, open_dataset, open_dataset_as, open_path,
    open_path_as, stream_name,
};
pub use ragged::RaggedNpy;
pub use zrecord::Zrecord;
pub use zrecord::write::ZrecordOptions;

pub use batchfs_store::{Error, Result};

/// What is at `path` cannot be read, and why.
fn bad(path: &std::path::Path, why: String) -> Error {
    Error::BadStore { path: path.into(), why }
}
