//! Answers the kernel.

use std::ffi::OsStr;
use std::io;
use std::sync::Arc;

use batchfs_batch::Error;
use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags,
    KernelConfig, LockOwner, OpenAccMode, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyXattr, Request,
    TimeOrNow,
};

use crate::attr::Size;
use crate::files::Files;
use crate::inode::view_of;
use crate::names::Missing;
use crate::node::{Node, Top};
use crate::tree::Tree;
use crate::waiting::{Held, Waiting};

pub(crate) const GENERATION: Generation = Generation(0);

pub(crate) struct BatchFs {
    pub(crate) tree: Arc<Tree>,
    pub(crate) files: Arc<Files>,
    pub(crate) waiting: Waiting,
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

    pub(crate) fn node(&self, ino: INodeNo) -> Result<Node, Errno> {
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
        self.open_file(req, ino, reply);
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
        reply: ReplyDirectory,
    ) {
        self.list(ino, offset, reply);
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.list_plus(ino, offset, reply);
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

    // Nothing here has extended attributes. After this answer the kernel says so itself (EOPNOTSUPP),
    // instead of asking for each file that `ls -l` shows.
    fn getxattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _size: u32,
        reply: ReplyXattr,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn listxattr(&self, _req: &Request, _ino: INodeNo, _size: u32, reply: ReplyXattr) {
        reply.error(Errno::ENOSYS);
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
