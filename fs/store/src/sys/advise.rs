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

const HUGE_PAGE: usize = 2 << 20;

/// Has the C library keep memory of some MiB that is freed, for the next time: otherwise the buffers
/// that pages of Parquet are decompressed into are new ones each time, and half of the time goes into
/// page faults. For programs of our own; other people's set their allocator up as they like.
pub fn keep_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: only numbers of the allocator are set.
    unsafe {
        // Larger ones are mapped for themselves, and given back at once.
        libc::mallopt(libc::M_MMAP_THRESHOLD, HUGE_PAGE as libc::c_int);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 4 * HUGE_PAGE as libc::c_int);
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
