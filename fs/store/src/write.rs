//! Writing to files: whole or an error, never a signal.

use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::path::{Path, PathBuf};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::uio::pwritev;

use crate::sys::start_writeback;
use crate::{Error, Result};

/// A new file that is written from front to end.
///
/// Small pieces are collected; large ones are written from where they are.
pub struct Output {
    file: File,
    /// What errors are about: the target, since the file itself is gone after an error.
    told: PathBuf,
    /// Bytes written to the file, without those collected.
    at: u64,
    collected: Vec<u8>,
    /// Up to where the kernel was asked to begin with the way to the disk.
    pushed: u64,
}

/// Pieces below this are collected, up to that.
const SMALL: usize = 64 << 10;
const COLLECT: usize = 256 << 10;
/// The way to the disk begins in steps of this, so that little is left for the end.
const PUSH: u64 = 8 << 20;

const WRITE: &str = "cannot be written, nothing of it was published";

impl Output {
    /// Makes the file `path`; errors are about `told`.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn create(path: &Path, told: &Path) -> Result<Self> {
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(path)
            .map_err(Error::io(told, WRITE))?;
        Ok(Self { file, told: told.into(), at: 0, collected: Vec::new(), pushed: 0 })
    }

    /// A whole file, on the disk.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn whole(path: &Path, told: &Path, bytes: &[u8]) -> Result<()> {
        let mut out = Self::create(path, told)?;
        out.append(bytes)?;
        out.sync()
    }

    /// Leaves a gap at the front, for [`fill`](Self::fill).
    pub fn skip(&mut self, bytes: u64) {
        self.at += bytes;
    }

    /// Adds bytes.
    ///
    /// # Errors
    /// [`Error::Io`], for a limit on the size of files, too.
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.append_all(&mut [IoSlice::new(bytes)])
    }

    pub(crate) fn append_all(&mut self, parts: &mut [IoSlice<'_>]) -> Result<()> {
        if parts.iter().map(|p| p.len()).sum::<usize>() < SMALL {
            parts.iter().for_each(|p| self.collected.extend_from_slice(p));
            return if self.collected.len() < COLLECT { Ok(()) } else { self.flush() };
        }
        self.flush()?;
        self.write(parts)
    }

    fn flush(&mut self) -> Result<()> {
        let mut collected = std::mem::take(&mut self.collected);
        self.write(&mut [IoSlice::new(&collected)])?;
        collected.clear();
        self.collected = collected;
        Ok(())
    }

    fn write(&mut self, parts: &mut [IoSlice<'_>]) -> Result<()> {
        self.at += write_all(&self.file, parts, self.at).map_err(Error::io(&self.told, WRITE))?;
        if self.at - self.pushed >= PUSH {
            start_writeback(&self.file, self.pushed, self.at - self.pushed);
            self.pushed = self.at;
        }
        Ok(())
    }

    /// Writes bytes to a gap.
    ///
    /// # Errors
    /// As [`append`](Self::append).
    pub fn fill(&mut self, bytes: &[u8], at: u64) -> Result<()> {
        write_all(&self.file, &mut [IoSlice::new(bytes)], at)
            .map(drop)
            .map_err(Error::io(&self.told, WRITE))
    }

    /// Brings all of it to the disk.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&mut self) -> Result<()> {
        self.flush()?;
        self.file.sync_all().map_err(Error::io(&self.told, WRITE))
    }
}

fn write_all(file: &File, mut parts: &mut [IoSlice<'_>], at: u64) -> io::Result<u64> {
    let mut left: u64 = parts.iter().map(|p| p.len() as u64).sum();
    let total = left;
    // Beyond `ulimit -f` a write is answered by SIGXFSZ, which ends the process unless it is
    // caught. Looking first makes it an error, and leaves the process's signals alone.
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if at.checked_add(total).is_none_or(|end| end > limit) {
        return Err(io::Error::from_raw_os_error(libc::EFBIG));
    }
    while left > 0 {
        let count = parts.len().min(1024);
        match pwritev(file, &parts[..count], (at + (total - left)) as libc::off_t) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                left -= n as u64;
                IoSlice::advance_slices(&mut parts, n);
            }
            Err(nix::errno::Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(total)
}

/// Makes a folder's entries last.
pub(crate) fn sync_folder(path: &Path, told: &Path) -> Result<()> {
    File::open(path).and_then(|f| f.sync_all()).map_err(Error::io(told, WRITE))
}
