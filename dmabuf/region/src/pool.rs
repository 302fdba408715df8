//! Memory for batches that stay in this process: private, without descriptors, in size classes.
//!
//! [`Arena`](crate::Arena)'s regions are files, for others to map. Memory that is handed to this
//! process's own tensors must not be: a descriptor each would run out, and a child made by `fork`
//! would share the pages with a pool that fills them again. Private pages are copied on write.

use std::io;
use std::sync::Arc;

use memmap2::{Advice, MmapMut, MmapOptions};

use crate::backing::{HUGE_FROM, PAGE};
use crate::shelf::{Keep, Shelf};
use crate::sys::Heap;

/// Blocks of this size and more are mappings of their own, the others come from the heap.
const MAPPED_FROM: usize = 128 << 10;

/// A source of [`Block`]s that keeps some of those that come back. Cloning shares it.
#[derive(Clone)]
pub struct Pool(Arc<Shelf<Memory>>);

enum Memory {
    Heap(Heap),
    Map(MmapMut),
}

/// Memory that its holder alone has, until it is dropped.
pub struct Block {
    memory: Option<Memory>,
    pool: Arc<Shelf<Memory>>,
}

impl Pool {
    /// An empty pool that keeps up to `keep` bytes of what comes back.
    pub fn new(keep: u64) -> Pool {
        Pool(Arc::new(Shelf::new(keep)))
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
        // The newest: it is the likeliest to be in the processor's cache.
        let memory = match self.0.newest(class) {
            Some(memory) => memory,
            None => self.0.make(|| Memory::new(class))?,
        };
        Ok(Block { memory: Some(memory), pool: self.0.clone() })
    }

    /// The most bytes that are kept.
    pub fn keeps(&self) -> u64 {
        self.0.keeps()
    }

    /// Bytes that are kept now.
    pub fn cached(&self) -> u64 {
        self.0.cached()
    }

    /// Frees what is kept, and keeps nothing from now on. Blocks in use stay as they are.
    pub fn close(&self) {
        self.0.close();
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
}

impl Keep for Memory {
    fn size(&self) -> usize {
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
        self.memory.as_ref().map_or(0, Memory::size)
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
            self.pool.put(memory);
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
