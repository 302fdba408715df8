use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::arena::Shared;
use crate::backing::Memory;

/// What both kinds of handle hold. Dropping it gives the memory back to the arena.
pub(crate) struct Lent {
    pub(crate) id: u64,
    pub(crate) label: Arc<str>,
    memory: Option<Memory>,
    /// A [`Shown`]; it only grows.
    shown: AtomicU8,
    arena: Arc<Shared>,
}

/// Who besides this process may have a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Shown {
    /// Nobody.
    Inside,
    /// Those who promise to keep nothing of it when they give it back.
    Lent,
    /// Readers who promise nothing.
    Exposed,
}

impl Drop for Lent {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let shown = match self.shown.load(Ordering::Acquire) {
                0 => Shown::Inside,
                1 => Shown::Lent,
                _ => Shown::Exposed,
            };
            self.arena.give_back(self.id, memory, shown);
        }
    }
}

/// A region that is being filled: this handle is the only access to it.
///
/// There are two ways to fill one, which may be mixed: through a [mapping](Self::bytes_mut), where
/// several threads fill it or it is filled again and again, and by [writing](Self::write_at) its
/// file, which for new memory is faster, for the kernel need not clear pages that are written as a
/// whole. What it holds at first is unspecified (zeros, or an earlier region's bytes).
pub struct RegionMut(Lent);

impl RegionMut {
    pub(crate) fn new(id: u64, label: Arc<str>, memory: Memory, arena: Arc<Shared>) -> Self {
        RegionMut(Lent { id, label, memory: Some(memory), shown: AtomicU8::new(0), arena })
    }

    fn memory(&mut self) -> io::Result<&mut Memory> {
        // The memory leaves only when the handle is dropped.
        self.0.memory.as_mut().ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// Its length in bytes, at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.memory.as_ref().map_or(0, Memory::len)
    }

    /// Whether its memory is new, so that the kernel has yet to make its pages. Once they are there a
    /// mapping is the way to fill them.
    pub fn is_new(&self) -> bool {
        self.0.memory.as_ref().is_some_and(Memory::is_new)
    }

    /// The region's bytes, in a mapping that is made the first time.
    ///
    /// # Errors
    /// If the system has no memory, or no room for another mapping.
    pub fn bytes_mut(&mut self) -> io::Result<&mut [u8]> {
        self.memory()?.bytes_mut()
    }

    /// Writes `bytes` to the region's file, from byte `at` on.
    ///
    /// # Errors
    /// `InvalidInput` if they do not lie inside of the region; or if the system has no memory.
    pub fn write_at(&mut self, bytes: &[u8], at: u64) -> io::Result<()> {
        self.memory()?.write_at(bytes, at)
    }

    /// The region's file, open for writing inside of its length.
    ///
    /// # Errors
    /// None that happens.
    pub fn file(&mut self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.memory()?.file.as_fd())
    }

    /// Ends writing. From here on the bytes never change.
    pub fn freeze(self) -> Region {
        Region(Arc::new(self.0))
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
        self.0.shown.fetch_max(Shown::Exposed as u8, Ordering::AcqRel);
        match &self.0.memory {
            Some(m) => m.file.as_fd(),
            // The memory leaves only when the last handle is dropped.
            None => unreachable!("a region without memory"),
        }
    }

    /// The file behind the region, opened anew for one process outside that will say when it has
    /// done with it. Nobody can write through it, nor through what is opened by way of it.
    ///
    /// Keep a handle until that process says so. It promises that it then has no descriptor and no
    /// mapping of the file, nor its pages in a pipe, a socket or a device. So once all handles are gone
    /// and the kernel shows no other open description or mapping either, the region is filled
    /// again. If the promise is not given, because the process died, [`expose`](Self::expose) it.
    ///
    /// # Errors
    /// If the system gives no descriptor, or the file cannot be made safe from writing.
    pub fn lend(&self) -> io::Result<OwnedFd> {
        self.0.shown.fetch_max(Shown::Lent as u8, Ordering::AcqRel);
        match &self.0.memory {
            Some(memory) => self.0.arena.with_descriptor(|| memory.lend()),
            None => Err(io::ErrorKind::Other.into()),
        }
    }

    /// The memfd behind the region, for a dma-buf of its pages; `None` if it is another kind of file.
    ///
    /// Marks the region as exposed, as [`expose`](Self::expose) does. Whoever has the dma-buf can write
    /// the pages. Keep a handle as long as it is in use: the kernel does not tell of it otherwise.
    ///
    /// # Errors
    /// If the file cannot be sealed.
    pub fn memfd(&self) -> io::Result<Option<BorrowedFd<'_>>> {
        self.expose();
        self.0.memory.as_ref().map_or(Ok(None), Memory::memfd)
    }

    /// What the region was allocated for.
    pub fn label(&self) -> &str {
        &self.0.label
    }

    /// Its length in bytes, at least 1.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.memory.as_ref().map_or(0, Memory::len)
    }

    /// Its bytes, in a mapping that is made the first time.
    ///
    /// # Errors
    /// If the system has no room for another mapping.
    pub fn bytes(&self) -> io::Result<&[u8]> {
        match &self.0.memory {
            Some(memory) => memory.bytes(),
            None => Err(io::ErrorKind::Other.into()),
        }
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({}, {} bytes)", self.0.label, self.len())
    }
}
