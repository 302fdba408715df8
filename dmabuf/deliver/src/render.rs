//! Memory of a render node: buffers that a GPU's own driver makes, that this process fills through a
//! mapping, and that are exported as dma-bufs.
//!
//! ROCm imports no other dma-bufs than those of amdgpu, so this is the memory for HIP.

mod buffer;
mod list;
mod node;

pub use buffer::Buffer;
pub use list::{RenderNode, groups, nodes, unusable};
pub use node::{Amdgpu, Dumb, Node, STAND_IN, StandIn, Udma, open_for};
