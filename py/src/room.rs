//! Where batches are put: the processor's memory, or memory that a GPU sees, too.

use batchfs_dmabuf::hip::{DeviceBlock, DevicePool};
use batchfs_region::{Block as HostBlock, Pool};

use crate::gather::Failure;
use crate::sys::Device;

/// A pool of either kind.
pub enum Room {
    /// The processor's.
    Host(Pool),
    /// A GPU's.
    Gpu(DevicePool),
}

/// Memory of either kind that its holder alone has.
pub enum Block {
    Host(HostBlock),
    Gpu(DeviceBlock),
}

impl Room {
    /// A block for `len` bytes; what it holds is unspecified.
    ///
    /// # Errors
    /// If there is no memory, or the device does not take it.
    pub fn take(&self, len: usize) -> Result<Block, Failure> {
        match self {
            Room::Host(pool) => Ok(Block::Host(pool.take(len)?)),
            Room::Gpu(pool) => Ok(Block::Gpu(pool.take(len)?)),
        }
    }

    /// The size of a block for `len` bytes.
    pub fn class(&self, len: usize) -> Option<usize> {
        match self {
            Room::Host(_) => Pool::class(len),
            Room::Gpu(_) => DevicePool::class(len),
        }
    }

    /// What tensors in it are said to be on.
    pub fn device(&self) -> Device {
        match self {
            Room::Host(_) => Device::CPU,
            Room::Gpu(pool) => Device::rocm(pool.device().id()),
        }
    }

    pub fn keeps(&self) -> u64 {
        match self {
            Room::Host(pool) => pool.keeps(),
            Room::Gpu(pool) => pool.keeps(),
        }
    }

    pub fn cached(&self) -> u64 {
        match self {
            Room::Host(pool) => pool.cached(),
            Room::Gpu(pool) => pool.cached(),
        }
    }

    pub fn close(&self) {
        match self {
            Room::Host(pool) => pool.close(),
            Room::Gpu(pool) => pool.close(),
        }
    }
}

impl Block {
    pub fn len(&self) -> usize {
        match self {
            Block::Host(block) => block.len(),
            Block::Gpu(block) => block.len(),
        }
    }

    pub fn alignment(&self) -> usize {
        match self {
            Block::Host(block) => block.alignment(),
            Block::Gpu(_) => batchfs_region::PAGE as usize,
        }
    }

    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Block::Host(block) => block.bytes_mut(),
            Block::Gpu(block) => block.bytes_mut(),
        }
    }
}

impl From<HostBlock> for Block {
    fn from(block: HostBlock) -> Block {
        Block::Host(block)
    }
}
