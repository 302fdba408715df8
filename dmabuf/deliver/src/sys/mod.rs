//! The crate's `unsafe` code.
#![allow(unsafe_code)]

pub(crate) mod dmabuf;
pub(crate) mod socket;
pub(crate) mod udmabuf;

use std::ffi::c_int;
use std::os::fd::{FromRawFd, OwnedFd};

/// A descriptor that the kernel has just made for us.
///
/// # Safety
/// `fd` is the answer of a call that makes descriptors, and nobody else has taken it.
unsafe fn owned(fd: c_int) -> OwnedFd {
    // SAFETY: as the caller promises.
    unsafe { OwnedFd::from_raw_fd(fd) }
}
