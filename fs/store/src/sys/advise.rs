use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::sync::OnceLock;

/// Ranges per call, the kernel's limit on such lists.
const MOST: usize = 1024;

/// Asks the kernel to read ranges of memory in, address and length each, in as few calls as it
/// allows. Only a hint: errors are of no interest.
pub(super) fn will_need(ranges: &[(usize, usize)]) {
    for some in ranges.chunks(MOST) {
        if !at_once(some) {
            for (start, len) in some {
                // SAFETY: this advice changes no contents; a range that is not mapped is refused.
                unsafe { libc::madvise(*start as *mut libc::c_void, *len, libc::MADV_WILLNEED) };
            }
        }
    }
}

/// Has the part of `memory` that is not filled yet come in huge pages, where the machine allows. Only a
/// hint, and only for whole huge pages in it.
pub(crate) fn huge<T>(memory: &mut Vec<T>) {
    const HUGE_PAGE: usize = 2 << 20;
    let spare = memory.spare_capacity_mut();
    let start = (spare.as_mut_ptr() as usize).next_multiple_of(HUGE_PAGE);
    let end = spare.as_mut_ptr() as usize + size_of_val(spare);
    let len = end.saturating_sub(start) / HUGE_PAGE * HUGE_PAGE;
    if len > 0 {
        // SAFETY: the range lies in memory that the vector has; the advice changes no contents.
        unsafe { libc::madvise(start as *mut libc::c_void, len, libc::MADV_HUGEPAGE) };
    }
}

/// One call for all of them (Linux 5.10), which takes a third of the time of many.
fn at_once(ranges: &[(usize, usize)]) -> bool {
    /// A descriptor of this process and its number: a fork is another process, with other memory.
    static SELF: OnceLock<Option<(OwnedFd, u32)>> = OnceLock::new();
    let own = SELF.get_or_init(|| {
        // SAFETY: takes two numbers.
        let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, libc::getpid(), 0) };
        let fd = i32::try_from(fd).ok().filter(|fd| *fd >= 0)?;
        // SAFETY: the kernel has just made this descriptor for us.
        Some((unsafe { OwnedFd::from_raw_fd(fd) }, std::process::id()))
    });
    let Some((fd, pid)) = own else { return false };
    if *pid != std::process::id() || ranges.len() < 2 {
        return false;
    }
    let list: Vec<libc::iovec> = ranges
        .iter()
        .map(|(start, len)| libc::iovec { iov_base: *start as *mut libc::c_void, iov_len: *len })
        .collect();
    // SAFETY: the list lives through the call; the advice changes no contents, and a range that is
    // not mapped is refused.
    let done = unsafe {
        libc::syscall(
            libc::SYS_process_madvise,
            fd.as_raw_fd(),
            list.as_ptr(),
            list.len(),
            libc::MADV_WILLNEED,
            0,
        )
    };
    done >= 0
}
