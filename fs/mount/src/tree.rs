//! Names, attributes and small contents of everything in the mount.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use batchfs_batch::{Dataset, Engine, Face, Item, Key, View};
use fuser::{Errno, FileAttr, FileType, INodeNo, Notifier};

use crate::errlog::ErrorLog;
use crate::errno::{errno, kind};
use crate::guide;
use crate::inode::{Inodes, is_kept, view_of};
use crate::node::{Inner, Node, Top, parse_numbered};
use crate::session::Delivery;
use crate::views::{NoView, Views};

/// Nothing ever changes, so the kernel may remember for good; but for what does.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

pub(crate) struct Tree {
    pub(crate) views: Views,
    pub(crate) engine: Engine,
    pub(crate) errors: ErrorLog,
    pub(crate) inodes: Inodes,
    /// How regions reach readers; known once the kernel was asked.
    pub(crate) delivery: std::sync::OnceLock<Delivery>,
    /// The socket of the descriptor service, if there is one.
    pub(crate) socket: std::sync::OnceLock<std::path::PathBuf>,
    /// What the service is doing.
    pub(crate) service: std::sync::OnceLock<Arc<batchfs_dmabuf::Figures>>,
    /// To make the kernel forget what is idle.
    pub(crate) notifier: std::sync::OnceLock<Notifier>,
    tidying: Arc<AtomicBool>,
    modified: SystemTime,
    uid: u32,
    gid: u32,
}

/// How long the kernel may remember.
pub(crate) struct Ttls {
    /// Size, times and the like.
    pub(crate) attr: Duration,
    /// Which inode a name stands for.
    pub(crate) name: Duration,
}

impl Ttls {
    /// What holds for both.
    pub(crate) fn both(&self) -> Duration {
        self.attr.min(self.name)
    }
}

/// What is known of a size without making the file.
pub(crate) enum Size {
    Known(u64),
    /// The file has to be made to know it.
    WhenMade(Key),
}

/// Why a name stands for nothing.
pub(crate) enum Missing {
    /// There is no more to say.
    Plain,
    /// It could be meant to be there.
    Because(batchfs_batch::Error),
    /// It is no spec, or no view of this data.
    NoView(String),
    /// There are too many views.
    Full(String),
}

impl Tree {
    pub(crate) fn new(view: Arc<View>, engine: Engine) -> Tree {
        Tree {
            modified: view.dataset().modified(),
            views: Views::new(view),
            engine,
            errors: ErrorLog::default(),
            inodes: Inodes::default(),
            delivery: std::sync::OnceLock::new(),
            socket: std::sync::OnceLock::new(),
            service: std::sync::OnceLock::new(),
            notifier: std::sync::OnceLock::new(),
            tidying: Arc::default(),
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
        }
    }

    /// The view of the root folder.
    pub(crate) fn main(&self) -> &Arc<View> {
        self.views.main()
    }

    fn dataset(&self) -> &Dataset {
        self.main().dataset()
    }

    /// What `name` in the folder `parent` stands for, and its size.
    ///
    /// The folder of a view is counted as looked up; everything else is when the kernel is told of
    /// it, see [`told`](Self::told).
    pub(crate) fn lookup(&self, parent: Node, name: &str) -> Result<(Node, Size), Missing> {
        let node = match parent {
            Node::Inner(view, Inner::Batches(s)) => numbered(view, Item::Batch(s), name)?,
            Node::Inner(view, Inner::Records(s)) => numbered(view, Item::Record(s), name)?,
            Node::Inner(view, Inner::Indices) => numbered(view, Item::Index, name)?,
            Node::Inner(view, Inner::AllBatches) => numbered(view, Item::All, name)?,
            Node::Top(Top::Views) => self.view(name)?,
            folder => {
                let found = self.named(folder).into_iter().find(|(n, _)| n == name);
                found.ok_or(Missing::Plain)?.1
            }
        };
        Ok((node, self.size(node).map_err(Missing::Because)?))
    }

    /// What a name in `view/` stands for.
    fn view(&self, name: &str) -> Result<Node, Missing> {
        // What shells and indexers look for everywhere.
        if name.starts_with('.') {
            return Err(Missing::Plain);
        }
        let no =
            |why: String| Missing::NoView(format!("view/{name}: there is no such view: {why}"));
        let parsed = self.dataset().parse_spec(name);
        let spec = parsed.map_err(|e| no(e.to_string()))?;
        if spec.to_string() != name {
            self.views.check(spec).map_err(|e| no(e.to_string()))?;
            return Ok(Node::Link(spec));
        }
        match self.views.look_up(spec, &self.engine) {
            Ok(number) => Ok(Node::Inner(number, Inner::View)),
            Err(NoView::Unfit(why)) => Err(no(why.to_string())),
            Err(NoView::Full) => Err(Missing::Full(format!(
                "view/{name}: all 127 views that can be in use at a time are; close what is open in others, and try again"
            ))),
        }
    }

    /// Makes the kernel forget views that are idle, when there are many. Not on a thread that
    /// answers it: the kernel may hold the folder's lock until it is answered.
    pub(crate) fn tidy_views(&self) {
        let idle = self.views.idle(&self.engine);
        let Some(notifier) = self.notifier.get().cloned() else { return };
        if idle.is_empty() || self.tidying.swap(true, Ordering::Relaxed) {
            return;
        }
        let tidying = self.tidying.clone();
        let tidy = move || {
            for name in idle {
                // It may have gone by itself.
                let _ = notifier.inval_entry(INodeNo(Top::Views as u64), name.as_ref());
            }
            tidying.store(false, Ordering::Relaxed);
        };
        if let Err(e) = std::thread::Builder::new().name("tidy".to_owned()).spawn(tidy) {
            tracing::warn!("cannot start a thread: {e}");
            self.tidying.store(false, Ordering::Relaxed);
        }
    }

    /// The inode number of a node that a lookup found, which the kernel is told of and will forget
    /// some day. `None` if its view is gone.
    pub(crate) fn told(&self, node: Node) -> Option<u64> {
        let counted = matches!(node, Node::Inner(_, Inner::View));
        (counted || self.views.told(node.view(), None)).then(|| self.inodes.number(node, true))?
    }

    /// The same for a node that is listed under `name`.
    pub(crate) fn listed(&self, node: Node, name: &str) -> Option<u64> {
        let name = matches!(node, Node::Inner(_, Inner::View)).then_some(name);
        self.views.told(node.view(), name).then(|| self.inodes.number(node, true))?
    }

    /// The kernel forgot `ino`, which it had been told of `lookups` times.
    pub(crate) fn forget(&self, ino: u64, lookups: u64) {
        self.inodes.forget(ino, lookups);
        self.views.forget(view_of(ino), lookups, &self.engine);
    }

    /// The entries of a folder that have names rather than numbers.
    fn named(&self, folder: Node) -> Vec<(String, Node)> {
        let own = |name: &str, node| (name.to_owned(), node);
        match folder {
            Node::Top(Top::Root) => {
                let mut all = vec![
                    own("README.txt", Node::Top(Top::Readme)),
                    own(".batchfs", Node::Top(Top::Control)),
                    own("view", Node::Top(Top::Views)),
                ];
                all.extend(self.inner(0));
                all
            }
            Node::Top(Top::Control) => {
                let mut all = vec![
                    own("config.json", Node::Top(Top::Config)),
                    own("metrics", Node::Top(Top::Metrics)),
                    own("errors", Node::Top(Top::Errors)),
                ];
                // Without a mount it is listed as one would.
                if self.socket.get().is_some() || self.delivery.get().is_none() {
                    all.push(own("service.sock", Node::Top(Top::Service)));
                }
                all
            }
            Node::Inner(view, Inner::View) => self.inner(view),
            Node::Inner(view, Inner::Stream(s)) => vec![
                own("schema.json", Node::Inner(view, Inner::Schema(s))),
                own("record", Node::Inner(view, Inner::Records(s))),
                own("batch", Node::Inner(view, Inner::Batches(s))),
            ],
            Node::Inner(view, Inner::All) => {
                vec![own("batch", Node::Inner(view, Inner::AllBatches))]
            }
            _ => Vec::new(),
        }
    }

    /// What every view has.
    fn inner(&self, view: u16) -> Vec<(String, Node)> {
        let mut all = Vec::new();
        // A step of tokens has no record ids, and is the only stream.
        if self.dataset().tokens().is_none() {
            all.push(("index".to_owned(), Node::Inner(view, Inner::Indices)));
            all.push(("all".to_owned(), Node::Inner(view, Inner::All)));
        }
        let streams = self.dataset().streams().iter().enumerate();
        all.extend(
            streams.map(|(i, s)| (s.name.clone(), Node::Inner(view, Inner::Stream(i as u16)))),
        );
        all
    }

    /// How many numbered entries a listing of `folder` shows, and what they are: one cycle's
    /// steps, or all records. Any other step may be opened all the same.
    pub(crate) fn numbered(&self, folder: Node) -> Option<(u64, Item, Face)> {
        let view = self.views.get(folder.view())?;
        let steps = view.steps_per_cycle();
        match folder {
            Node::Inner(_, Inner::Batches(s)) => Some((steps, Item::Batch(s), Face::Bare)),
            Node::Inner(_, Inner::Indices) => Some((steps, Item::Index, Face::Bare)),
            Node::Inner(_, Inner::AllBatches) => Some((steps, Item::All, Face::Safetensors)),
            Node::Inner(_, Inner::Records(s)) => {
                Some((self.dataset().len(), Item::Record(s), Face::Bare))
            }
            _ => None,
        }
    }

    /// Calls `entry` with name, node and the offset that follows for each entry of `folder` from
    /// `offset` on, until it returns true (full).
    pub(crate) fn list(
        &self,
        folder: Node,
        offset: u64,
        mut entry: impl FnMut(&str, Node, u64) -> bool,
    ) {
        let dots = [".", ".."];
        for (i, name) in (0u64..).zip(dots).skip(offset as usize) {
            let node = if i == 1 { folder.parent() } else { folder };
            if entry(name, node, i + 1) {
                return;
            }
        }
        let at = offset.saturating_sub(2);
        if let Some((count, item, face)) = self.numbered(folder) {
            let mut name = String::new();
            for number in at..count {
                use std::fmt::Write as _;
                name.clear();
                // Writing to a String cannot fail.
                let _ = write!(name, "{number}{}", face.suffix());
                let node = Node::File(Key { view: folder.view(), item, face, number });
                if entry(&name, node, number + 3) {
                    return;
                }
            }
            return;
        }
        if folder == Node::Top(Top::Views) {
            // They come and go, so that their numbers are the offsets.
            for (number, name) in self.views.list().into_iter().filter(|(n, _)| u64::from(*n) > at)
            {
                if entry(&name, Node::Inner(number, Inner::View), u64::from(number) + 2) {
                    return;
                }
            }
            return;
        }
        for (i, (name, node)) in (0u64..).zip(self.named(folder)).skip(at as usize) {
            if entry(&name, node, i + 3) {
                return;
            }
        }
    }

    /// The contents of a node that is made as a whole, not gathered.
    pub(crate) fn text(&self, node: Node) -> Option<String> {
        match node {
            Node::Top(Top::Readme) => Some(guide::readme(self.main())),
            Node::Top(Top::Config) => Some(guide::config(self)),
            Node::Top(Top::Metrics) => Some(guide::metrics(self)),
            Node::Top(Top::Errors) => Some(self.errors.text()),
            Node::Inner(_, Inner::Schema(s)) => {
                self.dataset().stream(s).map(|s| format!("{:#}\n", s.describe()))
            }
            Node::File(key) if key.face == Face::Json => {
                self.views.get(key.view)?.describe(key).ok()
            }
            Node::Link(spec) => Some(spec.to_string()),
            Node::Top(Top::Service) => Some(self.socket.get()?.to_string_lossy().into_owned()),
            _ => None,
        }
    }

    /// Size of a node in bytes, 0 for a folder. Reads no payload.
    pub(crate) fn size(&self, node: Node) -> Result<Size, batchfs_batch::Error> {
        match node {
            Node::File(key) => match self.views.get(key.view) {
                Some(view) => Ok(view.size(key)?.map_or(Size::WhenMade(key), Size::Known)),
                None => Ok(Size::Known(0)),
            },
            node if node.is_dir() => Ok(Size::Known(0)),
            node => Ok(Size::Known(self.text(node).map_or(0, |t| t.len() as u64))),
        }
    }

    /// Writes down why something failed, and gives the errno for it.
    pub(crate) fn failed(&self, why: &batchfs_batch::Error) -> Errno {
        self.errors.add(kind(why), why);
        errno(why)
    }

    /// How long the kernel may remember what it is told of a node.
    pub(crate) fn ttls(node: Node) -> Ttls {
        Ttls {
            attr: if node.changes() { Duration::ZERO } else { LONG },
            name: if is_kept(node) { Duration::ZERO } else { LONG },
        }
    }

    pub(crate) fn attr(&self, ino: u64, node: Node, size: u64) -> FileAttr {
        let dir = node.is_dir();
        let folders = match dir {
            true => self.named(node).iter().filter(|(_, child)| child.is_dir()).count() as u32,
            false => 0,
        };
        let (kind, perm) = match node {
            Node::Link(_) | Node::Top(Top::Service) => (FileType::Symlink, 0o777),
            _ if dir => (FileType::Directory, 0o555),
            _ => (FileType::RegularFile, 0o444),
        };
        let time = if node.changes() { SystemTime::now() } else { self.modified };
        FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind,
            perm,
            nlink: if dir { 2 + folders } else { 1 },
            uid: self.uid,
            gid: self.gid,
            rdev: 0,
            // Programs that read a header buffer as much as this says: NumPy would read a whole
            // batch for the first 128 bytes of it.
            blksize: 4096,
            flags: 0,
        }
    }

    /// Totals for `df`: bytes of all records, number of files that a listing would show.
    pub(crate) fn totals(&self) -> (u64, u64) {
        let streams = self.dataset().streams();
        let bytes = streams.iter().map(|s| s.stream.payload_bytes()).fold(0, u64::saturating_add);
        let steps = self.main().steps_per_cycle();
        let each = steps.saturating_add(self.dataset().len()).saturating_add(4);
        let files = each.saturating_mul(streams.len() as u64).saturating_add(2 * steps + 8);
        (bytes, files)
    }
}

/// A name that is a number and a face.
fn numbered(view: u16, item: Item, name: &str) -> Result<Node, Missing> {
    let (number, face) = parse_numbered(name).ok_or(Missing::Plain)?;
    Ok(Node::File(Key { view, item, face, number }))
}
