//! The one home of this program's `unsafe`: descriptors that came with the process.
#![allow(unsafe_code)]

use std::fs;
use std::os::fd::{FromRawFd as _, OwnedFd, RawFd};

/// Descriptors that this process was started with, but for the three standard ones.
///
/// To be made first of all, while the process has opened nothing itself.
pub struct Inherited(Vec<RawFd>);

impl Inherited {
    /// Lists them.
    pub fn find() -> Inherited {
        let Ok(all) = fs::read_dir("/proc/self/fd") else { return Inherited(Vec::new()) };
        let numbers: Vec<RawFd> = all
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .filter(|fd| *fd > 2)
            .collect();
        // The one that the folder was read through is closed by now.
        let open = |fd: &RawFd| fs::symlink_metadata(format!("/proc/self/fd/{fd}")).is_ok();
        Inherited(numbers.into_iter().filter(open).collect())
    }

    /// Closes them.
    pub fn close(self) {
        for fd in self.0 {
            // SAFETY: it was open before this process opened anything, and nothing here owns it: the
            // number is not given anew before it is closed, which is here, once.
            drop(unsafe { OwnedFd::from_raw_fd(fd) });
        }
    }
}
