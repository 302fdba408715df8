//! HIP, AMD's runtime for GPUs, found and loaded when somebody asks for a device and not before.
//!
//! A [`Device`] imports dma-bufs, which gives memory of this process an address for the GPU, and reads
//! memory of the GPU for this process. A [`DevicePool`] has memory for batches that both see.

mod device;
mod error;
mod find;
mod pool;
mod probe;
mod read;
mod runtime;

pub use device::{Device, Imported};
pub use error::HipError;
pub use find::{Candidate, OVERRIDE, Origin, Places};
pub use pool::{DeviceBlock, DevicePool};
pub use probe::Foreign;
pub use read::HostBytes;
pub use runtime::Runtime;

pub use crate::sys::hip::DeviceBytes;
