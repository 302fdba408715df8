//! From a dataset to a mount that answers, and to its end.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use batchfs_batch::{Engine, Face, Item, Key, View};
use batchfs_region::{Arena, Config as ArenaConfig};

use crate::attach::{Unserved, attach, choose};
use crate::fs::BatchFs;
use crate::preflight::{self, Refusal};
use crate::tree::Tree;
use crate::unmount::{UnmountError, in_use, unmount};

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

/// Everything that a mount needs but the mount itself.
pub struct Prepared {
    dir: PathBuf,
    source: PathBuf,
    tree: Arc<Tree>,
    allow_other: bool,
    cached: bool,
}

/// A dataset that is mounted and not yet served: [`serve`](Mounted::serve) it. Dropped without that,
/// it is unmounted.
pub struct Mounted {
    dir: PathBuf,
    tree: Arc<Tree>,
    thread: JoinHandle<io::Result<()>>,
    events: Receiver<Event>,
    stopper: Stopper,
    unserved: Unserved,
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

/// Checks that `view` can be mounted on the folder `dir`, and gets memory and threads for it.
///
/// This may take as long as the folder's filesystem takes to answer, and leaves nothing behind, so
/// it may be given up at any time. A dead mount is in the way: [`clear_dead`](crate::clear_dead)
/// comes first.
///
/// # Errors
/// See [`MountError`].
pub fn prepare(view: Arc<View>, dir: &Path, options: &Options) -> Result<Prepared, MountError> {
    preflight::rights(options.allow_other)?;
    let source = view.dataset().origin().to_owned();
    let dir = preflight::target(dir, &view.dataset().places(), options.nonempty)?;
    fits(&view, options.memory)?;
    let arena = Arena::new(&ArenaConfig { limit: options.memory, backing: None })
        .map_err(MountError::Start)?;
    let engine = Engine::new(arena, &batchfs_batch::Options { threads: options.threads })
        .map_err(MountError::Start)?;
    let tree = Arc::new(Tree::new(view, engine));
    let (allow_other, cached) = (options.allow_other, options.cached);
    Ok(Prepared { dir, source, tree, allow_other, cached })
}

impl Prepared {
    /// Mounts it. When this returns, the mount answers.
    ///
    /// # Errors
    /// See [`MountError`]; nothing is left mounted then.
    pub fn attach(self) -> Result<Mounted, MountError> {
        let Prepared { dir, source, tree, allow_other, cached } = self;
        let offers = Arc::new(OnceLock::new());
        let fs = BatchFs::new(tree.clone(), offers.clone());
        let session = attach(fs, &dir, &source, allow_other)
            .map_err(|source| MountError::Mount { path: dir.clone(), source })?;
        let unserved = Unserved::new(&dir);
        let delivery = choose(&session, cached, offers.get() == Some(&true), &tree.engine);
        tracing::info!("{}: delivery {delivery:?}", dir.display());
        if delivery == Delivery::Passthrough {
            tree.engine.show_regions();
        }
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
        Ok(Mounted { dir, tree, thread, events, stopper: Stopper(tell), unserved })
    }
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
                        _ => {
                            self.unserved.gone();
                            Ended::Busy(busy)
                        }
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
        let why = match self.thread.join() {
            Ok(Ok(())) => {
                self.unserved.gone();
                return Ended::Clean;
            }
            Ok(Err(e)) => e.to_string(),
            Err(_) => "a thread of the session panicked".to_owned(),
        };
        Ended::Broken(why)
    }
}
