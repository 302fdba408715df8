//! What can be wrong with a mount before it is tried, told in words.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use nix::sys::statfs::{self, FsType};

/// The filesystem type is `fuse.` and this.
pub const SUBTYPE: &str = "batchfs";

/// Why a folder cannot be mounted on, and the way out.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

fn refuse<T>(why: String) -> Result<T, Refusal> {
    Err(Refusal(why))
}

/// The types of the filesystems mounted at exactly `dir`, the topmost last.
fn mounted_at(dir: &Path) -> Vec<String> {
    let Ok(table) = fs::read("/proc/self/mountinfo") else { return Vec::new() };
    let wanted = dir.as_os_str().as_bytes();
    table
        .split(|b| *b == b'\n')
        .filter_map(|line| {
            let mut fields = line.split(|b| *b == b' ');
            let point = unescape(fields.nth(4)?);
            if point != wanted {
                return None;
            }
            // After the optional fields comes a hyphen, then the type.
            let kind = fields.skip_while(|f| *f != b"-").nth(1)?;
            Some(String::from_utf8_lossy(kind).into_owned())
        })
        .collect()
}

/// Undoes the octal escapes of the mount tables.
pub(crate) fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&b, tail)) = rest.split_first() {
        let octal = tail
            .get(..3)
            .filter(|_| b == b'\\')
            .and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        match octal {
            Some(byte) => {
                out.push(byte);
                rest = &tail[3..];
            }
            None => {
                out.push(b);
                rest = tail;
            }
        }
    }
    out
}

/// Whether the topmost filesystem at `dir` is a batchfs mount.
pub fn is_ours(dir: &Path) -> bool {
    mounted_at(dir).last().is_some_and(|kind| kind == &format!("fuse.{SUBTYPE}"))
}

/// Whether the filesystem at `dir` has lost its daemon.
fn is_dead(dir: &Path) -> bool {
    matches!(fs::metadata(dir), Err(e) if e.raw_os_error() == Some(libc::ENOTCONN))
}

/// The path of `dir` without symbolic links, found without asking what is mounted there: that may be
/// dead, or take for ever to answer.
///
/// # Errors
/// If the folder that it is in cannot be found, or there are too many links.
pub fn resolve(dir: &Path) -> io::Result<PathBuf> {
    /// As many as the kernel follows.
    const LINKS: usize = 40;
    let mut at = std::path::absolute(dir)?;
    for _ in 0..LINKS {
        let (Some(parent), Some(name)) = (at.parent(), at.file_name()) else {
            return fs::canonicalize(&at);
        };
        let parent = fs::canonicalize(parent)?;
        let full = parent.join(name);
        // Of a folder the kernel says by itself that it is no link.
        match fs::read_link(&full) {
            Ok(target) => at = parent.join(target),
            Err(_) => return Ok(full),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ELOOP))
}

/// The commands that take a dead mount away.
fn by_hand(dir: &Path) -> String {
    let shown = dir.display();
    format!(
        "take it away with `umount -l {shown}` as root, or `fusermount3 -uz {shown}` as the user who mounted it"
    )
}

/// Takes away batchfs mounts at `dir` whose daemon is dead, however many are stacked. Returns how
/// many there were.
///
/// # Errors
/// If a dead mount there is not ours, or may not be taken away, with the command that does it.
pub fn clear_dead(dir: &Path) -> Result<usize, Refusal> {
    let mut cleared = 0;
    let Ok(full) = resolve(dir) else { return Ok(0) };
    while is_dead(&full) {
        let shown = full.display();
        let by_hand = by_hand(&full);
        if !is_ours(&full) {
            return refuse(format!(
                "{shown}: a filesystem whose server has died is mounted there, and it is not batchfs; {by_hand}"
            ));
        }
        if let Err(e) = crate::unmount::unmount(&full, true) {
            return refuse(format!(
                "{shown}: a batchfs mount whose daemon has died is in the way, and this user may not remove it ({e}); {by_hand}"
            ));
        }
        cleared += 1;
    }
    Ok(cleared)
}

/// Folders that the system cannot do without. What is below them may be mounted on.
const SYSTEM: &[&str] = &[
    "/",
    "/bin",
    "/boot",
    "/etc",
    "/home",
    "/lib",
    "/lib32",
    "/lib64",
    "/root",
    "/run",
    "/run/user",
    "/sbin",
    "/tmp",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib64",
    "/usr/local",
    "/usr/sbin",
    "/usr/share",
    "/var",
    "/var/lib",
    "/var/log",
    "/var/run",
    "/var/tmp",
];

/// Filesystems that the kernel makes up, and their names.
const MADE_UP: &[(FsType, &str)] = &[
    (statfs::PROC_SUPER_MAGIC, "proc"),
    (statfs::SYSFS_MAGIC, "sysfs"),
    (statfs::CGROUP_SUPER_MAGIC, "cgroup"),
    (statfs::CGROUP2_SUPER_MAGIC, "cgroup2"),
    (statfs::DEBUGFS_MAGIC, "debugfs"),
    (statfs::TRACEFS_MAGIC, "tracefs"),
    (statfs::SECURITYFS_MAGIC, "securityfs"),
    (statfs::SELINUX_MAGIC, "selinuxfs"),
    (statfs::SMACK_MAGIC, "smackfs"),
    (statfs::BPF_FS_MAGIC, "bpf"),
    (statfs::DEVPTS_SUPER_MAGIC, "devpts"),
    (statfs::RDTGROUP_SUPER_MAGIC, "resctrl"),
    (statfs::XENFS_SUPER_MAGIC, "xenfs"),
];

/// Why nothing should be mounted on `full`, whatever is said.
fn unfit(full: &Path) -> Option<String> {
    if SYSTEM.iter().any(|path| full == Path::new(path)) {
        return Some("is a folder of the system, which would be hidden".to_owned());
    }
    let in_memory = full.parent().is_some_and(|parent| parent.starts_with("/dev/shm"));
    if full.starts_with("/dev") && !in_memory {
        return Some("is where the system's devices are".to_owned());
    }
    let kind = statfs::statfs(full).ok().map(|stat| stat.filesystem_type());
    if let Some((_, name)) = MADE_UP.iter().find(|(one, _)| Some(*one) == kind) {
        return Some(format!("lies in {name}, a filesystem that the kernel makes up"));
    }
    let program = std::env::current_exe().ok()?;
    program
        .starts_with(full)
        .then(|| format!("has this program in it ({}), which would be hidden", program.display()))
}

/// Checks that `dir` can be mounted on, and returns its canonical path.
pub(crate) fn target(dir: &Path, sources: &[PathBuf], nonempty: bool) -> Result<PathBuf, Refusal> {
    let shown = dir.display();
    let meta = match fs::metadata(dir) {
        Ok(meta) => meta,
        Err(e) if e.kind() == ErrorKind::NotFound => {
            return refuse(format!(
                "{shown}: there is no such folder to mount on; make it with `mkdir -p {shown}`"
            ));
        }
        Err(_) if resolve(dir).is_ok_and(|full| is_dead(&full)) => {
            return refuse(format!(
                "{shown}: a filesystem whose server has died is mounted there; {}",
                by_hand(dir)
            ));
        }
        // The mount of another user shows nothing to others, not even that its daemon is dead.
        Err(e) if resolve(dir).is_ok_and(|full| is_ours(&full)) => {
            return refuse(format!(
                "{shown}: another user's batchfs mount is there ({e}); if its daemon is dead, {}",
                by_hand(dir)
            ));
        }
        Err(e) => return refuse(format!("{shown}: cannot be looked at: {e}")),
    };
    if !meta.is_dir() {
        return refuse(format!("{shown}: is not a folder; a mount needs an empty folder"));
    }
    let full = fs::canonicalize(dir).map_err(|e| Refusal(format!("{shown}: {e}")))?;
    if is_ours(&full) {
        return refuse(format!(
            "{shown}: a batchfs mount is there already; unmount it with `batchfs umount {shown}`, or choose another folder"
        ));
    }
    if let Some(why) = unfit(&full) {
        return refuse(format!(
            "{shown}: {why}; choose a folder of your own, such as /mnt/ds or one in your home"
        ));
    }
    let clash = |source: &PathBuf| full.starts_with(source) || source.starts_with(&full);
    let sources = sources.iter().filter_map(|source| fs::canonicalize(source).ok());
    if let Some(source) = sources.into_iter().find(clash) {
        return refuse(format!(
            "{shown}: the mount and its source {} may not lie inside one another; choose a folder elsewhere",
            source.display()
        ));
    }
    if !nonempty {
        let mut entries =
            fs::read_dir(&full).map_err(|e| Refusal(format!("{shown}: cannot be listed: {e}")))?;
        if entries.next().is_some() {
            return refuse(format!(
                "{shown}: is not empty, and a mount would hide what is in it; choose an empty folder, or say --nonempty"
            ));
        }
    }
    Ok(full)
}

/// Checks that this process may mount.
pub(crate) fn rights(allow_other: bool) -> Result<(), Refusal> {
    let device = Path::new("/dev/fuse");
    if let Err(e) = fs::OpenOptions::new().read(true).write(true).open(device) {
        return refuse(match e.kind() {
            ErrorKind::NotFound => "/dev/fuse is not there: load the module with `modprobe fuse`, or give it to the container with `--device /dev/fuse`".to_owned(),
            ErrorKind::PermissionDenied => "/dev/fuse may not be opened by this user: run as root, or let root say `chmod 666 /dev/fuse`".to_owned(),
            _ => format!("/dev/fuse cannot be opened ({e}): is the kernel's fuse module loaded?"),
        });
    }
    if nix::unistd::geteuid().is_root() {
        return Ok(());
    }
    if find_helper().is_none() {
        return refuse("users other than root mount through fusermount3, which is not on the PATH: install the package fuse3".to_owned());
    }
    if allow_other {
        let conf = fs::read_to_string("/etc/fuse.conf").unwrap_or_default();
        if !conf.lines().any(|l| l.trim() == "user_allow_other") {
            return refuse("--allow-other is for root, unless /etc/fuse.conf has a line `user_allow_other`: add it as root, or leave --allow-other away".to_owned());
        }
    }
    Ok(())
}

/// The helper that mounts and unmounts for users.
pub fn find_helper() -> Option<PathBuf> {
    // mount(8) takes it away from the helpers that it runs for users.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    std::env::split_paths(&path)
        .flat_map(|dir| ["fusermount3", "fusermount"].map(|name| dir.join(name)))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_followed_to_the_last_name_and_no_further() {
        let dir = std::env::temp_dir().join(format!("batchfs-resolve-{}", std::process::id()));
        fs::create_dir_all(dir.join("a/b")).unwrap();
        let dir = fs::canonicalize(dir).unwrap();
        let link = |from: &str, to: &str| std::os::unix::fs::symlink(to, dir.join(from)).unwrap();
        link("one", "a/b");
        link("two", "one");
        link("a/up", "../two");
        link("loop", "loop");
        link("nowhere", "a/none");
        for name in ["a/b", "one", "two", "a/up", "a/../one", "two/", "./two/."] {
            assert_eq!(resolve(&dir.join(name)).unwrap(), dir.join("a/b"), "{name}");
        }
        assert_eq!(resolve(&dir.join("nowhere")).unwrap(), dir.join("a/none"));
        assert_eq!(resolve(&dir.join("a/b/..")).unwrap(), dir.join("a"));
        assert_eq!(resolve(Path::new("/")).unwrap(), Path::new("/"));
        let e = resolve(&dir.join("loop")).unwrap_err();
        assert_eq!(e.raw_os_error(), Some(libc::ELOOP));
        assert!(resolve(&dir.join("none/x")).is_err());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn folders_that_the_system_needs_are_no_targets() {
        for path in ["/", "/proc", "/proc/self", "/sys/kernel", "/dev", "/dev/shm", "/etc", "/usr"]
        {
            let full = fs::canonicalize(path).unwrap();
            assert!(unfit(&full).is_some(), "{path}");
        }
        let program = std::env::current_exe().unwrap();
        let why = unfit(program.parent().unwrap()).unwrap();
        assert!(why.contains("this program"), "{why}");
        for path in ["/mnt", "/mnt/ds", "/opt/ds", "/tmp/ds", "/dev/shm/ds", "/home/me/ds"] {
            assert_eq!(unfit(Path::new(path)), None, "{path}");
        }
    }

    #[test]
    fn the_mount_tables_escapes_are_undone() {
        assert_eq!(unescape(br"/mnt/a\040b\134c\011"), b"/mnt/a b\\c\t");
        assert_eq!(unescape(br"/mnt/\08"), br"/mnt/\08");
        assert!(mounted_at(Path::new("/proc")).last().is_some_and(|kind| kind == "proc"));
    }
}
