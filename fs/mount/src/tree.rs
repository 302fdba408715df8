//! Everything in the mount: what it is made of, what the kernel was told of it, and small contents.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

use batchfs_batch::{Dataset, Engine, Face, Key, Making, View};
use fuser::{Errno, INodeNo, Notifier};

use crate::errlog::ErrorLog;
use crate::errno::{errno, kind};
use crate::guide;
use crate::inode::{Inodes, view_of};
use crate::node::{Inner, Node, Top};
use crate::session::Delivery;
use crate::views::Views;

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
    pub(crate) modified: SystemTime,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
}

impl Tree {
    pub(crate) fn new(view: Arc<View>, engine: Engine) -> Tree {
        let errors = ErrorLog::default();
        view.dataset().notes().iter().for_each(|note| errors.add(None, note));
        Tree {
            modified: view.dataset().modified(),
            views: Views::new(view),
            engine,
            errors,
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

    pub(crate) fn dataset(&self) -> &Dataset {
        self.main().dataset()
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

    /// The contents of a node that is made as a whole, not gathered.
    pub(crate) fn text(&self, node: Node) -> Option<String> {
        match node {
            Node::Top(Top::Readme) => Some(guide::readme(self.main())),
            Node::Top(Top::Config) => Some(guide::config(self)),
            Node::Top(Top::Metrics) => Some(guide::metrics(self)),
            Node::Top(Top::Errors) => Some(self.errors.text()),
            Node::Inner(view, Inner::Schema(s)) => {
                Some(format!("{:#}\n", self.views.get(view)?.schema(s)?))
            }
            Node::File(key) if self.is_text(key) => self.views.get(key.view)?.describe(key).ok(),
            Node::Link(spec) => Some(spec.to_string()),
            Node::Top(Top::Service) => Some(self.socket.get()?.to_string_lossy().into_owned()),
            _ => None,
        }
    }

    /// Whether a file is made from the index alone, without a region.
    pub(crate) fn is_text(&self, key: Key) -> bool {
        match self.views.get(key.view) {
            Some(view) => view.making(key) == Making::Described,
            None => key.face == Face::Json,
        }
    }

    /// Writes down why something failed, and gives the errno for it.
    pub(crate) fn failed(&self, why: &batchfs_batch::Error) -> Errno {
        self.errors.add(kind(why), why);
        errno(why)
    }
}
