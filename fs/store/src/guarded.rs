use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;

use crate::sys::Mapping;
use crate::{Error, Result};

/// An immutable file that is read through a mapping, and stays an error, not a dead process, when
/// it is cut short or its disk fails.
///
/// [`copy_to`](Self::copy_to) is the fast way and may copy zeros where the file failed;
/// [`damaged`](Self::damaged) tells so afterwards, and [`read_at`](Self::read_at) then gives the
/// bytes or the cause. No descriptor is held: the file is opened again, and must still be the
/// same one, when `read_at` needs it.
pub struct GuardedFile {
    path: PathBuf,
    id: (u64, u64),
    len: u64,
    map: Option<Mapping>,
}

impl GuardedFile {
    /// Opens and maps a regular file.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be opened, [`Error::BadStore`] if it is not a regular file.
    pub fn open(path: impl Into<PathBuf>) -> Result<Self> {
        let path = path.into();
        // It may be opened again after the process has changed its folder.
        let path = std::path::absolute(&path).map_err(Error::io(&path, "cannot find"))?;
        let (file, meta) = open_regular(&path, "cannot open")?;
        let map = match usize::try_from(meta.len()) {
            Ok(len) => Mapping::new(&file, len).map_err(Error::io(&path, "cannot map"))?,
            Err(_) => None,
        };
        Ok(Self { path, id: (meta.dev(), meta.ino()), len: meta.len(), map })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Its length in bytes when it was opened.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether [`copy_to`](Self::copy_to) cannot be trusted, neither from now on nor in what it
    /// copied since the last look.
    #[inline]
    pub fn damaged(&self) -> bool {
        self.map.as_ref().is_none_or(Mapping::damaged)
    }

    /// Copies bytes from `offset` on without a system call. What it copied counts only if
    /// [`damaged`](Self::damaged) says `false` afterwards.
    ///
    /// # Panics
    /// If the range is not inside of the file.
    #[inline]
    pub fn copy_to(&self, offset: u64, out: &mut [u8]) {
        if let Some(map) = &self.map {
            map.copy_to(offset as usize, out);
        }
    }

    /// As [`copy_to`](Self::copy_to), past the caches: faster where much more is copied than fits.
    pub(crate) fn copy_past_cache(&self, offset: u64, out: &mut [u8]) {
        if let Some(map) = &self.map {
            map.copy_past_cache(offset as usize, out);
        }
    }

    /// The mapping, for [`send`](crate::sys::send). What is sent from it counts, too, only if
    /// [`damaged`](Self::damaged) says `false` afterwards.
    pub(crate) fn mapping(&self) -> Option<&Mapping> {
        self.map.as_ref()
    }

    /// Has the processor fetch bytes that [`copy_to`](Self::copy_to) will soon want.
    ///
    /// # Panics
    /// If the range is not inside of the file.
    #[inline]
    pub fn prefetch(&self, offset: u64, len: usize) {
        if let Some(map) = &self.map {
            map.prefetch(offset as usize, len);
        }
    }

    /// The mapped pages of a range, for [`will_need`](crate::sys::will_need).
    ///
    /// # Panics
    /// If the range is not inside of the file.
    pub(crate) fn pages(&self, offset: u64, len: usize) -> Option<(usize, usize)> {
        self.map.as_ref().map(|map| map.pages(offset as usize, len))
    }

    /// Says that reads will be at random places, and announced, so that the kernel does not read
    /// around them.
    pub fn random(&self) {
        if let Some(map) = &self.map {
            map.random();
        }
    }

    /// Reads bytes from `offset` on by system calls, past any damage of the mapping.
    ///
    /// # Errors
    /// [`Error::BadStore`] if the file is shorter than that by now, or another file has its name;
    /// [`Error::Io`] if it cannot be read.
    pub fn read_at(&self, offset: u64, mut out: &mut [u8]) -> Result<()> {
        let file = self.reopen()?;
        let mut at = offset;
        while !out.is_empty() {
            match file.read_at(out, at) {
                Ok(0) => {
                    let wanted = at + out.len() as u64;
                    let ends = file.metadata().map_or(at, |m| m.len().min(at));
                    let why = format!(
                        "is cut short: bytes {offset}..{wanted} are wanted, it ends at {ends}"
                    );
                    return Err(Error::BadStore { path: self.path.clone(), why });
                }
                Ok(n) => {
                    out = &mut out[n..];
                    at += n as u64;
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io(&self.path, "cannot read")(e)),
            }
        }
        Ok(())
    }

    /// The file itself, if its name still leads to it.
    pub(crate) fn reopen(&self) -> Result<File> {
        let (file, meta) = open_regular(&self.path, "cannot open again")?;
        if (meta.dev(), meta.ino()) != self.id {
            let why = "was replaced by another file while it was open; open it anew".into();
            return Err(Error::BadStore { path: self.path.clone(), why });
        }
        Ok(file)
    }
}

/// Opens a regular file for reading. What is none is refused at once: it is looked at before it is
/// opened, for opening a device may do something, and again afterwards, and no pipe that takes its
/// place in between is waited for.
pub(crate) fn open_regular(path: &Path, action: &'static str) -> Result<(File, Metadata)> {
    let regular = |meta: Metadata| {
        if meta.is_file() {
            return Ok(meta);
        }
        let why = "is a pipe, socket, device or folder, not a regular file".into();
        Err(Error::BadStore { path: path.into(), why })
    };
    regular(path.metadata().map_err(Error::io(path, action))?)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)
        .map_err(Error::io(path, action))?;
    let meta = regular(file.metadata().map_err(Error::io(path, "cannot stat"))?)?;
    Ok((file, meta))
}
