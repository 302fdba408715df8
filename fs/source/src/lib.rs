//! Foreign data as streams, read in place: `.npy` files; and [`open_path`] and [`open_dataset`],
//! which find out what a path is.

mod header;
mod npy;
mod open;

pub use npy::NpyFile;
pub use open::{open_dataset, open_path};

pub use batchfs_store::{Error, Result};
