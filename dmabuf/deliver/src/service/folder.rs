//! Where the socket lies: a folder of its own, which goes when the service does.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{
    DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};
use std::os::fd::AsRawFd as _;

/// How folders of sockets are named.
const PREFIX: &str = "batchfs-service-";

const NAME: &str = "service.sock";

/// A socket that listens, and its folder, which is removed at the end.
pub(crate) struct Listening {
    folder: PathBuf,
    /// The socket.
    pub(crate) socket: OwnedFd,
}

impl Listening {
    /// Makes folder and socket in the first of the runtime folders that can be had; `others` says
    /// whether other users may connect.
    pub(crate) fn new(others: bool) -> io::Result<Listening> {
        let mut last = io::Error::from(io::ErrorKind::NotFound);
        for parent in runtime_folders(others) {
            sweep(&parent);
            match Listening::in_folder(&parent, others) {
                Ok(made) => return Ok(made),
                Err(e) => last = e,
            }
        }
        Err(last)
    }

    fn in_folder(parent: &Path, others: bool) -> io::Result<Listening> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (pid, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let mode = if others { 0o711 } else { 0o700 };
        let mut tries = 0;
        let folder = loop {
            let folder = parent.join(format!("{PREFIX}{pid}-{next}-{tries}"));
            match DirBuilder::new().mode(0o700).create(&folder) {
                Ok(()) => break folder,
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists && tries < 100 => tries += 1,
                Err(e) => return Err(e),
            }
        };
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let made = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None);
        let made = made.and_then(|socket| {
            bind(socket.as_raw_fd(), &UnixAddr::new(&folder.join(NAME))?)?;
            Ok(socket)
        });
        let socket = match made {
            Ok(socket) => socket,
            Err(e) => {
                let _ = fs::remove_dir(&folder);
                return Err(e.into());
            }
        };
        let made = Listening { folder, socket };
        let socket_mode = if others { 0o666 } else { 0o600 };
        fs::set_permissions(made.path(), Permissions::from_mode(socket_mode))?;
        fs::set_permissions(&made.folder, Permissions::from_mode(mode))?;
        listen(&made.socket, Backlog::MAXALLOWABLE)?;
        Ok(made)
    }

    /// The socket's path.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join(NAME)
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

fn remove(folder: &Path) {
    let _ = fs::remove_file(folder.join(NAME));
    let _ = fs::remove_dir(folder);
}

/// The best first. Other users get into none of `XDG_RUNTIME_DIR`.
fn runtime_folders(others: bool) -> Vec<PathBuf> {
    let me = nix::unistd::geteuid().as_raw();
    let private = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let own = |p: &PathBuf| fs::metadata(p).is_ok_and(|m| m.is_dir() && m.uid() == me);
    let mut all: Vec<PathBuf> =
        private.filter(|p| !others && p.is_absolute() && own(p)).into_iter().collect();
    if me == 0 {
        all.push("/run".into());
    }
    all.extend(std::path::absolute(std::env::temp_dir()));
    all
}

/// Removes what daemons that were killed have left: nobody listens there any more.
fn sweep(parent: &Path) {
    let Ok(entries) = fs::read_dir(parent) else { return };
    let me = nix::unistd::geteuid().as_raw();
    for entry in entries.flatten() {
        let folder = entry.path();
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if !ours || !entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == me) {
            continue;
        }
        let path = folder.join(NAME);
        if fs::symlink_metadata(&path).is_ok_and(|m| m.file_type().is_socket()) && is_dead(&path) {
            remove(&folder);
        }
    }
}

fn is_dead(path: &Path) -> bool {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let Ok(probe) = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None) else {
        return false;
    };
    let Ok(address) = UnixAddr::new(path) else { return false };
    // A socket that is about to listen refuses, too: its folder is not there for long.
    let young = fs::metadata(path)
        .and_then(|m| m.modified())
        .is_ok_and(|t| t.elapsed().is_ok_and(|age| age.as_secs() < 10));
    !young && connect(probe.as_raw_fd(), &address) == Err(nix::errno::Errno::ECONNREFUSED)
}
