//! Memory for batches that the processor fills and a device reads.
//!
//! A consumer drops a tensor as soon as it has given the device the work that reads it, and not when
//! that work is done. So memory that comes back is filled again only after a wait for the device that
//! began later. The oldest is taken first, so that one wait serves all that has come back before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use batchfs_region::{Keep, Shelf, page_size};

use super::device::{Device, Imported};
use crate::error::Error;
use crate::render::{Buffer, Node};

/// A source of [`DeviceBlock`]s that keeps some of those that come back. Cloning shares it.
#[derive(Clone)]
pub struct DevicePool(Arc<Shared>);

struct Shared {
    device: Device,
    node: Box<dyn Node>,
    /// Waits for the device that were begun, numbered from 1, and the highest one that has ended.
    begun: AtomicU64,
    ended: AtomicU64,
    shelf: Shelf<Idle>,
}

/// The order is that in which they are given up: first the device's address.
struct Memory {
    imported: Imported,
    buffer: Buffer,
}

struct Idle {
    memory: Memory,
    /// Waits that had begun when it came back.
    since: u64,
}

/// Memory that its holder alone has, until it is dropped.
pub struct DeviceBlock {
    memory: Option<Memory>,
    pool: Arc<Shared>,
}

impl DevicePool {
    /// An empty pool of memory of `node` for `device`, which keeps up to `keep` bytes of what comes
    /// back.
    pub fn new(device: Device, node: Box<dyn Node>, keep: u64) -> DevicePool {
        DevicePool(Arc::new(Shared {
            device,
            node,
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            shelf: Shelf::new(keep),
        }))
    }

    /// The size that a block for `len` bytes has: the next power of two, at least a page. `None` if
    /// there is none.
    pub fn class(len: usize) -> Option<usize> {
        len.max(page_size() as usize).checked_next_power_of_two()
    }

    /// A block of the class of `len`, at a page. What it holds is unspecified. May wait for the device.
    ///
    /// # Errors
    /// If the node has no memory, or the device does not take it.
    pub fn take(&self, len: usize) -> Result<DeviceBlock, Error> {
        let shared = &self.0;
        let class = DevicePool::class(len).ok_or(std::io::ErrorKind::OutOfMemory);
        let class = class.map_err(Error::os("make memory for a device"))?;
        let memory = match shared.shelf.oldest(class) {
            Some(Idle { memory, since }) => {
                shared.wait(since)?;
                memory
            }
            None => shared.shelf.make(|| shared.make(class))?.memory,
        };
        Ok(DeviceBlock { memory: Some(memory), pool: shared.clone() })
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Where its memory comes from, in words.
    pub fn node(&self) -> String {
        self.0.node.name()
    }

    /// The most bytes that are kept.
    pub fn keeps(&self) -> u64 {
        self.0.shelf.keeps()
    }

    /// Bytes that are kept now.
    pub fn cached(&self) -> u64 {
        self.0.shelf.cached()
    }

    /// Frees what is kept, and keeps nothing from now on. Blocks in use stay as they are.
    pub fn close(&self) {
        self.0.shelf.close();
    }
}

impl Keep for Idle {
    fn size(&self) -> usize {
        self.memory.buffer.len()
    }
}

impl Shared {
    fn make(&self, class: usize) -> Result<Idle, Error> {
        let buffer = self.node.create(class)?;
        let imported = self.device.import(buffer.fd(), class)?;
        Ok(Idle { memory: Memory { imported, buffer }, since: 0 })
    }

    /// Waits for what the device was given before the wait number `since` + 1 began.
    fn wait(&self, since: u64) -> Result<(), Error> {
        if self.ended.load(Ordering::Acquire) > since {
            return Ok(());
        }
        let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
        self.device.synchronize()?;
        self.ended.fetch_max(number, Ordering::AcqRel);
        Ok(())
    }

    /// Keeps a block, or frees it.
    fn give_back(&self, memory: Memory) {
        // Waits that begin from here on are for what used it, too.
        let since = self.begun.load(Ordering::Acquire);
        self.shelf.put(Idle { memory, since });
    }
}

impl DeviceBlock {
    /// Its size, that of its class.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.memory.as_ref().map_or(0, |m| m.buffer.len())
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.pool.device
    }

    /// Its address on the device.
    pub fn device_address(&self) -> usize {
        self.memory.as_ref().map_or(0, |m| m.imported.at())
    }

    /// Its bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.memory.as_mut().map_or(&mut [], |m| m.buffer.bytes_mut())
    }

    /// Says that it is filled, before a device is told of it.
    pub fn filled(&mut self) {
        if let Some(memory) = &mut self.memory {
            memory.buffer.filled();
        }
    }
}

impl Drop for DeviceBlock {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.give_back(memory);
        }
    }
}
