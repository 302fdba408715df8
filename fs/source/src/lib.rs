//! Foreign data as streams, read in place: `.npy` files; and [`open_path`] and [`open_dataset`],
//! which find out what a path is.

mod dtypes;
mod header;
mod npy;
mod open;

pub use dtypes::{DTypes, Said};
pub use npy::NpyFile;
pub use open::{open_dataset, open_dataset_as, open_path, open_path_as};

pub use batchfs_store::{Error, Result};
