//! Batches for devices and for other processes: dma-bufs over the pages of a region, buffers of a
//! render node, the service that hands out descriptors, and HIP.

pub mod client;
mod dmabuf;
mod error;
mod exporter;
pub mod hip;
mod picture;
pub mod render;
mod service;
mod sys;
mod udmabuf;

pub use dmabuf::{Access, DmaBuf, Mapping};
pub use error::{Error, Unavailable};
pub use exporter::{Body, Described, Exported, Exporter, Exports, Kind, Refusal, Tensor, Then};
pub use picture::Picture;
pub use service::{Access as Peers, Figures, Limits as ServiceLimits, PROTOCOL, Service};
pub use udmabuf::{Limits, Range, Udmabuf};
