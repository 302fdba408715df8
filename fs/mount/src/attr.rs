//! Sizes, times and modes, and how long the kernel may remember them.

use std::time::{Duration, SystemTime};

use batchfs_batch::Key;
use fuser::{FileAttr, FileType, INodeNo};

use crate::inode::is_kept;
use crate::node::{Node, Top};
use crate::tree::Tree;

/// Nothing ever changes, so the kernel may remember for good; but for what does.
const LONG: Duration = Duration::from_secs(365 * 24 * 3600);

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

impl Tree {
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
