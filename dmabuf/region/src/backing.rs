use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use nix::errno::Errno;
use nix::fcntl::{
    AT_FDCWD, AtFlags, FallocateFlags, FcntlArg, OFlag, SealFlag, fallocate, fcntl, openat,
};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::{Mode, fchmod};
use nix::sys::uio::pwrite;
use nix::unistd::{SysconfVar, UnlinkatFlags, ftruncate, linkat, sysconf, unlinkat};

use crate::sys::{Mapping, private_tmpfs, read_only_twin, sole_user, tmpfs_in_namespace};

/// What arrays in a batch's file begin at a multiple of, on every machine: no page is smaller.
pub const PAGE: u64 = 4096;

/// Bytes of a small page of this machine: more than [`PAGE`] with some kernels on aarch64. Regions are
/// charged in whole ones, and a dma-buf is made of whole ones.
pub fn page_size() -> u64 {
    let told = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    told.and_then(|size| u64::try_from(size).ok()).unwrap_or(PAGE)
}

/// Bytes of a huge page.
pub const HUGE_PAGE: u64 = 2 << 20;

/// Regions of at least this size lie in huge pages, and are charged for whole ones.
pub const HUGE_FROM: u64 = HUGE_PAGE;

/// The mode of a region's file. Whoever gets a descriptor of one can open it anew.
const READ_ONLY: Mode = Mode::S_IRUSR.union(Mode::S_IRGRP).union(Mode::S_IROTH);

/// What kind of files the regions of an arena are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    /// Unnamed files on a tmpfs that only this process knows, mounted so that large regions get
    /// huge pages. Needs CAP_SYS_ADMIN, or a user namespace and Linux 6.15.
    HugeTmpfs,
    /// memfds. They have huge pages only where the machine's `shmem_enabled` allows.
    Memfd,
}

impl Backing {
    /// The name used in `config.json` and `batchfs doctor`.
    pub fn name(self) -> &'static str {
        match self {
            Backing::HugeTmpfs => "huge tmpfs",
            Backing::Memfd => "memfd",
        }
    }
}

/// Makes the files of an arena.
#[derive(Debug)]
pub(crate) enum Maker {
    Tmpfs(Arc<Folder>),
    Memfd,
}

/// The root folder of a private tmpfs.
#[derive(Debug)]
pub(crate) struct Folder {
    root: OwnedFd,
    /// The same, mounted read-only: no rights make a file writable that is opened there.
    twin: Option<OwnedFd>,
    next: AtomicU64,
}

impl Maker {
    /// The best that this process may have.
    pub(crate) fn best() -> Maker {
        // No limits of its own: the arena's budget is the limit. `within_size` gives a page of
        // 2 MiB to what asks for it or fills it, and from Linux 6.14 on smaller large pages to what
        // is allocated at once, but never 2 MiB to a small region.
        let options =
            [(c"huge", c"within_size"), (c"size", c"0"), (c"nr_inodes", c"0"), (c"mode", c"0700")];
        let made = match private_tmpfs(&options) {
            Ok(root) => {
                let twin = read_only_twin(&root).ok();
                Ok((root, twin))
            }
            Err(_) => tmpfs_in_namespace(&options).map(|(root, twin)| (root, Some(twin))),
        };
        match made {
            Ok((root, twin)) => {
                Maker::Tmpfs(Arc::new(Folder { root, twin, next: AtomicU64::new(0) }))
            }
            Err(_) => Maker::Memfd,
        }
    }

    pub(crate) fn kind(&self) -> Backing {
        match self {
            Maker::Tmpfs(_) => Backing::HugeTmpfs,
            Maker::Memfd => Backing::Memfd,
        }
    }

    /// A new file of `len` zero bytes.
    pub(crate) fn make(&self, len: NonZeroUsize) -> io::Result<Memory> {
        let file = match self {
            Maker::Tmpfs(folder) => openat(
                &folder.root,
                ".",
                OFlag::O_TMPFILE | OFlag::O_RDWR | OFlag::O_CLOEXEC,
                READ_ONLY,
            )?,
            Maker::Memfd => memfd()?,
        };
        size(&file, len)?;
        let folder = match self {
            Maker::Tmpfs(folder) => Some(folder.clone()),
            Maker::Memfd => None,
        };
        Ok(Memory {
            file,
            map: OnceLock::new(),
            len,
            folder,
            name: OnceLock::new(),
            sealed: AtomicBool::new(false),
            used: false,
        })
    }
}

/// An empty memfd that takes seals.
fn memfd() -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = memfd_create(c"batchfs", flags)?;
    // Its mode is 0777, and whoever gets a descriptor could reopen it for writing.
    fchmod(&file, READ_ONLY)?;
    Ok(file)
}

fn size(file: &OwnedFd, len: NonZeroUsize) -> io::Result<()> {
    Ok(ftruncate(file, i64::try_from(len.get()).map_err(io::Error::other)?)?)
}

/// A memfd of `len` zero bytes that stays as long as it is.
pub(crate) fn fixed_memfd(len: NonZeroUsize) -> io::Result<OwnedFd> {
    let file = memfd()?;
    size(&file, len)?;
    fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW))?;
    Ok(file)
}

/// One file, and this process's mapping of it once it was needed.
#[derive(Debug)]
pub(crate) struct Memory {
    pub(crate) file: OwnedFd,
    map: OnceLock<Mapping>,
    len: NonZeroUsize,
    /// The tmpfs that it is on; none for a memfd.
    folder: Option<Arc<Folder>>,
    /// Its name there, once it was lent.
    name: OnceLock<CString>,
    sealed: AtomicBool,
    /// It was filled and came back.
    pub(crate) used: bool,
}

impl Memory {
    pub(crate) fn len(&self) -> usize {
        self.len.get()
    }

    /// Whether its pages are still to be had from the system.
    pub(crate) fn is_new(&self) -> bool {
        !self.used && self.map.get().is_none()
    }

    /// What it holds. Maps it, the first time.
    pub(crate) fn bytes(&self) -> io::Result<&[u8]> {
        if self.map.get().is_none() {
            // If another thread was faster, its mapping is taken.
            let _ = self.map.set(self.mapping()?);
        }
        self.map.get().map(Mapping::bytes).ok_or_else(|| io::ErrorKind::Other.into())
    }

    /// To fill it through a mapping.
    pub(crate) fn bytes_mut(&mut self) -> io::Result<&mut [u8]> {
        if self.map.get().is_none() {
            if (self.len() as u64) < HUGE_FROM {
                // At once, so that the pages are as large as the size allows: a reader that maps
                // them takes half the time. Where it is not possible they come one by one.
                let done = fallocate(&self.file, FallocateFlags::empty(), 0, self.len() as i64);
                if let Err(e @ (Errno::ENOSPC | Errno::ENOMEM)) = done {
                    return Err(e.into());
                }
            }
            let _ = self.map.set(self.mapping()?);
        }
        self.map.get_mut().map(Mapping::bytes_mut).ok_or_else(|| io::ErrorKind::Other.into())
    }

    fn mapping(&self) -> io::Result<Mapping> {
        let huge = NonZeroUsize::new(HUGE_PAGE as usize).filter(|_| self.len() as u64 >= HUGE_FROM);
        Mapping::new(&self.file, self.len, huge)
    }

    /// Writes to the file. Pages that are written as a whole are not cleared before, as those of
    /// a mapping are; and they are as large as the write and the alignment of `at` allow.
    pub(crate) fn write_at(&mut self, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
        if at.checked_add(bytes.len() as u64).is_none_or(|end| end > self.len() as u64) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "beyond the region's end"));
        }
        while !bytes.is_empty() {
            match pwrite(&self.file, bytes, at as i64) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => (bytes, at) = (&bytes[n..], at + n as u64),
                Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Ok(())
    }

    /// Whether nobody else has the file open or mapped.
    ///
    /// A reader's mapping outlives its descriptor and is seen by no other means: the mount gets
    /// its RELEASE when the descriptor goes. A lease is refused as long as an open description
    /// other than the asking one exists, and a mapping holds one. The kernel counts the
    /// descriptor of an O_TMPFILE as a writer's, so there it must be the one that asks; that of a
    /// memfd is not counted at all, so there a fresh one asks.
    pub(crate) fn unseen(&self) -> io::Result<bool> {
        match self.folder {
            Some(_) => sole_user(&self.file),
            None => sole_user(reopen(&self.file)?),
        }
    }

    /// The file, opened anew and read-only, for another process. Neither the descriptor nor what is
    /// opened through it (`/proc/self/fd`) can be made to write, whatever the mode: a memfd is
    /// sealed, and a tmpfs's file opened on a read-only mount. Kernels that cannot mount it twice
    /// leave the file's mode, which keeps others than its owner and root from it.
    pub(crate) fn lend(&self) -> io::Result<OwnedFd> {
        let Some(folder) = &self.folder else {
            if !self.sealed.load(Ordering::Acquire) {
                // No writable mapping can be made afterwards; the one that there is stays.
                self.bytes()?;
                let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
                let seals = seals | SealFlag::from_bits_retain(libc::F_SEAL_FUTURE_WRITE);
                fcntl(&self.file, FcntlArg::F_ADD_SEALS(seals))?;
                self.sealed.store(true, Ordering::Release);
            }
            return reopen(&self.file);
        };
        let Some(twin) = &folder.twin else { return reopen(&self.file) };
        let name = match self.name.get() {
            Some(name) => name,
            None => self.link(folder)?,
        };
        Ok(openat(twin, name.as_c_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())?)
    }

    /// The file, if it is a memfd; from here on it stays as long as it is.
    pub(crate) fn memfd(&self) -> io::Result<Option<BorrowedFd<'_>>> {
        if self.folder.is_some() {
            return Ok(None);
        }
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        fcntl(&self.file, FcntlArg::F_ADD_SEALS(seals))?;
        Ok(Some(self.file.as_fd()))
    }

    /// Gives the file a name, which only this process can reach.
    fn link(&self, folder: &Folder) -> io::Result<&CString> {
        let number = folder.next.fetch_add(1, Ordering::Relaxed);
        let name = CString::new(number.to_string())?;
        let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let linked = linkat(
            AT_FDCWD,
            file.as_str(),
            &folder.root,
            name.as_c_str(),
            AtFlags::AT_SYMLINK_FOLLOW,
        );
        match linked {
            Ok(()) => Ok(self.name.get_or_init(|| name)),
            // A file without a name gets one once; another thread was faster, and is about to say it.
            Err(Errno::ENOENT) => loop {
                if let Some(name) = self.name.get() {
                    return Ok(name);
                }
                std::thread::yield_now();
            },
            Err(e) => Err(e.into()),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let (Some(folder), Some(name)) = (&self.folder, self.name.get()) {
            let _ = unlinkat(&folder.root, name.as_c_str(), UnlinkatFlags::NoRemoveDir);
        }
    }
}

/// A second, read-only open file description of the same file.
pub(crate) fn reopen(file: impl AsFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    Ok(OpenOptions::new().read(true).open(path)?.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn makers() -> Vec<Maker> {
        let mut all = vec![Maker::Memfd];
        match Maker::best() {
            Maker::Memfd => {
                eprintln!("skipped: the tmpfs half needs CAP_SYS_ADMIN or user namespaces");
            }
            tmpfs => all.push(tmpfs),
        }
        all
    }

    #[test]
    fn a_region_is_seen_while_a_descriptor_or_a_mapping_of_it_is_left() {
        for maker in makers() {
            let mut m = maker.make(NonZeroUsize::new(10_000).unwrap()).unwrap();
            m.bytes_mut().unwrap()[9_999] = 7;
            assert!(m.unseen().unwrap());
            let reader = reopen(&m.file).unwrap();
            assert!(!m.unseen().unwrap(), "{:?}: descriptor", maker.kind());
            fchmod(&m.file, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
            let map = crate::sys::Mapping::new(
                OpenOptions::new()
                    .read(true)
                    .write(true)
                    .open(format!("/proc/self/fd/{}", m.file.as_raw_fd()))
                    .unwrap(),
                NonZeroUsize::new(10_000).unwrap(),
                None,
            )
            .unwrap();
            drop(reader);
            assert!(!m.unseen().unwrap(), "{:?}: mapping only", maker.kind());
            assert_eq!(map.bytes()[9_999], 7);
            drop(map);
            assert!(m.unseen().unwrap(), "{:?}: nobody left", maker.kind());
        }
    }
}
