use std::fs::File;
use std::os::fd::AsRawFd as _;

/// Has the kernel begin to write a range to the disk. Only a hint: what fails shows at the fsync.
pub(crate) fn start_writeback(file: &File, at: u64, len: u64) {
    // SAFETY: takes a descriptor that lives through the call, and numbers.
    unsafe {
        libc::sync_file_range(
            file.as_raw_fd(),
            at as libc::off64_t,
            len as libc::off64_t,
            libc::SYNC_FILE_RANGE_WRITE,
        )
    };
}
