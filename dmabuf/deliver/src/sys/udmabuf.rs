//! The two calls of `/dev/udmabuf` (linux/udmabuf.h).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;

use crate::udmabuf::Range;

const CLOEXEC: u32 = 1;

#[repr(C)]
struct Create {
    memfd: u32,
    flags: u32,
    offset: u64,
    size: u64,
}

/// The head of a list; its items follow it in memory.
#[repr(C)]
pub(super) struct CreateList {
    flags: u32,
    count: u32,
}

nix::ioctl_write_ptr!(udmabuf_create, b'u', 0x42, Create);
nix::ioctl_write_ptr!(udmabuf_create_list, b'u', 0x43, CreateList);

fn number(fd: BorrowedFd<'_>) -> u32 {
    // A borrowed descriptor is never negative.
    fd.as_raw_fd().unsigned_abs()
}

pub(crate) fn create(
    device: impl AsFd,
    memfd: BorrowedFd<'_>,
    offset: u64,
    size: u64,
) -> Result<OwnedFd, Errno> {
    let arg = Create { memfd: number(memfd), flags: CLOEXEC, offset, size };
    // SAFETY: the argument is laid out as the kernel's and outlives the call, whose answer is a new
    // descriptor.
    unsafe { udmabuf_create(device.as_fd().as_raw_fd(), &arg).map(|fd| super::owned(fd)) }
}

pub(crate) fn create_list(device: impl AsFd, ranges: &[Range<'_>]) -> Result<OwnedFd, Errno> {
    // Two numbers of 32 bits, then for each range {memfd, padding} and two numbers of 64.
    let pair = |low: u32, high: u32| {
        let ([a, b, c, d], [e, f, g, h]) = (low.to_ne_bytes(), high.to_ne_bytes());
        u64::from_ne_bytes([a, b, c, d, e, f, g, h])
    };
    let count = u32::try_from(ranges.len()).map_err(|_| Errno::E2BIG)?;
    let mut words = Vec::with_capacity(1 + 3 * ranges.len());
    words.push(pair(CLOEXEC, count));
    for range in ranges {
        words.extend([pair(number(range.memfd), 0), range.offset, range.len]);
    }
    // SAFETY: a head and `count` items as the kernel lays them out, in memory that outlives the
    // call, whose answer is a new descriptor.
    unsafe {
        udmabuf_create_list(device.as_fd().as_raw_fd(), words.as_ptr().cast::<CreateList>())
            .map(|fd| super::owned(fd))
    }
}
