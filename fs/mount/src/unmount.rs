//! The end of a mount, from inside or outside of the process that serves it.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, umount2};

use crate::{preflight, utab};

/// Why a mount is still there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UnmountError {
    /// Files are open, mapped, or a working folder.
    #[error("{path}: in use{}; end these first, or say --lazy to detach it now", in_use(.holders), path = path.display())]
    Busy {
        /// The mount.
        path: PathBuf,
        /// Processes that have it open, as far as this user may see.
        holders: Vec<String>,
    },
    /// Nothing of ours is mounted there.
    #[error("{path}: no batchfs mount is there", path = path.display())]
    NotMounted {
        /// The folder.
        path: PathBuf,
    },
    /// The system refused.
    #[error("{path}: cannot unmount: {why}", path = path.display())]
    Refused {
        /// The mount.
        path: PathBuf,
        /// The cause.
        why: String,
    },
}

pub(crate) fn in_use(holders: &[String]) -> String {
    match holders {
        // Who waits in open has no descriptor yet.
        [] => {
            " by somebody who cannot be seen: of another user, or waiting for a file to open".into()
        }
        _ => format!(" by {}", holders.join(", ")),
    }
}

/// Unmounts the batchfs mount at `dir`. With `lazy` it goes from the tree at once, and from the
/// kernel when its last file is closed.
///
/// # Errors
/// See [`UnmountError`].
pub fn unmount(dir: &Path, lazy: bool) -> Result<(), UnmountError> {
    let path = dir.to_owned();
    if !preflight::is_ours(dir) {
        return Err(UnmountError::NotMounted { path });
    }
    // What it fails for is said better below.
    if utab::has(dir) && utab::umount(dir, lazy) {
        return Ok(());
    }
    let flags = MntFlags::UMOUNT_NOFOLLOW;
    let flags = if lazy { flags | MntFlags::MNT_DETACH } else { flags };
    match umount2(dir, flags) {
        Ok(()) => Ok(()),
        Err(nix::errno::Errno::EBUSY) => Err(UnmountError::Busy { holders: holders(dir), path }),
        Err(nix::errno::Errno::EPERM) => by_helper(dir, lazy),
        Err(e) => Err(UnmountError::Refused { path, why: e.desc().to_owned() }),
    }
}

/// Users other than root unmount through fusermount3.
fn by_helper(dir: &Path, lazy: bool) -> Result<(), UnmountError> {
    let path = dir.to_owned();
    let refused = |why: String| UnmountError::Refused { path: path.clone(), why };
    let helper = preflight::find_helper()
        .ok_or_else(|| refused("this needs root, or fusermount3 (package fuse3)".to_owned()))?;
    let out = Command::new(helper)
        .arg(if lazy { "-uz" } else { "-u" })
        .arg("--")
        .arg(dir)
        .stdin(Stdio::null())
        .env("LC_ALL", "C")
        .output()
        .map_err(|e| refused(e.to_string()))?;
    if out.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&out.stderr).trim().to_owned();
    if said.contains("busy") {
        return Err(UnmountError::Busy { holders: holders(dir), path: path.clone() });
    }
    Err(refused(said))
}

/// Which processes have something under `dir` open, mapped or as their folder, such as
/// `python3 (4711)`. Processes of others show only to root.
fn holders(dir: &Path) -> Vec<String> {
    let under = |path: &Path| path.starts_with(dir);
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let mut found = Vec::new();
    for entry in all.flatten() {
        let pid = entry.file_name();
        if !pid.as_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        let proc = entry.path();
        let link = |name: &str| fs::read_link(proc.join(name)).is_ok_and(|p| under(&p));
        let has_fd = || {
            fs::read_dir(proc.join("fd")).is_ok_and(|fds| {
                fds.flatten().any(|fd| fs::read_link(fd.path()).is_ok_and(|p| under(&p)))
            })
        };
        let has_map = || {
            fs::read(proc.join("maps")).is_ok_and(|maps| {
                maps.split(|b| *b == b'\n').any(|line| {
                    let path = line.iter().position(|b| *b == b'/').map(|at| &line[at..]);
                    path.is_some_and(|p| under(Path::new(std::ffi::OsStr::from_bytes(p))))
                })
            })
        };
        if link("cwd") || link("root") || has_fd() || has_map() {
            let name = fs::read_to_string(proc.join("comm")).unwrap_or_default();
            found.push(format!("{} ({})", name.trim(), pid.to_string_lossy()));
        }
    }
    found
}
