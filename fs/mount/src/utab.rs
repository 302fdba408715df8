//! The table that mount(8) keeps of options which the kernel does not know, such as `_netdev` and
//! `x-systemd.automount`. It has a line of a mount of ours that mount(8) made with such options.

use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::preflight::unescape;

const TABLE: &str = "/run/mount/utab";

/// Whether the table has a line of a mount at `dir`.
pub(crate) fn has(dir: &Path) -> bool {
    fs::read(TABLE).is_ok_and(|table| lists(&table, dir))
}

fn lists(table: &[u8], dir: &Path) -> bool {
    let dir = dir.as_os_str().as_bytes();
    table
        .split(|byte| *byte == b'\n')
        .flat_map(|line| line.split(|byte| *byte == b' '))
        .filter_map(|field| field.strip_prefix(b"TARGET="))
        .any(|target| unescape(target) == dir)
}

/// Unmounts `dir` by umount(8), which takes the line away, too. Says whether it did.
pub(crate) fn umount(dir: &Path, lazy: bool) -> bool {
    let mut umount = Command::new("umount");
    if nix::unistd::geteuid().is_root() {
        // Looks at nothing in the mount, whose server may be stuck. Only root may ask for that.
        umount.args(["--internal-only", "--no-canonicalize"]);
    }
    if lazy {
        umount.arg("--lazy");
    }
    umount.arg("--").arg(dir);
    umount.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    umount.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_found_by_their_target() {
        let table = b"SRC=/a/b TARGET=/mnt/a\\040b ROOT=/ OPTS=_netdev\n\
            SRC=/c TARGET=/mnt/c ROOT=/ OPTS=x-y=/mnt/d\nTARGET=/e\\";
        for (dir, there) in [
            ("/mnt/a b", true),
            ("/mnt/c", true),
            ("/mnt/d", false),
            ("/mnt", false),
            ("/e\\", true),
        ] {
            assert_eq!(lists(table, Path::new(dir)), there, "{dir}");
        }
        assert!(!lists(b"", Path::new("/mnt/c")));
    }
}
