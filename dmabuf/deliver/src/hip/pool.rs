//! Memory for batches that the processor fills and a device reads.
//!
//! A consumer drops a tensor as soon as it has given the device the work that reads it, and not when
//! that work is done. So memory that comes back is filled again only after a wait for the device that
//! began later. The oldest is taken first, so that one wait serves all that has come back before it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use batchfs_region::page_size;

use super::device::{Device, Imported};
use crate::error::Error;
use crate::render::{Buffer, Node};

const CLASSES: usize = usize::BITS as usize;
/// How often a lock is tried.
const TRIES: u32 = 64;

/// A source of [`DeviceBlock`]s that keeps some of those that come back. Cloning shares it.
#[derive(Clone)]
pub struct DevicePool(Arc<Shared>);

struct Shared {
    device: Device,
    node: Box<dyn Node>,
    keep: u64,
    closed: AtomicBool,
    cached: AtomicU64,
    /// Waits for the device that were begun, numbered from 1, and the highest one that has ended.
    begun: AtomicU64,
    ended: AtomicU64,
    idle: Mutex<Vec<VecDeque<Idle>>>,
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
            keep,
            closed: AtomicBool::new(false),
            cached: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            idle: Mutex::new((0..CLASSES).map(|_| VecDeque::new()).collect()),
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
        let kept = shared.lock().and_then(|mut idle| idle[slot(class)].pop_front());
        let memory = match kept {
            Some(Idle { memory, since }) => {
                shared.cached.fetch_sub(class as u64, Ordering::Relaxed);
                shared.wait(since)?;
                memory
            }
            None => shared.make(class).or_else(|e| {
                // What is kept for other sizes may be what is missing.
                if shared.clear() == 0 { Err(e) } else { shared.make(class) }
            })?,
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
        self.0.keep
    }

    /// Bytes that are kept now.
    pub fn cached(&self) -> u64 {
        self.0.cached.load(Ordering::Relaxed)
    }

    /// Frees what is kept, and keeps nothing from now on. Blocks in use stay as they are.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::Relaxed);
        self.0.clear();
    }
}

fn slot(class: usize) -> usize {
    class.trailing_zeros() as usize
}

impl Shared {
    fn make(&self, class: usize) -> Result<Memory, Error> {
        let buffer = self.node.create(class)?;
        let imported = self.device.import(buffer.fd(), class)?;
        Ok(Memory { imported, buffer })
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

    /// The kept blocks, if nobody has them just now. Never waits for long: a deleter may run
    /// anywhere.
    fn lock(&self) -> Option<MutexGuard<'_, Vec<VecDeque<Idle>>>> {
        for tried in 0..TRIES {
            match self.idle.try_lock() {
                Ok(guard) => return Some(guard),
                // A queue is whole at each point where something could panic.
                Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
                Err(TryLockError::WouldBlock) if tried < TRIES / 2 => std::hint::spin_loop(),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }

    fn clear(&self) -> u64 {
        let freed: Vec<Idle> = match self.lock() {
            Some(mut idle) => idle.iter_mut().flat_map(std::mem::take).collect(),
            None => Vec::new(),
        };
        let bytes = freed.iter().map(|i| i.memory.buffer.len() as u64).sum();
        self.cached.fetch_sub(bytes, Ordering::Relaxed);
        bytes
    }

    /// Keeps a block, if need be in the place of blocks of other sizes, or frees it.
    fn give_back(&self, memory: Memory) {
        let len = memory.buffer.len() as u64;
        if len > self.keep || self.closed.load(Ordering::Relaxed) {
            return;
        }
        // Freed after the lock is released: that waits for the device.
        let mut freed = Vec::new();
        let Some(mut idle) = self.lock() else { return };
        let mut used = self.cached.load(Ordering::Relaxed);
        for other in (0..CLASSES).filter(|other| *other != slot(len as usize)) {
            while used + len > self.keep
                && let Some(old) = idle[other].pop_front()
            {
                let bytes = old.memory.buffer.len() as u64;
                used -= bytes;
                self.cached.fetch_sub(bytes, Ordering::Relaxed);
                freed.push(old.memory);
            }
        }
        if used + len <= self.keep {
            self.cached.fetch_add(len, Ordering::Relaxed);
            let since = self.begun.load(Ordering::Acquire);
            idle[slot(len as usize)].push_back(Idle { memory, since });
        } else {
            freed.push(memory);
        }
        drop(idle);
        drop(freed);
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
