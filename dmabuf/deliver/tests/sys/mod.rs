//! What the tests need `unsafe` for.
#![allow(unsafe_code, dead_code, clippy::unwrap_used)]

use std::fs::OpenOptions;
use std::os::fd::{AsFd, AsRawFd, FromRawFd as _, OwnedFd, RawFd};
use std::path::Path;

use memmap2::{MmapOptions, MmapRaw};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

// drm/vgem_drm.h
#[repr(C)]
pub struct Attach {
    handle: u32,
    flags: u32,
    out_fence: u32,
    pad: u32,
}

#[repr(C)]
pub struct Signal {
    fence: u32,
    flags: u32,
}

nix::ioctl_readwrite!(vgem_fence_attach, b'd', 0x41, Attach);
nix::ioctl_write_ptr!(vgem_fence_signal, b'd', 0x42, Signal);

/// Pretends that a device reads, or writes, the buffer.
pub fn attach_fence(vgem: impl AsFd, handle: u32, write: bool) -> u32 {
    let mut arg = Attach { handle, flags: write.into(), out_fence: 0, pad: 0 };
    // SAFETY: the argument is laid out as the kernel's and outlives the call.
    unsafe { vgem_fence_attach(vgem.as_fd().as_raw_fd(), &mut arg) }.unwrap();
    arg.out_fence
}

/// The device has done.
pub fn signal_fence(vgem: impl AsFd, fence: u32) {
    let arg = Signal { fence, flags: 0 };
    // SAFETY: the argument is laid out as the kernel's and outlives the call.
    unsafe { vgem_fence_signal(vgem.as_fd().as_raw_fd(), &arg) }.unwrap();
}

pub fn readable(file: impl AsFd) -> bool {
    let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
    poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
}

/// A PCI device's memory.
pub struct Resource(MmapRaw);

impl Resource {
    pub fn map(path: &Path) -> Resource {
        let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
        let len = file.metadata().unwrap().len() as usize;
        Resource(MmapOptions::new().len(len).map_raw(&file).unwrap())
    }

    pub fn read(&self, len: usize) -> Vec<u8> {
        assert!(len <= self.0.len());
        // SAFETY: inside of the mapping; each byte is read once, as device memory is to be.
        (0..len).map(|at| unsafe { self.0.as_ptr().add(at).read_volatile() }).collect()
    }
}

/// A shared mapping of a file.
pub struct Shared(MmapRaw);

impl Shared {
    pub fn new(file: impl AsFd, len: usize) -> Shared {
        Shared(MmapOptions::new().len(len).map_raw(file.as_fd().as_raw_fd()).unwrap())
    }

    pub fn read_only(file: impl AsFd, len: usize) -> Shared {
        Shared(MmapOptions::new().len(len).map_raw_read_only(file.as_fd().as_raw_fd()).unwrap())
    }

    pub fn as_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.0.len());
        // SAFETY: inside of the mapping; others may write it meanwhile, so bytes are read once.
        (at..at + len).map(|at| unsafe { self.0.as_ptr().add(at).read_volatile() }).collect()
    }
}

/// Reads a byte of a mapping.
pub fn touch(at: *const u8) {
    // SAFETY: the callers pass places inside of mappings that they have.
    unsafe { at.read_volatile() };
}

/// A descriptor that has just been received.
pub fn own(fd: RawFd) -> OwnedFd {
    // SAFETY: the kernel made it for us, and nobody else took it.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
