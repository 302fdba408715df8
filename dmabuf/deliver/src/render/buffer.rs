use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use crate::dmabuf::{Access, DmaBuf};
use crate::sys::render::Shared;

/// Memory that this process fills and a device reads, exported under a descriptor.
pub struct Buffer {
    fd: Exported,
    map: Shared,
    filling: bool,
}

enum Exported {
    DmaBuf(DmaBuf),
    /// A stand-in's, which no device of the kernel's knows.
    Plain(OwnedFd),
}

impl Buffer {
    pub(super) fn new(dma_buf: DmaBuf, map: Shared) -> Buffer {
        Buffer { fd: Exported::DmaBuf(dma_buf), map, filling: false }
    }

    pub(super) fn plain(fd: OwnedFd, map: Shared) -> Buffer {
        Buffer { fd: Exported::Plain(fd), map, filling: false }
    }

    /// The descriptor, a dma-buf's but for the stand-in.
    pub fn fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Exported::DmaBuf(dma_buf) => dma_buf.fd(),
            Exported::Plain(fd) => fd.as_fd(),
        }
    }

    /// The dma-buf, which a stand-in has not.
    pub fn dma_buf(&self) -> Option<&DmaBuf> {
        match &self.fd {
            Exported::DmaBuf(dma_buf) => Some(dma_buf),
            Exported::Plain(_) => None,
        }
    }

    /// Its bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Its bytes, to be filled. Whoever has it alone must not have given a device work with it that
    /// is not done.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        if !self.filling
            && let Exported::DmaBuf(dma_buf) = &self.fd
        {
            // Drivers whose memory is always coherent have nothing to do, and some do not know it.
            let _ = dma_buf.sync_start(Access::Write);
        }
        self.filling = true;
        self.map.bytes_mut()
    }

    /// Ends filling: what was written is there for devices.
    pub fn filled(&mut self) {
        if self.filling
            && let Exported::DmaBuf(dma_buf) = &self.fd
        {
            let _ = dma_buf.sync_end(Access::Write);
        }
        self.filling = false;
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len())
    }
}
