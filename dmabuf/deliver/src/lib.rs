//! Batches for devices and for other processes: dma-bufs over the pages of a region, buffers of a
//! render node, the service that hands out descriptors, and HIP.

mod dmabuf;
mod error;
pub mod hip;
mod picture;
pub mod render;
mod sys;
mod udmabuf;

pub use dmabuf::{Access, DmaBuf, Mapping};
pub use error::{Error, Unavailable};
pub use picture::Picture;
pub use udmabuf::{Limits, Range, Udmabuf};
