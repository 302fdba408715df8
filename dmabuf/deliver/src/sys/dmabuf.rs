//! The calls that every dma-buf answers (linux/dma-buf.h).

use std::ffi::{CStr, c_int};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

/// Not START but END of an access.
pub(crate) const END: u64 = 4;

#[repr(C)]
pub(super) struct Sync {
    flags: u64,
}

#[repr(C)]
pub(super) struct SyncFile {
    flags: u32,
    fd: i32,
}

nix::ioctl_write_ptr!(dma_buf_sync, b'b', 0, Sync);
nix::ioctl_readwrite!(dma_buf_export_sync_file, b'b', 2, SyncFile);
nix::ioctl_write_ptr!(dma_buf_import_sync_file, b'b', 3, SyncFile);

pub(crate) fn sync(fd: impl AsFd, flags: u64) -> Result<(), Errno> {
    let arg = Sync { flags };
    // SAFETY: the argument is laid out as the kernel's and outlives the call.
    unsafe { dma_buf_sync(fd.as_fd().as_raw_fd(), &arg) }.map(drop)
}

pub(crate) fn set_name(fd: impl AsFd, name: &CStr) -> Result<(), Errno> {
    // The argument is the string itself, and not, as the number says, a pointer to its address.
    const REQUEST: libc::c_ulong = nix::request_code_write!(b'b', 1, size_of::<u64>());
    // SAFETY: the name is a NUL-terminated string that outlives the call.
    let done = unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), REQUEST as _, name.as_ptr()) };
    Errno::result(done).map(drop)
}

pub(crate) fn export_sync_file(fd: impl AsFd, flags: u32) -> Result<OwnedFd, Errno> {
    let mut arg = SyncFile { flags, fd: -1 };
    // SAFETY: the argument is laid out as the kernel's and outlives the call.
    unsafe { dma_buf_export_sync_file(fd.as_fd().as_raw_fd(), &mut arg) }?;
    // SAFETY: the call succeeded, so it has put a new descriptor there.
    Ok(unsafe { super::owned(arg.fd) })
}

pub(crate) fn import_sync_file(fd: impl AsFd, flags: u32, file: impl AsFd) -> Result<(), Errno> {
    let arg = SyncFile { flags, fd: file.as_fd().as_raw_fd() };
    // SAFETY: the argument is laid out as the kernel's and outlives the call.
    unsafe { dma_buf_import_sync_file(fd.as_fd().as_raw_fd(), &arg) }.map(drop)
}

/// A shared mapping whose bytes a device or another process may change at any time: so it is
/// copied from and to, and never lent as a slice.
pub(crate) struct Shared(MmapRaw);

impl Shared {
    pub(crate) fn new(fd: impl AsFd, len: usize) -> std::io::Result<Shared> {
        let fd: c_int = fd.as_fd().as_raw_fd();
        Ok(Shared(MmapOptions::new().len(len).map_raw(fd)?))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    /// Whether `len` bytes from `at` on were inside and have been copied to `into`.
    pub(crate) fn read(&self, at: usize, into: &mut [u8]) -> bool {
        let inside = at.checked_add(into.len()).is_some_and(|end| end <= self.len());
        if inside {
            // SAFETY: inside of the mapping, as just checked; `into` is memory of its own.
            unsafe {
                std::ptr::copy_nonoverlapping(self.as_ptr().add(at), into.as_mut_ptr(), into.len());
            }
        }
        inside
    }

    /// As [`read`](Self::read), the other way.
    pub(crate) fn write(&self, at: usize, from: &[u8]) -> bool {
        let inside = at.checked_add(from.len()).is_some_and(|end| end <= self.len());
        if inside {
            // SAFETY: inside of the mapping, which is writable; `from` is memory of its own.
            unsafe {
                std::ptr::copy_nonoverlapping(from.as_ptr(), self.as_ptr().add(at), from.len());
            }
        }
        inside
    }
}
