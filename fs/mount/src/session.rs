//! From a dataset to a mount that answers, and to its end.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use batchfs_batch::{Engine, Face, Item, Key, View};
use batchfs_region::{Arena, Config as ArenaConfig};
use fuser::{BackingId, Config, MountOption, Session, SessionACL};
use nix::mount::{MntFlags, MsFlags, umount2};

use crate::fs::BatchFs;
use crate::preflight::{self, Refusal, SUBTYPE};
use crate::tree::Tree;

/// How long the end waits for readers before it detaches the mount from the tree.
const GRACE: Duration = Duration::from_secs(10);

/// How often a busy mount is tried again.
const RETRY: Duration = Duration::from_millis(100);

/// How a dataset is mounted.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that all regions together may take.
    pub memory: u64,
    /// Whether other users may read, too.
    pub allow_other: bool,
    /// Whether to mount over a folder that is not empty.
    pub nonempty: bool,
    /// Whether to use cached replies even where passthrough is possible.
    pub cached: bool,
    /// Threads that gather; 0 takes as many as there are cores.
    pub threads: usize,
}

/// How the bytes of regions reach readers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// The kernel reads and maps the regions by itself.
    Passthrough,
    /// This process answers reads, and the kernel caches the answers.
    Cached {
        /// Why not passthrough.
        why: String,
    },
}

/// Why there is no mount.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// Seen before trying.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// A batch is larger than the memory budget.
    #[error(transparent)]
    TooLarge(batchfs_batch::Error),
    /// The kernel or the helper refused.
    #[error("{path}: cannot mount: {source}", path = path.display())]
    Mount {
        /// The folder.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Memory or threads could not be had.
    #[error("cannot start: {0}")]
    Start(io::Error),
}

/// A dataset that is mounted and not yet served: [`serve`](Mounted::serve) it.
pub struct Mounted {
    dir: PathBuf,
    tree: Arc<Tree>,
    thread: JoinHandle<io::Result<()>>,
    events: Receiver<Event>,
    stopper: Stopper,
}

enum Event {
    /// The kernel has let go of the mount.
    Over,
    /// Somebody wants the end.
    Stop,
}

/// Asks a [`Mounted`] to end, from any thread.
#[derive(Clone)]
pub struct Stopper(Sender<Event>);

impl Stopper {
    /// The first time unmounts, and gives readers some seconds; the second time detaches the
    /// mount at once.
    pub fn stop(&self) {
        // Fails only if it has ended already.
        let _ = self.0.send(Event::Stop);
    }
}

/// How a mount ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// Unmounted; nothing is left.
    Clean,
    /// Readers did not let go: the mount was detached, and their files go on as far as they can.
    Busy(Vec<String>),
    /// The connection to the kernel broke.
    Broken(String),
}

/// Mounts `view` on the folder `dir`.
///
/// When this returns, the mount answers.
///
/// # Errors
/// See [`MountError`]; nothing is left mounted then.
pub fn mount(view: Arc<View>, dir: &Path, options: &Options) -> Result<Mounted, MountError> {
    preflight::rights(options.allow_other)?;
    let cleared = preflight::clear_dead(dir)?;
    if cleared > 0 {
        tracing::warn!(
            "{}: removed {cleared} batchfs mount(s) whose daemon had died",
            dir.display()
        );
    }
    let source = view.dataset().origin().to_owned();
    let dir = preflight::target(dir, &source, options.nonempty)?;
    fits(&view, options.memory)?;

    let arena = Arena::new(&ArenaConfig { limit: options.memory, backing: None })
        .map_err(MountError::Start)?;
    let engine = Engine::new(arena, &batchfs_batch::Options { threads: options.threads })
        .map_err(MountError::Start)?;
    let tree = Arc::new(Tree::new(view, engine));
    let offers = Arc::new(OnceLock::new());
    let fs = BatchFs::new(tree.clone(), offers.clone());
    let session = attach(fs, &dir, &source, options.allow_other)
        .map_err(|source| MountError::Mount { path: dir.clone(), source })?;
    let delivery = choose(&session, options.cached, offers.get() == Some(&true), &tree.engine);
    tracing::info!("{}: delivery {delivery:?}", dir.display());
    // Set once, before any request is answered.
    let _ = tree.delivery.set(delivery);
    let _ = tree.notifier.set(session.notifier());
    let (tell, events) = channel();
    let over = tell.clone();
    let thread = std::thread::Builder::new()
        .name("session".to_owned())
        .spawn(move || {
            let end = session.run();
            // Fails only if nobody serves any more.
            let _ = over.send(Event::Over);
            end
        })
        .map_err(MountError::Start)?;
    Ok(Mounted { dir, tree, thread, events, stopper: Stopper(tell) })
}

/// Mounts, by itself where it may, else through fusermount3.
fn attach(
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

/// Refuses a batch that could never be opened.
fn fits(view: &View, limit: u64) -> Result<(), MountError> {
    for stream in 0..view.dataset().streams().len() as u16 {
        let key =
            Key { view: view.number(), item: Item::Batch(stream), face: Face::Bare, number: 0 };
        let layout = view.layout(key).map_err(MountError::TooLarge)?;
        let needed = Arena::charge(layout.size);
        if needed > limit {
            let item = format!("a batch of {}", view.dataset().streams()[usize::from(stream)].name);
            return Err(MountError::TooLarge(batchfs_batch::Error::TooLarge {
                item,
                needed,
                limit,
            }));
        }
    }
    Ok(())
}

/// Asks the kernel, with one region, whether it passes regions through.
fn choose(session: &Session<BatchFs>, cached: bool, offered: bool, engine: &Engine) -> Delivery {
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

impl Mounted {
    /// The folder it is mounted on.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// How regions reach readers.
    pub fn delivery(&self) -> Delivery {
        self.tree.delivery.get().cloned().unwrap_or(Delivery::Passthrough)
    }

    /// Ends it from another thread.
    pub fn stopper(&self) -> Stopper {
        self.stopper.clone()
    }

    /// Serves until the mount is gone: unmounted from outside, or by a [`Stopper`]. `tell` is
    /// called with lines for whoever watches.
    pub fn serve(self, mut tell: impl FnMut(&str)) -> Ended {
        let mut stops = 0;
        let mut deadline = None;
        let mut busy = Vec::new();
        loop {
            let event = match deadline {
                None => self.events.recv().ok(),
                Some(_) => self.events.recv_timeout(RETRY).ok(),
            };
            match event {
                Some(Event::Over) => break,
                Some(Event::Stop) => stops += 1,
                None => {}
            }
            let first = deadline.is_none();
            let end = *deadline.get_or_insert_with(|| Instant::now() + GRACE);
            let lazy = stops > 1 || Instant::now() >= end;
            match unmount(&self.dir, lazy) {
                Ok(()) if !lazy => busy.clear(),
                Ok(()) => {
                    return match self.events.recv_timeout(Duration::from_secs(1)) {
                        Ok(Event::Over) => self.join(),
                        _ => Ended::Busy(busy),
                    };
                }
                // The session ends by itself now.
                Err(UnmountError::NotMounted { .. }) => {}
                Err(UnmountError::Busy { holders, .. }) => busy = holders,
                Err(e) if first => tell(&e.to_string()),
                Err(_) => {}
            }
            if first && !busy.is_empty() {
                let (dir, secs) = (self.dir.display(), GRACE.as_secs());
                tell(&format!(
                    "{dir}: still in use{}; detached in {secs} s, or at once on a second signal",
                    in_use(&busy)
                ));
            }
        }
        self.join()
    }

    fn join(self) -> Ended {
        match self.thread.join() {
            Ok(Ok(())) => Ended::Clean,
            Ok(Err(e)) => Ended::Broken(e.to_string()),
            Err(_) => Ended::Broken("a thread of the session panicked".to_owned()),
        }
    }
}

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

fn in_use(holders: &[String]) -> String {
    if holders.is_empty() { String::new() } else { format!(" by {}", holders.join(", ")) }
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
