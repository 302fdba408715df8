//! Names, attributes and small contents of everything in the mount.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use batchfs_batch::{Dataset, Engine, Face, Item, Key, View};
use fuser::{Errno, FileAttr, FileType, INodeNo};

use crate::errlog::ErrorLog;
use crate::errno::{errno, kind};
use crate::guide;
use crate::inode::{Inodes, is_kept};
use crate::node::{Inner, Node, Top, parse_numbered};
use crate::session::Delivery;

/// Nothing ever changes, so the kernel may remember for good; but for what does.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

/// The view of the root folder.
const MAIN: u16 = 0;

pub(crate) struct Tree {
    pub(crate) view: Arc<View>,
    pub(crate) engine: Engine,
    pub(crate) errors: ErrorLog,
    pub(crate) inodes: Inodes,
    /// How regions reach readers; known once the kernel was asked.
    pub(crate) delivery: std::sync::OnceLock<Delivery>,
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
}

impl Tree {
    pub(crate) fn new(view: Arc<View>, engine: Engine) -> Tree {
        Tree {
            modified: view.dataset().modified(),
            view,
            engine,
            errors: ErrorLog::default(),
            inodes: Inodes::default(),
            delivery: std::sync::OnceLock::new(),
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
        }
    }

    fn dataset(&self) -> &Dataset {
        self.view.dataset()
    }

    /// What `name` in the folder `parent` stands for, and its size.
    pub(crate) fn lookup(&self, parent: Node, name: &str) -> Result<(Node, Size), Missing> {
        let numbered = |item: Item| {
            let (number, face) = parse_numbered(name).ok_or(Missing::Plain)?;
            let key = Key { view: MAIN, item, face, number };
            let node = Node::File(key);
            Ok((node, self.size(node).map_err(Missing::Because)?))
        };
        match parent {
            Node::Inner(_, Inner::Batches(s)) => numbered(Item::Batch(s)),
            Node::Inner(_, Inner::Records(s)) => numbered(Item::Record(s)),
            Node::Inner(_, Inner::Indices) => numbered(Item::Index),
            Node::Inner(_, Inner::AllBatches) => numbered(Item::All),
            folder => {
                let found = self.named(folder).into_iter().find(|(n, _)| n == name);
                let (_, node) = found.ok_or(Missing::Plain)?;
                Ok((node, self.size(node).map_err(Missing::Because)?))
            }
        }
    }

    /// The entries of a folder that have names rather than numbers.
    fn named(&self, folder: Node) -> Vec<(String, Node)> {
        let own = |name: &str, node| (name.to_owned(), node);
        match folder {
            Node::Top(Top::Root) => {
                let mut all = vec![
                    own("README.txt", Node::Top(Top::Readme)),
                    own(".batchfs", Node::Top(Top::Control)),
                    own("index", Node::Inner(MAIN, Inner::Indices)),
                    own("all", Node::Inner(MAIN, Inner::All)),
                ];
                let streams = self.dataset().streams().iter().enumerate();
                all.extend(
                    streams.map(|(i, s)| own(&s.name, Node::Inner(MAIN, Inner::Stream(i as u16)))),
                );
                all
            }
            Node::Top(Top::Control) => vec![
                own("config.json", Node::Top(Top::Config)),
                own("metrics", Node::Top(Top::Metrics)),
                own("errors", Node::Top(Top::Errors)),
            ],
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

    /// How many numbered entries a listing of `folder` shows, and what they are: one cycle's
    /// steps, or all records. Any other step may be opened all the same.
    fn numbered(&self, folder: Node) -> Option<(u64, Item, Face)> {
        let steps = self.view.sampler().steps_per_cycle();
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
            let node = if i == 1 { parent(folder) } else { folder };
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
                let node = Node::File(Key { view: MAIN, item, face, number });
                if entry(&name, node, number + 3) {
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
            Node::Top(Top::Readme) => Some(guide::readme(&self.view)),
            Node::Top(Top::Config) => Some(guide::config(self)),
            Node::Top(Top::Metrics) => Some(guide::metrics(&self.engine)),
            Node::Top(Top::Errors) => Some(self.errors.text()),
            Node::Inner(_, Inner::Schema(s)) => {
                self.dataset().stream(s).map(|s| format!("{:#}\n", s.describe()))
            }
            Node::File(key) if key.face == Face::Json => self.view.describe(key).ok(),
            _ => None,
        }
    }

    /// Size of a node in bytes, 0 for a folder. Reads no payload.
    pub(crate) fn size(&self, node: Node) -> Result<Size, batchfs_batch::Error> {
        match node {
            Node::File(key) => Ok(self.view.size(key)?.map_or(Size::WhenMade(key), Size::Known)),
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
        let time = if node.changes() { SystemTime::now() } else { self.modified };
        FileAttr {
            ino: INodeNo(ino),
            size,
            blocks: size.div_ceil(512),
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: if dir { FileType::Directory } else { FileType::RegularFile },
            perm: if dir { 0o555 } else { 0o444 },
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
        let steps = self.view.sampler().steps_per_cycle();
        let each = steps.saturating_add(self.dataset().len()).saturating_add(4);
        let files = each.saturating_mul(streams.len() as u64).saturating_add(2 * steps + 8);
        (bytes, files)
    }
}

fn parent(node: Node) -> Node {
    match node {
        Node::Inner(view, Inner::Records(s) | Inner::Batches(s)) => {
            Node::Inner(view, Inner::Stream(s))
        }
        Node::Inner(view, Inner::AllBatches) => Node::Inner(view, Inner::All),
        _ => Node::Top(Top::Root),
    }
}
