//! Files on this machine.

use std::fs;
use std::io::{self, ErrorKind, Read as _, Seek as _, SeekFrom};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use batchfs_store::{Error, Result};
use bytes::Bytes;

use crate::place::{CHANGED, File, GONE, Place, bad_file, has_suffix, is_data, is_hidden};

/// Folders in folders that are followed; more are a loop of links.
const DEEPEST: usize = 64;

/// A folder, or one file.
pub(crate) struct Local {
    root: PathBuf,
    origin: String,
    /// `root` is a file, not a folder.
    single: bool,
    received: AtomicU64,
    kept: Arc<Kept>,
}

/// Buffers that were read into and are free again: new memory takes as long as the read.
#[derive(Default)]
struct Kept(Mutex<Vec<Vec<u8>>>);

/// Larger ones are rare, and not kept.
const LARGEST: usize = 32 << 20;

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        // Whole at each point where something could panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A buffer that is given back.
struct Lent {
    bytes: Vec<u8>,
    kept: Arc<Kept>,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let mut kept = self.kept.lock();
        if self.bytes.capacity() <= LARGEST && kept.len() < parallel() {
            kept.push(std::mem::take(&mut self.bytes));
        }
    }
}

fn parallel() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

impl Local {
    pub(crate) fn new(path: &Path) -> Result<Local> {
        let root = path.canonicalize().map_err(Error::io(path, "cannot open"))?;
        let single = !root.is_dir();
        let origin = root.display().to_string();
        Ok(Local { root, origin, single, received: AtomicU64::new(0), kept: Arc::default() })
    }

    fn path(&self, key: &str) -> PathBuf {
        if self.single { self.root.clone() } else { self.root.join(key) }
    }

    fn walk(&self, folder: &Path, key: &str, depth: usize, out: &mut Vec<File>) -> Result<()> {
        if depth > DEEPEST {
            return Err(bad_file(
                folder.display().to_string(),
                "lies too deep; is there a link to a folder above? If so, remove it",
            ));
        }
        let io = |e| Error::io(folder, "cannot list")(e);
        for entry in fs::read_dir(folder).map_err(io)? {
            let path = entry.map_err(io)?.path();
            let Some(name) = path.file_name() else { continue };
            if is_hidden(name.as_encoded_bytes()) {
                continue;
            }
            let meta = match fs::metadata(&path) {
                Ok(meta) => meta,
                // A link that leads nowhere is an error only if it was meant to be data.
                Err(_) if !has_suffix(&name.to_string_lossy()) => continue,
                Err(e) => return Err(Error::io(path, "cannot open")(e)),
            };
            let data = meta.is_dir() || has_suffix(&name.to_string_lossy());
            let name = match name.to_str() {
                Some(name) => name,
                None if !data => continue,
                None => {
                    let name = path.display().to_string();
                    return Err(bad_file(name, "has a name that is not UTF-8; rename it"));
                }
            };
            let key = if key.is_empty() { name.to_owned() } else { format!("{key}/{name}") };
            if meta.is_dir() {
                self.walk(&path, &key, depth + 1, out)?;
            } else if is_data(&key) {
                out.push(describe(key, &meta));
            }
        }
        Ok(())
    }
}

fn describe(key: String, meta: &fs::Metadata) -> File {
    let modified = meta
        .modified()
        .ok()
        .and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok())
        .map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    File { key, size: meta.len(), version: modified.to_string(), modified }
}

impl Place for Local {
    fn origin(&self) -> &str {
        &self.origin
    }

    fn name(&self, key: &str) -> String {
        self.path(key).display().to_string()
    }

    fn list(&self) -> Result<Vec<File>> {
        let mut files = Vec::new();
        if self.single {
            let meta = fs::metadata(&self.root).map_err(Error::io(&self.root, "cannot open"))?;
            let key = self.root.file_name().map(|n| n.to_string_lossy().into_owned());
            files.push(describe(key.unwrap_or_default(), &meta));
        } else {
            self.walk(&self.root, "", 0, &mut files)?;
        }
        files.sort_by(|a, b| a.key.as_bytes().cmp(b.key.as_bytes()));
        Ok(files)
    }

    fn read(&self, file: &File, range: Range<u64>) -> Result<Bytes> {
        let path = self.path(&file.key);
        // Not kept open: there can be more files than a process may have descriptors.
        let handle = fs::File::open(&path).map_err(|e| match e.kind() {
            ErrorKind::NotFound => {
                let source = io::Error::new(ErrorKind::NotFound, format!("{e}; {GONE}"));
                Error::Io { path: path.clone(), action: "cannot open", source }
            }
            _ => Error::io(&path, "cannot open")(e),
        })?;
        let same = || -> Result<()> {
            let meta = handle.metadata().map_err(Error::io(&path, "cannot open"))?;
            let now = describe(file.key.clone(), &meta);
            match (now.size, &now.version) == (file.size, &file.version) {
                true => Ok(()),
                false => Err(bad_file(path.display().to_string(), CHANGED)),
            }
        };
        same()?;
        let len = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut bytes = self.kept.lock().pop().unwrap_or_default();
        bytes.clear();
        bytes.reserve_exact(len);
        // Not into zeros: to clear new memory takes as long as the read.
        let read = (&handle)
            .seek(SeekFrom::Start(range.start))
            .and_then(|_| (&handle).take(len as u64).read_to_end(&mut bytes))
            .and_then(|n| if n == len { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) });
        // It can have been written to meanwhile; then it was cut short, too.
        same()?;
        read.map_err(Error::io(&path, "cannot read"))?;
        self.received.fetch_add(len as u64, Ordering::Relaxed);
        Ok(Bytes::from_owner(Lent { bytes, kept: self.kept.clone() }))
    }

    fn parallel(&self) -> usize {
        parallel()
    }

    fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }
}
