//! Listings of folders.

use std::time::Duration;

use fuser::{FileType, INodeNo, ReplyDirectory, ReplyDirectoryPlus};

use crate::attr::Size;
use crate::fs::{BatchFs, GENERATION};
use crate::node::{Node, Top};
use crate::tree::Tree;

impl BatchFs {
    /// The entries of a folder from `offset` on.
    pub(crate) fn list(&self, ino: INodeNo, offset: u64, mut reply: ReplyDirectory) {
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

    /// The same with their attributes, which counts as looked up.
    pub(crate) fn list_plus(&self, ino: INodeNo, offset: u64, mut reply: ReplyDirectoryPlus) {
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
}
