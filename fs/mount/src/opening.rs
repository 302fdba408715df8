//! Opening a file: its text, or its region when it is filled.

use std::sync::Arc;

use batchfs_batch::{Error, Face, Item, Key};
use fuser::{Errno, FopenFlags, INodeNo, ReplyOpen, Request};

use crate::attr::Size;
use crate::files::Open;
use crate::fs::BatchFs;
use crate::node::Node;
use crate::session::Delivery;
use crate::waiting::Held;

impl BatchFs {
    /// Opens a file to be read. Does not wait for its region.
    pub(crate) fn open_file(&self, req: &Request, ino: INodeNo, reply: ReplyOpen) {
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
}
