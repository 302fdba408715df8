//! What pools keep of the memory that came back, in size classes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, TryLockError};

/// One class per power of two.
const CLASSES: usize = usize::BITS as usize;
/// How often a lock is tried.
const TRIES: u32 = 64;

/// Memory that a [`Shelf`] can keep.
pub trait Keep {
    /// Its bytes, a power of two.
    fn size(&self) -> usize;
}

/// Keeps up to so many bytes of memory that came back, to be used again.
///
/// Never waits for long: after a `fork` its lock may be held by a thread that does not exist in the
/// child, which then does without what is kept; and a tensor's deleter may run anywhere.
pub struct Shelf<M> {
    keep: u64,
    closed: AtomicBool,
    cached: AtomicU64,
    /// By class, oldest first.
    idle: Mutex<Vec<VecDeque<M>>>,
}

impl<M: Keep> Shelf<M> {
    /// An empty one that keeps up to `keep` bytes.
    pub fn new(keep: u64) -> Shelf<M> {
        Shelf {
            keep,
            closed: AtomicBool::new(false),
            cached: AtomicU64::new(0),
            idle: Mutex::new((0..CLASSES).map(|_| VecDeque::new()).collect()),
        }
    }

    /// What came back last of those that have `class` bytes.
    pub fn newest(&self, class: usize) -> Option<M> {
        self.take(class, VecDeque::pop_back)
    }

    /// What came back first of those that have `class` bytes.
    pub fn oldest(&self, class: usize) -> Option<M> {
        self.take(class, VecDeque::pop_front)
    }

    fn take(&self, class: usize, pop: impl Fn(&mut VecDeque<M>) -> Option<M>) -> Option<M> {
        let memory = pop(&mut self.lock()?[slot(class)])?;
        self.cached.fetch_sub(class as u64, Ordering::Relaxed);
        Some(memory)
    }

    /// Makes memory. If that fails, what is kept for other sizes may be what is missing: it is freed,
    /// and `make` called again.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn make<E>(&self, make: impl Fn() -> Result<M, E>) -> Result<M, E> {
        make().or_else(|e| if self.clear() == 0 { Err(e) } else { make() })
    }

    /// Keeps what came back, if need be in the place of other sizes, or frees it.
    pub fn put(&self, memory: M) {
        let len = memory.size() as u64;
        if len > self.keep || self.closed.load(Ordering::Relaxed) {
            return;
        }
        // Freed after the lock is released: that takes milliseconds, or waits for a device.
        let mut freed = Vec::new();
        let Some(mut idle) = self.lock() else { return };
        let mut used = self.cached.load(Ordering::Relaxed);
        let own = slot(memory.size());
        for other in (0..CLASSES).filter(|other| *other != own) {
            while used + len > self.keep
                && let Some(old) = idle[other].pop_front()
            {
                used -= old.size() as u64;
                self.cached.fetch_sub(old.size() as u64, Ordering::Relaxed);
                freed.push(old);
            }
        }
        if used + len <= self.keep {
            self.cached.fetch_add(len, Ordering::Relaxed);
            idle[own].push_back(memory);
        } else {
            freed.push(memory);
        }
        drop(idle);
        drop(freed);
    }

    /// The most bytes that are kept.
    pub fn keeps(&self) -> u64 {
        self.keep
    }

    /// Bytes that are kept now.
    pub fn cached(&self) -> u64 {
        self.cached.load(Ordering::Relaxed)
    }

    /// Frees what is kept, and keeps nothing from now on.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        self.clear();
    }

    fn clear(&self) -> u64 {
        let freed: Vec<M> = match self.lock() {
            Some(mut idle) => idle.iter_mut().flat_map(std::mem::take).collect(),
            None => Vec::new(),
        };
        let bytes = freed.iter().map(|memory| memory.size() as u64).sum();
        self.cached.fetch_sub(bytes, Ordering::Relaxed);
        bytes
    }

    fn lock(&self) -> Option<MutexGuard<'_, Vec<VecDeque<M>>>> {
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
}

fn slot(class: usize) -> usize {
    class.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// So many bytes, and which.
    #[derive(Debug, PartialEq)]
    struct Mark(usize, u32);

    impl Keep for Mark {
        fn size(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn the_newest_and_the_oldest_of_a_class_are_told_apart() {
        let shelf = Shelf::new(1024);
        (0..3).for_each(|n| shelf.put(Mark(64, n)));
        shelf.put(Mark(128, 3));
        assert_eq!(shelf.cached(), 3 * 64 + 128);
        assert_eq!(shelf.newest(64), Some(Mark(64, 2)));
        assert_eq!(shelf.oldest(64), Some(Mark(64, 0)));
        assert_eq!(shelf.newest(256), None);
        assert_eq!(shelf.cached(), 64 + 128);
    }

    #[test]
    fn what_came_back_first_makes_room_for_other_sizes() {
        let shelf = Shelf::new(256);
        (0..4).for_each(|n| shelf.put(Mark(64, n)));
        shelf.put(Mark(64, 4));
        assert_eq!(shelf.cached(), 256, "its own class makes no room");
        shelf.put(Mark(128, 5));
        assert_eq!(shelf.cached(), 256);
        assert_eq!(shelf.oldest(64), Some(Mark(64, 2)));
        shelf.put(Mark(512, 6));
        assert_eq!(shelf.oldest(512), None, "larger than all that may be kept");
        assert_eq!(shelf.cached(), 64 + 128);
    }

    #[test]
    fn making_is_tried_again_if_anything_was_freed() {
        let shelf = Shelf::new(256);
        let calls = Cell::new(0);
        let make = || {
            calls.set(calls.get() + 1);
            if shelf.cached() == 0 && calls.get() == 2 { Ok(Mark(128, 1)) } else { Err("none") }
        };
        shelf.put(Mark(64, 0));
        assert_eq!(shelf.make(make), Ok(Mark(128, 1)));
        assert_eq!(shelf.make(make), Err("none"));
        assert_eq!(calls.get(), 3, "nothing was kept, so nothing is tried again");
    }

    #[test]
    fn a_lock_that_is_held_for_ever_costs_what_is_kept_and_nothing_else() {
        let shelf = Shelf::new(1 << 20);
        shelf.put(Mark(64, 0));
        let held = shelf.idle.lock().unwrap();
        assert_eq!(shelf.newest(64), None);
        shelf.put(Mark(64, 1));
        drop(held);
        assert_eq!(shelf.cached(), 64);
        shelf.close();
        shelf.put(Mark(64, 2));
        assert_eq!(shelf.cached(), 0);
    }
}
