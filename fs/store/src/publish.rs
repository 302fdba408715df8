//! How a folder comes to be whole or not at all: it is written beside its target under a name
//! that readers refuse, and gets its real name in one step at the end.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};

use crate::sys::rename_without_replacing;
use crate::write::sync_folder;
use crate::{Error, Result};

const MARK: &str = ".batchfs-tmp-";

/// The folder of a writer at work, beside its target. Dropped, it goes away with all that is in it.
///
/// It is locked (`flock`) as long as its writer lives, whatever way that ends, which is how
/// the next writer of the same name knows what it may clean up.
///
/// A child made by `fork` has a copy, and the folder stays its parent's.
pub struct TempFolder {
    dest: PathBuf,
    path: PathBuf,
    /// The process that writes it.
    owner: u32,
    lock: Option<Flock<File>>,
    published: bool,
}

impl TempFolder {
    /// A folder beside `dest`. Removes what dead writers of `dest` left behind.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is a `dest`, [`Error::Invalid`] if it cannot be a name,
    /// [`Error::Io`] if nothing can be made there.
    pub fn create(dest: &Path) -> Result<Self> {
        if dest.symlink_metadata().is_ok() {
            return Err(Error::Exists { path: dest.into() });
        }
        let name = dest.file_name().ok_or_else(|| {
            let why = "is not a name that a store can have".into();
            Error::Invalid { path: dest.into(), why }
        })?;
        if is_unfinished(dest) {
            let why = "is a name of the kind that unfinished writers have; choose another".into();
            return Err(Error::Invalid { path: dest.into(), why });
        }
        remove_leftovers(dest)?;
        let io = |e| Error::io(dest, "cannot create a folder beside it to write to")(e);
        loop {
            let random = RandomState::new().build_hasher().finish() as u32;
            let mut temp = prefix(name);
            temp.push(format!("{}-{random:08x}", std::process::id()));
            let path = dest.with_file_name(temp);
            match fs::create_dir(&path) {
                Ok(()) => {}
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => continue,
                Err(e) => return Err(io(e)),
            }
            // Between the two calls another writer may have taken it for a leftover.
            match try_lock(&path) {
                Ok(lock) if same(&lock, &path) => {
                    return Ok(Self {
                        dest: dest.into(),
                        path,
                        owner: std::process::id(),
                        lock: Some(lock),
                        published: false,
                    });
                }
                Ok(_) => {}
                Err(e)
                    if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::WouldBlock) => {}
                Err(e) => {
                    let _ = fs::remove_dir(&path);
                    return Err(io(e));
                }
            }
        }
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it will be.
    pub fn dest(&self) -> &Path {
        &self.dest
    }

    /// Whether this is the process that writes it, and no child that was forked from it.
    pub fn is_ours(&self) -> bool {
        self.owner == std::process::id()
    }

    pub(crate) fn check_ours(&self) -> Result<()> {
        if self.is_ours() {
            return Ok(());
        }
        let why = "its writer was made before a fork and is the parent process's".into();
        Err(Error::Invalid { path: self.dest.clone(), why })
    }

    /// Gives the folder its name. Its files must be on the disk already.
    ///
    /// # Errors
    /// [`Error::Exists`] if `dest` has come into being meanwhile, [`Error::Io`], and
    /// [`Error::Invalid`] in a forked child.
    pub fn publish(&mut self) -> Result<()> {
        self.check_ours()?;
        sync_folder(&self.path, &self.dest)?;
        self.rename(&self.path)?;
        self.published = true;
        sync_folder(parent(&self.dest), &self.dest)
    }

    /// Gives the name to one file of the folder instead; the rest goes away. It must be on the disk
    /// already.
    ///
    /// # Errors
    /// Those of [`publish`](Self::publish).
    pub fn publish_file(self, name: &str) -> Result<()> {
        self.check_ours()?;
        self.rename(&self.path.join(name))?;
        sync_folder(parent(&self.dest), &self.dest)
    }

    fn rename(&self, from: &Path) -> Result<()> {
        rename_without_replacing(from, &self.dest).map_err(|e| match e.kind() {
            io::ErrorKind::AlreadyExists => Error::Exists { path: self.dest.clone() },
            _ => Error::io(&self.dest, "cannot give what is finished its name")(e),
        })
    }
}

impl Drop for TempFolder {
    fn drop(&mut self) {
        if !self.is_ours() {
            // To unlock it would unlock the parent's, too.
            std::mem::forget(self.lock.take());
            return;
        }
        if !self.published {
            let _ = fs::remove_dir_all(&self.path);
        }
        drop(self.lock.take());
    }
}

/// Folders that writers of `dest` have beside it: those at work, and what killed ones left. No
/// reader opens them, and the next writer of `dest` removes those whose writer is dead.
///
/// # Errors
/// [`Error::Io`] if the folder that `dest` is in cannot be listed.
pub fn leftovers(dest: &Path) -> Result<Vec<PathBuf>> {
    let (Some(name), parent) = (dest.file_name(), parent(dest)) else { return Ok(Vec::new()) };
    let prefix = prefix(name);
    let mut found = Vec::new();
    for entry in fs::read_dir(parent).map_err(Error::io(parent, "cannot list"))? {
        let entry = entry.map_err(Error::io(parent, "cannot list"))?;
        if entry.file_name().as_encoded_bytes().starts_with(prefix.as_encoded_bytes()) {
            found.push(dest.with_file_name(entry.file_name()));
        }
    }
    found.sort();
    Ok(found)
}

/// Removes what killed writers of `dest` left beside it, as every writer of `dest` does at its start.
/// Returns what it removed. What cannot be removed stays: that is no reason not to write.
///
/// # Errors
/// As [`leftovers`].
pub fn remove_leftovers(dest: &Path) -> Result<Vec<PathBuf>> {
    let mut all = leftovers(dest)?;
    all.retain(|left| try_lock(left).is_ok_and(|_lock| fs::remove_dir_all(left).is_ok()));
    Ok(all)
}

/// Whether a path is, by its name, the folder of a writer that has not finished.
pub fn is_unfinished(path: &Path) -> bool {
    path.file_name().and_then(OsStr::to_str).is_some_and(|n| n.starts_with('.') && n.contains(MARK))
}

fn prefix(name: &OsStr) -> OsString {
    let mut prefix = OsString::from(".");
    prefix.push(name);
    prefix.push(MARK);
    prefix
}

fn parent(dest: &Path) -> &Path {
    match dest.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

fn try_lock(path: &Path) -> io::Result<Flock<File>> {
    let folder = File::open(path)?;
    Flock::lock(folder, FlockArg::LockExclusiveNonblock).map_err(|(_, e)| e.into())
}

fn same(lock: &File, path: &Path) -> bool {
    let id = |m: fs::Metadata| (m.dev(), m.ino());
    matches!((lock.metadata().map(id), path.metadata().map(id)), (Ok(a), Ok(b)) if a == b)
}
