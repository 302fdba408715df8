//! What names stand for, and what listings show.

use batchfs_batch::{Face, Item, Key};

use crate::attr::Size;
use crate::node::{Inner, Node, Top, parse_numbered};
use crate::tree::Tree;
use crate::views::NoView;

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

    /// The entries of a folder that have names rather than numbers.
    pub(crate) fn named(&self, folder: Node) -> Vec<(String, Node)> {
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
        let mut all = vec![("index".to_owned(), Node::Inner(view, Inner::Indices))];
        // Tokens are the only stream.
        if self.dataset().tokens().is_none() {
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
}

/// A name that is a number and a face.
fn numbered(view: u16, item: Item, name: &str) -> Result<Node, Missing> {
    let (number, face) = parse_numbered(name).ok_or(Missing::Plain)?;
    Ok(Node::File(Key { view, item, face, number }))
}
