//! Memory for batches that stay in this process: private, without descriptors, in size classes.
//!
//! [`Arena`](crate::Arena)'s regions are files, for others to map. Memory that is handed to this
//! process's own tensors must not be: a descriptor each would run out, and a child made by `fork`
//! would share the pages with a pool that fills them again. Private pages are copied on write.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use memmap2::{Advice, MmapMut, MmapOptions};

use crate::backing::{HUGE_FROM, PAGE};
use crate::sys::Heap;

/// Blocks of this size and more are mappings of their own, the others come from the heap.
const MAPPED_FROM: usize = 128 << 10;
/// One class per power of two.
const CLASSES: usize = usize::BITS as usize;
/// How often a lock is tried.
const TRIES: u32 = 64;

/// A source of [`Block`]s that keeps some of those that come back. Cloning shares it.
#[derive(Clone)]
pub struct Pool(Arc<Shared>);

struct Shared {
    keep: u64,
    closed: AtomicBool,
    cached: AtomicU64,
    idle: Mutex<Vec<Vec<Memory>>>,
}

enum Memory {
    Heap(Heap),
    Map(MmapMut),
}

/// Memory that its holder alone has, until it is dropped.
pub struct Block {
    memory: Option<Memory>,
    pool: Arc<Shared>,
}

impl Pool {
    /// An empty pool that keeps up to `keep` bytes of what comes back.
    pub fn new(keep: u64) -> Pool {
        let idle = (0..CLASSES).map(|_| Vec::new()).collect();
        Pool(Arc::new(Shared {
            keep,
            closed: AtomicBool::new(false),
            cached: AtomicU64::new(0),
            idle: Mutex::new(idle),
        }))
    }

    /// The size that a block for `len` bytes has: the next power of two, at least 64. `None` if
    /// there is none.
    pub fn class(len: usize) -> Option<usize> {
        len.max(Heap::ALIGN).checked_next_power_of_two()
    }

    /// A block of the class of `len`. It begins at a multiple of 64, one of 128 KiB and more at a
    /// page. What it holds is unspecified.
    ///
    /// # Errors
    /// If the system has no memory.
    pub fn take(&self, len: usize) -> io::Result<Block> {
        let class = Pool::class(len).ok_or(io::ErrorKind::OutOfMemory)?;
        let kept = self.0.lock().and_then(|mut idle| idle[slot(class)].pop());
        let memory = match kept {
            Some(memory) => {
                self.0.cached.fetch_sub(class as u64, Ordering::Relaxed);
                memory
            }
            None => Memory::new(class).or_else(|e| {
                // What is kept for other sizes may be what is missing.
                if self.0.clear() == 0 { Err(e) } else { Memory::new(class) }
            })?,
        };
        Ok(Block { memory: Some(memory), pool: self.0.clone() })
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
    /// The kept blocks, if nobody has them just now. Never waits for long: after a `fork` the lock
    /// may be held by a thread that does not exist in the child, which then does without the pool.
    fn lock(&self) -> Option<MutexGuard<'_, Vec<Vec<Memory>>>> {
        for tried in 0..TRIES {
            match self.idle.try_lock() {
                Ok(guard) => return Some(guard),
                // A stack is whole at each point where something could panic.
                Err(TryLockError::Poisoned(guard)) => return Some(guard.into_inner()),
                Err(TryLockError::WouldBlock) if tried < TRIES / 2 => std::hint::spin_loop(),
                Err(TryLockError::WouldBlock) => std::thread::yield_now(),
            }
        }
        None
    }

    fn clear(&self) -> usize {
        let freed: Vec<Memory> = match self.lock() {
            Some(mut idle) => idle.iter_mut().flat_map(std::mem::take).collect(),
            None => Vec::new(),
        };
        let bytes: usize = freed.iter().map(Memory::len).sum();
        self.cached.fetch_sub(bytes as u64, Ordering::Relaxed);
        bytes
    }

    /// Keeps a block, if need be in the place of blocks of other sizes, or frees it.
    fn give_back(&self, memory: Memory) {
        let len = memory.len();
        if len as u64 > self.keep || self.closed.load(Ordering::Relaxed) {
            return;
        }
        // Freed after the lock is released: unmapping many pages takes milliseconds.
        let mut freed = Vec::new();
        let Some(mut idle) = self.lock() else { return };
        let mut used = self.cached.load(Ordering::Relaxed);
        for other in (0..CLASSES).filter(|other| *other != slot(len)) {
            while used + len as u64 > self.keep
                && let Some(old) = idle[other].pop()
            {
                used -= old.len() as u64;
                self.cached.fetch_sub(old.len() as u64, Ordering::Relaxed);
                freed.push(old);
            }
        }
        if used + len as u64 <= self.keep {
            self.cached.fetch_add(len as u64, Ordering::Relaxed);
            idle[slot(len)].push(memory);
        } else {
            freed.push(memory);
        }
        drop(idle);
        drop(freed);
    }
}

impl Memory {
    fn new(len: usize) -> io::Result<Memory> {
        if len < MAPPED_FROM {
            return Heap::new(len).map(Memory::Heap).ok_or(io::ErrorKind::OutOfMemory.into());
        }
        let map = MmapOptions::new().len(len).no_reserve_swap().map_anon()?;
        if len as u64 >= HUGE_FROM {
            // A kernel without huge pages refuses, which costs speed and nothing else.
            let _ = map.advise(Advice::HugePage);
        }
        Ok(Memory::Map(map))
    }

    fn len(&self) -> usize {
        match self {
            Memory::Heap(heap) => heap.bytes().len(),
            Memory::Map(map) => map.len(),
        }
    }
}

impl Block {
    /// Its size, that of its class.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.memory.as_ref().map_or(0, Memory::len)
    }

    /// What its address is a multiple of.
    pub fn alignment(&self) -> usize {
        match &self.memory {
            Some(Memory::Map(_)) => PAGE as usize,
            _ => Heap::ALIGN,
        }
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        match &self.memory {
            Some(Memory::Heap(heap)) => heap.bytes(),
            Some(Memory::Map(map)) => map,
            None => &[],
        }
    }

    /// Its bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.memory {
            Some(Memory::Heap(heap)) => heap.bytes_mut(),
            Some(Memory::Map(map)) => map,
            None => &mut [],
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.pool.give_back(memory);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_are_powers_of_two_and_blocks_are_aligned() {
        let pool = Pool::new(1 << 20);
        for (len, class, align) in [
            (0, 64, 64),
            (1, 64, 64),
            (65, 128, 64),
            (100_000, 131_072, 4096),
            (131_073, 262_144, 4096),
            (3 << 20, 4 << 20, 4096),
        ] {
            assert_eq!(Pool::class(len), Some(class));
            let mut block = pool.take(len).unwrap();
            assert_eq!((block.len(), block.alignment()), (class, align));
            block.bytes_mut().fill(7);
            assert_eq!(block.bytes().as_ptr() as usize % align, 0);
        }
        assert_eq!(Pool::class(usize::MAX), None);
        assert!(pool.take(usize::MAX).is_err());
    }

    #[test]
    fn what_comes_back_is_kept_up_to_the_limit() {
        let pool = Pool::new(1024);
        let mut block = pool.take(500).unwrap();
        block.bytes_mut()[0] = 9;
        let at = block.bytes().as_ptr();
        drop(block);
        assert_eq!(pool.cached(), 512);
        let again = pool.take(400).unwrap();
        assert_eq!((again.bytes().as_ptr(), again.bytes()[0]), (at, 9), "the same block");
        assert_eq!(pool.cached(), 0);

        let many: Vec<_> = (0..4).map(|_| pool.take(512).unwrap()).collect();
        drop((many, again));
        assert_eq!(pool.cached(), 1024, "no more than it may keep");
        drop(pool.take(1000).unwrap());
        assert_eq!(pool.cached(), 1024, "other sizes make room");
        drop(pool.take(2000).unwrap());
        assert_eq!(pool.cached(), 1024, "what is larger than all that may be kept is freed");
    }

    #[test]
    fn a_closed_pool_keeps_nothing_and_its_blocks_live_on() {
        let pool = Pool::new(1 << 20);
        let mut held = pool.take(200_000).unwrap();
        held.bytes_mut().fill(3);
        drop(pool.take(64).unwrap());
        pool.close();
        assert_eq!(pool.cached(), 0);
        assert!(held.bytes().iter().all(|b| *b == 3));
        drop(held);
        assert_eq!(pool.cached(), 0);
    }

    #[test]
    fn a_lock_that_is_held_for_ever_costs_the_pool_and_nothing_else() {
        let pool = Pool::new(1 << 20);
        drop(pool.take(64).unwrap());
        let held = pool.0.idle.lock().unwrap();
        drop(pool.take(64).unwrap());
        drop(held);
        assert_eq!(pool.cached(), 64);
    }

    #[test]
    fn threads_share_a_pool_and_no_block() {
        let pool = Pool::new(1 << 20);
        std::thread::scope(|scope| {
            for mark in 0..4u8 {
                let pool = pool.clone();
                scope.spawn(move || {
                    for len in (1..2000).map(|i| i * 37) {
                        let mut block = pool.take(len).unwrap();
                        block.bytes_mut().fill(mark);
                        assert!(block.bytes().iter().all(|b| *b == mark));
                    }
                });
            }
        });
        assert!(pool.cached() <= 1 << 20);
    }
}
