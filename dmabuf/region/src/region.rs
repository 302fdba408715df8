use std::fmt;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::arena::Shared;
use crate::backing::Memory;

/// What both kinds of handle hold. Dropping it gives the memory back to the arena.
pub(crate) struct Lent {
    pub(crate) id: u64,
    pub(crate) label: Arc<str>,
    memory: Option<Memory>,
    exposed: AtomicBool,
    arena: Arc<Shared>,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.arena.give_back(self.id, memory, self.exposed.load(Ordering::Acquire));
        }
    }
}

/// A region that is being filled: this handle is the only access to it.
///
/// What it holds at first is unspecified (zeros, or an earlier region's bytes).
pub struct RegionMut(Lent);

impl RegionMut {
    pub(crate) fn new(id: u64, label: Arc<str>, memory: Memory, arena: Arc<Shared>) -> Self {
        RegionMut(Lent { id, label, memory: Some(memory), exposed: AtomicBool::new(false), arena })
    }

    /// Ends writing. From here on the bytes never change.
    pub fn freeze(self) -> Region {
        Region(Arc::new(self.0))
    }
}

impl Deref for RegionMut {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.memory.as_ref().map_or(&[], |m| m.map.bytes())
    }
}

impl DerefMut for RegionMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.0.memory.as_mut().map_or(&mut [], |m| m.map.bytes_mut())
    }
}

impl fmt::Debug for RegionMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionMut({}, {} bytes)", self.0.label, self.len())
    }
}

/// A filled region. Cloning shares it.
#[derive(Clone)]
pub struct Region(Arc<Lent>);

impl Region {
    /// The file behind the region, for processes outside: its first byte is the region's first,
    /// its length the region's.
    ///
    /// Marks the region as exposed: it is never filled again, and freed when the kernel shows no other
    /// open description or mapping of the file. Never hand out this descriptor itself, only
    /// files that are opened anew from it (as FUSE passthrough does): a duplicate is not seen.
    pub fn expose(&self) -> BorrowedFd<'_> {
        self.0.exposed.store(true, Ordering::Release);
        match &self.0.memory {
            Some(m) => m.file.as_fd(),
            // The memory leaves only when the last handle is dropped.
            None => unreachable!("a region without memory"),
        }
    }

    /// What the region was allocated for.
    pub fn label(&self) -> &str {
        &self.0.label
    }
}

impl Deref for Region {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.0.memory.as_ref().map_or(&[], |m| m.map.bytes())
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}, {} bytes)", self.0.label, self.len())
    }
}
