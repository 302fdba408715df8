//! Answers the kernel.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use batchfs_batch::{Error, Face, Item, Key};
use fuser::{
    BsdFileFlags, Errno, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyXattr,
    Request, TimeOrNow,
};

use crate::files::{Files, Open};
use crate::inode::view_of;
use crate::node::{Node, Top};
use crate::session::Delivery;
use crate::tree::{Missing, Size, Tree};
use crate::waiting::{Held, Waiting};

const GENERATION: Generation = Generation(0);

pub(crate) struct BatchFs {
    tree: Arc<Tree>,
    files: Arc<Files>,
    waiting: Waiting,
    /// Told what the kernel offers, before the first request.
    offers_passthrough: Arc<std::sync::OnceLock<bool>>,
}

impl BatchFs {
    pub(crate) fn new(
        tree: Arc<Tree>,
        offers_passthrough: Arc<std::sync::OnceLock<bool>>,
    ) -> BatchFs {
        BatchFs { tree, files: Arc::default(), waiting: Waiting::default(), offers_passthrough }
    }

    fn node(&self, ino: INodeNo) -> Result<Node, Errno> {
        // Only a number that the kernel was told to forget, or never told, is unknown.
        let node = self.tree.inodes.node(ino.0).ok_or(Errno::ESTALE)?;
        self.tree.views.get(node.view()).map(|_| node).ok_or(Errno::ESTALE)
    }

    /// Goes on with the size in bytes: at once, or when the file is made, on another thread. What was
    /// made is kept for the open that follows.
    fn with_size(&self, size: Size, then: impl FnOnce(&Tree, Result<u64, Errno>) + Send + 'static) {
        match size {
            Size::Known(size) => then(&self.tree, Ok(size)),
            Size::WhenMade(key) => {
                let tree = self.tree.clone();
                let Some(view) = tree.views.get(key.view) else {
                    return then(&tree, Err(Errno::ESTALE));
                };
                self.tree.engine.open(key, &view, move |made| {
                    let size = match made {
                        Err(why) if matches!(*why, Error::Empty { .. }) => Ok(0),
                        made => made.map(|file| file.region().len() as u64),
                    };
                    then(&tree, size.map_err(|why| tree.failed(&why)));
                });
            }
        }
    }
}

impl Filesystem for BatchFs {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Without it one slow lookup blocks its whole folder. Kernels that lack it are slower.
        let _ = config.add_capabilities(InitFlags::FUSE_PARALLEL_DIROPS);
        // Listings come with attributes where somebody wants those.
        let plus = InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO;
        let _ = config.add_capabilities(plus);
        let mut offered = config.add_capabilities(InitFlags::FUSE_PASSTHROUGH).is_ok();
        // Both are needed, or every backing file is refused.
        offered = offered && config.set_max_stack_depth(1).is_ok();
        let _ = self.offers_passthrough.set(offered);
        Ok(())
    }

    fn lookup(&self, req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let folder = match self.node(parent) {
            Ok(folder) => folder,
            Err(e) => return reply.error(e),
        };
        let found = match name.to_str() {
            Some(name) => self.tree.lookup(folder, name),
            None => Err(Missing::Plain),
        };
        let (node, size) = match found {
            Ok(found) => found,
            Err(Missing::Plain) => return reply.error(Errno::ENOENT),
            Err(Missing::Because(why)) => return reply.error(self.tree.failed(&why)),
            Err(Missing::NoView(why)) => {
                self.tree.errors.add(Some("no view"), why);
                return reply.error(Errno::ENOENT);
            }
            Err(Missing::Full(why)) => {
                self.tree.errors.add(Some("no view"), why);
                reply.error(Errno::ENFILE);
                return self.tree.tidy_views();
            }
        };
        let held = Held::new(reply);
        let waits = held.clone();
        self.with_size(size, move |tree, size| {
            let Some(reply) = held.take() else { return };
            let size = match size {
                Ok(size) => size,
                Err(e) => return reply.error(e),
            };
            let Some(ino) = tree.told(node) else {
                return reply.error(Errno::EIO);
            };
            let ttls = Tree::ttls(node);
            let attr = tree.attr(ino, node, size);
            reply.entry_with_ttls(&ttls.attr, &ttls.name, &attr, GENERATION);
        });
        self.waiting.watch(req, waits);
        if parent.0 == Top::Views as u64 {
            self.tree.tidy_views();
        }
    }

    fn forget(&self, _req: &Request, ino: INodeNo, nlookup: u64) {
        self.tree.forget(ino.0, nlookup);
    }

    fn getattr(&self, req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        let node = match self.node(ino) {
            Ok(node) => node,
            Err(e) => return reply.error(e),
        };
        match self.tree.size(node) {
            Ok(size) => {
                let held = Held::new(reply);
                let waits = held.clone();
                self.with_size(size, move |tree, size| {
                    let Some(reply) = held.take() else { return };
                    match size {
                        Ok(size) => {
                            reply.attr(&Tree::ttls(node).attr, &tree.attr(ino.0, node, size));
                        }
                        Err(e) => reply.error(e),
                    }
                });
                self.waiting.watch(req, waits);
            }
            Err(why) => reply.error(self.tree.failed(&why)),
        }
    }

    fn open(&self, req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        // The mount is read-only, yet a write open of a region would go past every seal.
        if flags.acc_mode() != OpenAccMode::O_RDONLY {
            return reply.error(Errno::EROFS);
        }
        let node = match self.node(ino) {
            Ok(node) => node,
            Err(e) => return reply.error(e),
        };
        let key = match node {
            // An empty record of a ragged stream has no region.
            Node::File(Key { item: Item::Record(_), face: Face::Bare, .. })
                if matches!(self.tree.size(node), Ok(Size::Known(0))) =>
            {
                let flags = FopenFlags::FOPEN_KEEP_CACHE;
                return self.files.open(Open::Text("".into()), flags, reply);
            }
            Node::File(key) if !self.tree.is_text(key) => key,
            node => {
                return match self.tree.text(node) {
                    Some(text) => {
                        let flags = if node.changes() {
                            FopenFlags::FOPEN_DIRECT_IO
                        } else {
                            FopenFlags::FOPEN_KEEP_CACHE
                        };
                        self.files.open(Open::Text(text.into()), flags, reply);
                    }
                    None => reply.error(Errno::ENOENT),
                };
            }
        };
        let Some(view) = self.tree.views.get(key.view) else { return reply.error(Errno::ESTALE) };
        let (tree, files) = (self.tree.clone(), self.files.clone());
        let name = view.name(key);
        let pass = self.tree.delivery.get() == Some(&Delivery::Passthrough);
        let held = Held::new(reply);
        let waits = held.clone();
        self.tree.engine.open(key, &view, move |made| {
            // Why it failed is worth knowing for those who did not wait for it, too.
            let made = made.map_err(|why| match *why {
                Error::Empty { .. } => None,
                _ => Some(tree.failed(&why)),
            });
            let Some(reply) = held.take() else { return };
            match made {
                Ok(batch) if pass => {
                    if let Err(e) = files.pass(ino.0, batch, reply) {
                        let why = format!("{name}: the kernel refused its region: {e}");
                        tree.errors.add(None, why);
                    }
                }
                Ok(batch) => {
                    let flags = FopenFlags::FOPEN_KEEP_CACHE;
                    files.open(Open::Region(Arc::new(batch)), flags, reply);
                }
                Err(None) => {
                    files.open(Open::Text("".into()), FopenFlags::FOPEN_KEEP_CACHE, reply);
                }
                Err(Some(errno)) => reply.error(errno),
            }
        });
        self.waiting.watch(req, waits);
    }

    fn read(
        &self,
        _req: &Request,
        _ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(file) = self.files.get(fh) else { return reply.error(Errno::EBADF) };
        let bytes = match file.bytes() {
            Ok(bytes) => bytes,
            Err(e) => {
                self.tree.errors.add(None, format!("a batch could not be mapped to be read: {e}"));
                return reply.error(Errno::ENOMEM);
            }
        };
        let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let to = from.saturating_add(size as usize).min(bytes.len());
        reply.data(&bytes[from..to]);
    }

    fn release(
        &self,
        _req: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.files.release(ino.0, fh);
        reply.ok();
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.tree.views.folder(view_of(ino.0), true);
        reply.opened(FileHandle(0), FopenFlags::empty());
    }

    fn releasedir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.tree.views.folder(view_of(ino.0), false);
        reply.ok();
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let folder = match self.node(ino) {
            Ok(folder) => folder,
            Err(e) => return reply.error(e),
        };
        self.tree.list(folder, offset, |name, node, next| {
            let kind = match node {
                Node::Top(Top::Service) => FileType::Symlink,
                _ if node.is_dir() => FileType::Directory,
                _ => FileType::RegularFile,
            };
            // A number that has to be kept has no inode until it is looked up; any will do here.
            let ino = self.tree.inodes.number(node, false).unwrap_or(u64::MAX);
            reply.add(INodeNo(ino), next, kind, name)
        });
        reply.ok();
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let folder = match self.node(ino) {
            Ok(folder) => folder,
            Err(e) => return reply.error(e),
        };
        self.tree.list(folder, offset, |name, node, next| {
            // The kernel takes no inodes from these two.
            let told = !matches!(name, "." | "..");
            let ino = match told {
                true => self.tree.listed(node, name),
                false => self.tree.inodes.number(node, false),
            };
            let Some(ino) = ino else { return false };
            let (size, ttl) = match self.tree.size(node) {
                Ok(Size::Known(size)) => (size, Tree::ttls(node).both()),
                // Whoever wants to know has to ask, and gets an answer or the reason.
                Ok(Size::WhenMade(_)) | Err(_) => (0, Duration::ZERO),
            };
            let attr = self.tree.attr(ino, node, size);
            let full = reply.add(INodeNo(ino), next, name, &ttl, &attr, GENERATION);
            if full && told {
                self.tree.forget(ino, 1);
            }
            full
        });
        reply.ok();
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        match self.node(ino) {
            Ok(node @ (Node::Link(_) | Node::Top(Top::Service))) => match self.tree.text(node) {
                Some(target) => reply.data(target.as_bytes()),
                None => reply.error(Errno::ENOENT),
            },
            Ok(_) => reply.error(Errno::EINVAL),
            Err(e) => reply.error(e),
        }
    }

    fn statfs(&self, _req: &Request, _ino: INodeNo, reply: ReplyStatfs) {
        const BLOCK: u32 = 4096;
        let (bytes, files) = self.tree.totals();
        reply.statfs(bytes.div_ceil(BLOCK.into()).max(1), 0, 0, files, 0, BLOCK, 255, BLOCK);
    }

    fn getxattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _size: u32,
        reply: ReplyXattr,
    ) {
        reply.error(Errno::ENODATA);
    }

    fn listxattr(&self, _req: &Request, _ino: INodeNo, size: u32, reply: ReplyXattr) {
        if size == 0 { reply.size(0) } else { reply.data(&[]) }
    }

    fn setattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.error(Errno::EROFS);
    }
}
