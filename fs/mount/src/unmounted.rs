//! The tree without a mount: the same names, the same bytes.

use std::io;
use std::sync::Arc;

use batchfs_batch::{Batch, Engine, Error, Face, Item, Key, Making, Options, View};
use batchfs_region::{Arena, Config, HUGE_PAGE};

use crate::names::Missing;
use crate::node::{Node, Top};
use crate::tree::Tree;

/// Of what was found and is gone when it is looked at.
const GONE: &str = "it was there a moment ago";

/// What a mount would show, for those who need a file or two of it and no mount.
pub struct Unmounted {
    tree: Tree,
    threads: usize,
}

/// What a file holds.
pub enum Contents {
    /// A text that the tree makes by itself.
    Text(String),
    /// What was gathered.
    Batch(Batch),
}

/// Why a name cannot be read or listed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// There is no such name.
    #[error("{name}: there is no such file or folder; {there}")]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is instead.
        there: String,
    },
    /// A folder has no contents.
    #[error("{name}: is a folder, not a file")]
    Folder {
        /// Its name.
        name: String,
    },
    /// Only folders are listed and have names in them.
    #[error("{name}: is a file, not a folder")]
    File {
        /// Its name.
        name: String,
    },
    /// It tells how a mount is doing.
    #[error("{name}: only a mount has this file")]
    OnlyMounted {
        /// Its name.
        name: String,
    },
    /// No such view of this data.
    #[error("{0}")]
    View(String),
    /// It could be meant to be there, or could not be made.
    #[error(transparent)]
    Batch(#[from] Arc<Error>),
    /// No memory or threads.
    #[error("{name}: cannot be made: {source}")]
    Start {
        /// The file.
        name: String,
        /// The cause.
        source: io::Error,
    },
}

impl Contents {
    /// All of it.
    ///
    /// # Errors
    /// If it cannot be mapped.
    pub fn bytes(&self) -> io::Result<&[u8]> {
        match self {
            Contents::Text(text) => Ok(text.as_bytes()),
            Contents::Batch(batch) if batch.region().len() == 0 => Ok(&[]),
            Contents::Batch(batch) => batch.region().bytes(),
        }
    }
}

impl Unmounted {
    /// The tree of `view`; 0 `threads` gather on all cores.
    ///
    /// # Errors
    /// If memory or threads cannot be had.
    pub fn new(view: Arc<View>, threads: usize) -> io::Result<Unmounted> {
        // Names need an engine to ask, and none of its memory.
        let engine = engine(HUGE_PAGE, 1)?;
        Ok(Unmounted { tree: Tree::new(view, engine), threads })
    }

    /// What the file `name`, a path relative to the mount, holds.
    ///
    /// # Errors
    /// See [`NameError`].
    pub fn read(&self, name: &str) -> Result<Contents, NameError> {
        let own = || name.to_owned();
        let node = self.find(name)?;
        match node {
            _ if node.is_dir() => Err(NameError::Folder { name: own() }),
            Node::Top(Top::Metrics | Top::Errors | Top::Service) => {
                Err(NameError::OnlyMounted { name: own() })
            }
            Node::File(key) if !self.tree.is_text(key) => {
                let start = |source| NameError::Start { name: own(), source };
                let view = self.tree.views.get(key.view);
                let view = view.ok_or_else(|| unknown(name, GONE.to_owned()))?;
                let room = room(&view, key).map_err(Arc::new)?;
                // An empty record has no region.
                let empty = Contents::Text(String::new());
                if room == 0 {
                    return Ok(empty);
                }
                let engine = engine(room, self.threads).map_err(start)?;
                match engine.wait(key, &view) {
                    Ok(batch) => Ok(Contents::Batch(batch)),
                    Err(why) if matches!(*why, Error::Empty { .. }) => Ok(empty),
                    Err(why) => Err(why.into()),
                }
            }
            node => {
                let text = self.tree.text(node).ok_or_else(|| unknown(name, GONE.to_owned()))?;
                Ok(Contents::Text(text))
            }
        }
    }

    /// Calls `entry` with each name in the folder `name`, and whether it is a folder, until it
    /// returns true.
    ///
    /// # Errors
    /// See [`NameError`].
    pub fn list(
        &self,
        name: &str,
        mut entry: impl FnMut(&str, bool) -> bool,
    ) -> Result<(), NameError> {
        let folder = self.find(name)?;
        if !folder.is_dir() {
            return Err(NameError::File { name: name.to_owned() });
        }
        // The first two are the folder itself and the one that it is in.
        self.tree.list(folder, 2, |name, node, _| entry(name, node.is_dir()));
        Ok(())
    }

    /// What the path `name` stands for.
    fn find(&self, name: &str) -> Result<Node, NameError> {
        let mut at = Node::Top(Top::Root);
        let mut folder = String::new();
        for part in name.split('/').filter(|part| !matches!(*part, "" | ".")) {
            if !at.is_dir() {
                return Err(NameError::File { name: folder });
            }
            at = match part {
                ".." => at.parent(),
                part => self.step(at, part).map_err(|missing| match missing {
                    Missing::Plain => unknown(name, self.there(at, &folder)),
                    Missing::Because(why) => Arc::new(why).into(),
                    Missing::NoView(why) | Missing::Full(why) => NameError::View(why),
                })?,
            };
            if !folder.is_empty() {
                folder.push('/');
            }
            folder.push_str(part);
        }
        Ok(at)
    }

    fn step(&self, folder: Node, name: &str) -> Result<Node, Missing> {
        match self.tree.lookup(folder, name)?.0 {
            Node::Link(spec) => self.step(folder, &spec.to_string()),
            node => Ok(node),
        }
    }

    /// What can be named in a folder, in words.
    fn there(&self, folder: Node, name: &str) -> String {
        let what = match folder {
            Node::Top(Top::Views) => "specs, such as batch=64,seed=7".to_owned(),
            _ if self.tree.numbered(folder).is_some() => {
                "plain decimal numbers, some with a suffix such as .txt".to_owned()
            }
            _ => {
                let mut names = Vec::new();
                self.tree.list(folder, 2, |name, _, _| {
                    names.push(name.to_owned());
                    false
                });
                names.join(", ")
            }
        };
        if name.is_empty() { format!("there are {what}") } else { format!("{name} has {what}") }
    }
}

/// Bytes that it takes to make a file, half of which may be filled ahead: too few for another one.
fn room(view: &View, key: Key) -> Result<u64, Error> {
    let of_tokens = view.rows().is_some();
    if of_tokens && (matches!(key.item, Item::Record(_)) || key.face == Face::Json) {
        // How long a document is, or what is told of a step, is known when it was read.
        return Ok(u64::MAX);
    }
    let room = Arena::charge(view.layout(key)?.size);
    Ok(match view.making(key) {
        // What it is made from, and itself.
        Making::Rendered => room.saturating_mul(2).saturating_add(HUGE_PAGE),
        _ => room,
    })
}

fn unknown(name: &str, there: String) -> NameError {
    NameError::Unknown { name: name.to_owned(), there }
}

fn engine(limit: u64, threads: usize) -> io::Result<Engine> {
    let arena = Arena::new(&Config { limit, backing: None })?;
    Engine::new(arena, &Options { threads })
}

#[cfg(test)]
mod tests {
    use batchfs_batch::{Dataset, NamedStream};
    use batchfs_store::{DType, OpenOptions, Schema, Store, StoreWriter, WriteOptions};

    use super::*;

    fn tree(dir: &std::path::Path) -> Unmounted {
        let path = dir.join("s");
        let schema = Schema::ragged(DType::UInt8, 1);
        let mut writer = StoreWriter::create(&path, schema, WriteOptions::default()).unwrap();
        writer.append_ragged(b"onethree", &[3, 0, 5]).unwrap();
        writer.finish().unwrap();
        let stream = Arc::new(Store::open(&path, OpenOptions::default()).unwrap());
        let named = NamedStream { name: "s".to_owned(), stream };
        let data = Arc::new(Dataset::new(&path, vec![named]).unwrap());
        let spec: batchfs_sampler::Spec = "mode=sequential,batch=2".parse().unwrap();
        let view = Arc::new(View::new(0, "", data, spec).unwrap());
        Unmounted::new(view, 1).unwrap()
    }

    fn read(tree: &Unmounted, name: &str) -> Vec<u8> {
        tree.read(name).unwrap_or_else(|e| panic!("{e}")).bytes().unwrap().to_vec()
    }

    fn list(tree: &Unmounted, name: &str) -> Vec<String> {
        let mut all = Vec::new();
        let each = |name: &str, dir| {
            all.push(format!("{name}{}", if dir { "/" } else { "" }));
            false
        };
        tree.list(name, each).unwrap();
        all
    }

    #[test]
    fn files_are_read_by_their_names() {
        let tmp = tempfile::tempdir().unwrap();
        let tree = tree(tmp.path());
        assert_eq!(read(&tree, "s/record/0"), b"one");
        assert_eq!(read(&tree, "s/record/1"), b"");
        assert_eq!(read(&tree, "/./s/batch/..//record/2"), b"three"[..]);
        assert_eq!(&read(&tree, "s/batch/0")[..3], b"one");
        assert_eq!(read(&tree, "index/0"), [0u64, 1].map(u64::to_le_bytes).concat());
        assert!(read(&tree, "index/0.txt").ends_with(b"\n[0 1]\n"));
        let other = read(&tree, "view/batch=1,mode=sequential/index/2");
        assert_eq!(other, 2u64.to_le_bytes());
        assert_eq!(other, read(&tree, "view/mode=sequential,batch=1/index/2"));
        assert!(read(&tree, "s/batch/0.json").starts_with(b"{"));
        assert!(read(&tree, "README.txt").starts_with(b"This folder is a dataset"));
        let config = String::from_utf8(read(&tree, ".batchfs/config.json")).unwrap();
        assert!(config.contains("\"delivery\": \"none\""), "{config}");
    }

    #[test]
    fn folders_are_listed() {
        let tmp = tempfile::tempdir().unwrap();
        let tree = tree(tmp.path());
        let root = ["README.txt", ".batchfs/", "view/", "index/", "all/", "s/"];
        assert_eq!(list(&tree, ""), root);
        assert_eq!(list(&tree, "s/record/"), ["0", "1", "2"]);
        assert_eq!(list(&tree, "view/mode=iid,batch=3/all/batch"), ["0.safetensors"]);
        assert!(list(&tree, "view").contains(&"mode=iid,batch=3,seed=0/".to_owned()));
    }

    #[test]
    fn what_is_not_there_says_what_is() {
        let tmp = tempfile::tempdir().unwrap();
        let tree = tree(tmp.path());
        let no = |name: &str| tree.read(name).err().map(|e| e.to_string()).unwrap_or_default();
        assert_eq!(
            no("s/btch/0"),
            "s/btch/0: there is no such file or folder; s has schema.json, record, batch"
        );
        assert!(no("t").ends_with("there are README.txt, .batchfs, view, index, all, s"));
        assert!(no("s/batch/01").contains("s/batch has plain decimal numbers"));
        assert!(no("s/record/3").contains("s/record/3"));
        assert!(no("s/batch/0.npy").contains("a single array"));
        assert!(no("view/batch=9/index/0").contains("view/batch=9"));
        assert_eq!(no("s"), "s: is a folder, not a file");
        assert_eq!(no("README.txt/x"), "README.txt: is a file, not a folder");
        assert!(no(".batchfs/metrics").contains("only a mount"));
        assert!(tree.list("README.txt", |_, _| false).is_err());
    }
}
