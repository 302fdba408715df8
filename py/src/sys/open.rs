use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Opens a file to be read. Unlike `File::open`, it does not begin again when a signal comes: its
/// handler is Python's, and cannot run before this has returned.
///
/// # Errors
/// If it cannot be opened; of the kind `Interrupted` if a signal came.
pub fn open(path: &Path) -> io::Result<File> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: the path ends in a zero byte, and lives through the call.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDONLY | libc::O_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made it for us.
    Ok(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))
}
