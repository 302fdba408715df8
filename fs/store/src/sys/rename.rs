use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

/// Renames the folder `from` to `to`, and fails with `AlreadyExists` if there is a `to`.
///
/// Where the filesystem cannot do that in one step (some network ones), a plain rename follows a
/// look: that still never replaces a folder with something in it.
pub(crate) fn rename_without_replacing(from: &Path, to: &Path) -> io::Result<()> {
    let c = |p: &Path| CString::new(p.as_os_str().as_bytes()).map_err(io::Error::from);
    let (cfrom, cto) = (c(from)?, c(to)?);
    // SAFETY: renameat2 takes two descriptors, two NUL-terminated paths that live through the call
    // and an unsigned flag word.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            cfrom.as_ptr(),
            libc::AT_FDCWD,
            cto.as_ptr(),
            libc::RENAME_NOREPLACE,
        )
    };
    if rc == 0 {
        return Ok(());
    }
    let e = io::Error::last_os_error();
    if !matches!(e.raw_os_error(), Some(libc::EINVAL | libc::ENOSYS | libc::EOPNOTSUPP)) {
        return Err(e);
    }
    if to.symlink_metadata().is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    std::fs::rename(from, to).map_err(|e| match e.raw_os_error() {
        Some(libc::ENOTEMPTY | libc::EEXIST | libc::ENOTDIR) => io::ErrorKind::AlreadyExists.into(),
        _ => e,
    })
}
