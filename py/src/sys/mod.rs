//! The crate's `unsafe` code: memory that is shared with Python, DLPack's C structures, and `fork`.
#![allow(unsafe_code)]

mod array;
mod arrow;
mod capsule;
mod dlpack;
mod fork;
mod memory;
mod open;

pub use array::{indices, indices_mut, of_array};
pub use arrow::arrow_capsules;
pub use capsule::{export, import};
pub use dlpack::Device;
pub use fork::{generation, pool, watch_forks};
pub use memory::{Memory, lent_file, of_block, of_file};
pub use open::open;
