//! The mount system call, and what the kernel then offers.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use batchfs_batch::Engine;
use fuser::{BackingId, Config, MountOption, Session, SessionACL};
use nix::mount::{MntFlags, MsFlags, umount2};

use crate::fs::BatchFs;
use crate::preflight::SUBTYPE;
use crate::session::Delivery;
use crate::unmount::{UnmountError, unmount};

/// A mount that nobody serves yet, or any more. Dropped, it is detached: without its server it
/// would be dead.
pub(crate) struct Unserved(Option<PathBuf>);

impl Unserved {
    pub(crate) fn new(dir: &Path) -> Unserved {
        Unserved(Some(dir.to_owned()))
    }

    /// It is gone.
    pub(crate) fn gone(mut self) {
        self.0 = None;
    }
}

impl Drop for Unserved {
    fn drop(&mut self) {
        let Some(dir) = self.0.take() else { return };
        match unmount(&dir, true) {
            Ok(()) | Err(UnmountError::NotMounted { .. }) => {}
            Err(e) => tracing::error!("{e}"),
        }
    }
}

/// Mounts, by itself where it may, else through fusermount3.
pub(crate) fn attach(
    fs: BatchFs,
    dir: &Path,
    source: &Path,
    allow_other: bool,
) -> io::Result<Session<BatchFs>> {
    let mut config = Config::default();
    config.acl = if allow_other { SessionACL::All } else { SessionACL::Owner };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    config.n_threads = Some(cores.clamp(2, 8));
    config.clone_fd = true;

    // Not through fuser, which mounts the type `fuse` and no subtype: by that a mount of ours is
    // told from others.
    let device: OwnedFd = fs::OpenOptions::new().read(true).write(true).open("/dev/fuse")?.into();
    let (uid, gid) = (nix::unistd::geteuid(), nix::unistd::getegid());
    let fd = device.as_raw_fd();
    let mut data =
        format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid},default_permissions");
    if allow_other {
        data.push_str(",allow_other");
    }
    let flags = MsFlags::MS_RDONLY
        | MsFlags::MS_NOSUID
        | MsFlags::MS_NODEV
        | MsFlags::MS_NOEXEC
        | MsFlags::MS_NOATIME;
    let kind = format!("fuse.{SUBTYPE}");
    match nix::mount::mount(Some(source), dir, Some(kind.as_str()), flags, Some(data.as_str())) {
        Ok(()) => {
            let acl = config.acl;
            return Session::from_fd(fs, device, acl, config).inspect_err(|_| {
                // The kernel does not take it away when the device is closed.
                let _ = umount2(dir, MntFlags::MNT_DETACH);
            });
        }
        Err(nix::errno::Errno::EPERM) => {}
        Err(e) => return Err(e.into()),
    }
    // A comma would end the option.
    let name = source.to_string_lossy().replace(',', "_");
    config.mount_options = vec![
        MountOption::RO,
        MountOption::NoSuid,
        MountOption::NoDev,
        MountOption::NoExec,
        MountOption::NoAtime,
        MountOption::DefaultPermissions,
        MountOption::FSName(name),
        MountOption::Subtype(SUBTYPE.to_owned()),
    ];
    // What the helper says ends in a newline.
    Session::new(fs, dir, &config)
        .map_err(|e| io::Error::new(e.kind(), e.to_string().trim().to_owned()))
}

/// Asks the kernel, with one region, whether it passes regions through.
pub(crate) fn choose(
    session: &Session<BatchFs>,
    cached: bool,
    offered: bool,
    engine: &Engine,
) -> Delivery {
    let no = |why: &str| Delivery::Cached { why: why.to_owned() };
    if cached {
        return no("asked for");
    }
    if !offered {
        return no("the kernel offers no FUSE passthrough (Linux 6.9 or newer does)");
    }
    let region = match engine.arena().alloc(1, "probe".into()) {
        Ok(region) => region.freeze(),
        Err(e) => return no(&e.to_string()),
    };
    // The id stays registered for the life of the mount; one byte of memory with it.
    match BackingId::create_raw(session, region.expose()) {
        Ok(_) => Delivery::Passthrough,
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => {
            no("passthrough needs CAP_SYS_ADMIN (root)")
        }
        Err(e) => no(&format!("the kernel refuses backing files: {e}")),
    }
}
