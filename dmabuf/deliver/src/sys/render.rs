//! Calls of DRM nodes that make memory (drm/drm.h, drm/drm_mode.h, drm/amdgpu_drm.h), and its mapping.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use memmap2::{MmapOptions, MmapRaw};
use nix::errno::Errno;

const GTT: u64 = 2;
const CPU_ACCESS_REQUIRED: u64 = 1;
const PAGE: usize = 4096;

/// What is asked for; the answer, a handle, is in its first 4 bytes.
#[repr(C)]
pub(super) struct AmdgpuCreate {
    len: u64,
    alignment: u64,
    domains: u64,
    flags: u64,
}

/// A handle; the answer, an offset, is in its place.
#[repr(C)]
pub(super) struct AmdgpuMmap(u64);

#[repr(C)]
#[derive(Default)]
pub(super) struct DumbCreate {
    height: u32,
    width: u32,
    bits_per_pixel: u32,
    flags: u32,
    handle: u32,
    pitch: u32,
    size: u64,
}

#[repr(C)]
pub(super) struct DumbMap {
    handle: u32,
    pad: u32,
    offset: u64,
}

#[repr(C)]
pub(super) struct Close {
    handle: u32,
    pad: u32,
}

#[repr(C)]
pub(super) struct Prime {
    handle: u32,
    flags: u32,
    fd: i32,
}

nix::ioctl_readwrite!(amdgpu_gem_create, b'd', 0x40, AmdgpuCreate);
nix::ioctl_readwrite!(amdgpu_gem_mmap, b'd', 0x41, AmdgpuMmap);
nix::ioctl_readwrite!(mode_create_dumb, b'd', 0xb2, DumbCreate);
nix::ioctl_readwrite!(mode_map_dumb, b'd', 0xb3, DumbMap);
nix::ioctl_write_ptr!(gem_close, b'd', 0x09, Close);
nix::ioctl_readwrite!(prime_handle_to_fd, b'd', 0x2d, Prime);

/// A node's number for memory of its own, until it is dropped.
pub(crate) struct Handle<'a> {
    node: BorrowedFd<'a>,
    number: u32,
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        let arg = Close { handle: self.number, pad: 0 };
        // SAFETY: the argument is laid out as the kernel's and outlives the call.
        let _ = unsafe { gem_close(self.node.as_raw_fd(), &arg) };
    }
}

fn first_half(number: u64) -> u32 {
    let [a, b, c, d, ..] = number.to_ne_bytes();
    u32::from_ne_bytes([a, b, c, d])
}

/// Makes memory of the system's that the GPU has in its address space.
pub(crate) fn amdgpu_create(node: &impl AsFd, len: usize) -> Result<Handle<'_>, Errno> {
    let mut arg = AmdgpuCreate {
        len: len as u64,
        alignment: PAGE as u64,
        domains: GTT,
        flags: CPU_ACCESS_REQUIRED,
    };
    // SAFETY: the argument is laid out as the kernel's and outlives the call.
    unsafe { amdgpu_gem_create(node.as_fd().as_raw_fd(), &mut arg) }?;
    Ok(Handle { node: node.as_fd(), number: first_half(arg.len) })
}

/// Where in the node's file the memory is to be mapped from.
pub(crate) fn amdgpu_offset(node: &impl AsFd, handle: &Handle<'_>) -> Result<u64, Errno> {
    let [a, b, c, d] = handle.number.to_ne_bytes();
    let mut arg = AmdgpuMmap(u64::from_ne_bytes([a, b, c, d, 0, 0, 0, 0]));
    // SAFETY: the argument is laid out as the kernel's and outlives the call.
    unsafe { amdgpu_gem_mmap(node.as_fd().as_raw_fd(), &mut arg) }?;
    Ok(arg.0)
}

/// Makes a picture whose rows are a page each.
pub(crate) fn dumb_create(node: &impl AsFd, len: usize) -> Result<Handle<'_>, Errno> {
    let rows = u32::try_from(len.div_ceil(PAGE)).map_err(|_| Errno::EFBIG)?;
    let mut arg = DumbCreate {
        height: rows,
        width: PAGE as u32 / 4,
        bits_per_pixel: 32,
        ..DumbCreate::default()
    };
    // SAFETY: the argument is laid out as the kernel's and outlives the call.
    unsafe { mode_create_dumb(node.as_fd().as_raw_fd(), &mut arg) }?;
    let handle = Handle { node: node.as_fd(), number: arg.handle };
    if arg.size < len as u64 { Err(Errno::EINVAL) } else { Ok(handle) }
}

/// As [`amdgpu_offset`].
pub(crate) fn dumb_offset(node: &impl AsFd, handle: &Handle<'_>) -> Result<u64, Errno> {
    let mut arg = DumbMap { handle: handle.number, pad: 0, offset: 0 };
    // SAFETY: the argument is laid out as the kernel's and outlives the call.
    unsafe { mode_map_dumb(node.as_fd().as_raw_fd(), &mut arg) }?;
    Ok(arg.offset)
}

/// A dma-buf of the memory, readable and writable.
pub(crate) fn export(node: &impl AsFd, handle: &Handle<'_>) -> Result<OwnedFd, Errno> {
    let flags = (libc::O_CLOEXEC | libc::O_RDWR).unsigned_abs();
    let mut arg = Prime { handle: handle.number, flags, fd: -1 };
    // SAFETY: the argument is laid out as the kernel's and outlives the call.
    unsafe { prime_handle_to_fd(node.as_fd().as_raw_fd(), &mut arg) }?;
    // SAFETY: the call succeeded, so it has put a new descriptor there.
    Ok(unsafe { super::owned(arg.fd) })
}

/// A shared mapping of memory that a device sees, too.
pub(crate) struct Shared(MmapRaw);

impl Shared {
    pub(crate) fn new(file: &impl AsFd, offset: u64, len: usize) -> std::io::Result<Shared> {
        let fd = file.as_fd().as_raw_fd();
        Ok(Shared(MmapOptions::new().offset(offset).len(len).map_raw(fd)?))
    }

    pub(crate) fn read_only(file: impl AsFd, len: usize) -> std::io::Result<Shared> {
        let fd = file.as_fd().as_raw_fd();
        Ok(Shared(MmapOptions::new().len(len).map_raw_read_only(fd)?))
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Where byte `offset` is, or the end if it has fewer.
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        let offset = offset.min(self.len());
        // SAFETY: inside of the mapping, or at its end; a mapping is never at 0.
        unsafe { NonNull::new_unchecked(self.0.as_mut_ptr().add(offset)) }
    }

    /// Of one that was made by [`new`](Self::new).
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes are mapped writable until drop, and `&mut self` makes this the only
        // reference in this process. Devices write to it only when they are told to by a consumer, who
        // has it when nobody fills it any more.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr(), self.0.len()) }
    }

    /// A copy of its bytes.
    #[cfg(test)]
    pub(crate) fn to_vec(&self) -> Vec<u8> {
        // SAFETY: so many bytes are mapped readable until drop, and nobody writes to them in tests.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr(), self.0.len()) }.to_vec()
    }
}
