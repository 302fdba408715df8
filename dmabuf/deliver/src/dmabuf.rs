use std::ffi::CString;
use std::fmt;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::stat::fstat;
use nix::sys::statfs::fstatfs;
use nix::unistd::{Whence, lseek};

use crate::error::Error;
use crate::sys;

/// The magic number of the filesystem that dma-bufs are files of ("DMAB").
const DMA_BUF_MAGIC: i64 = 0x444d_4142;

/// What is done with the bytes of a dma-buf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// They are read.
    Read,
    /// They are written.
    Write,
    /// Both.
    ReadWrite,
}

impl Access {
    fn bits(self) -> u32 {
        match self {
            Access::Read => 1,
            Access::Write => 2,
            Access::ReadWrite => 3,
        }
    }
}

/// A dma-buf: memory that devices and processes share by passing a descriptor.
pub struct DmaBuf(OwnedFd);

impl DmaBuf {
    pub(crate) fn new(fd: OwnedFd) -> DmaBuf {
        DmaBuf(fd)
    }

    /// Takes a descriptor that came from elsewhere.
    ///
    /// # Errors
    /// If it is no dma-buf.
    pub fn from_fd(fd: OwnedFd) -> Result<DmaBuf, Error> {
        let fs = fstatfs(&fd).map_err(Error::os("look at a descriptor"))?;
        #[allow(clippy::unnecessary_cast)]
        let magic = fs.filesystem_type().0 as i64;
        if magic == DMA_BUF_MAGIC { Ok(DmaBuf(fd)) } else { Err(Error::NotDmaBuf) }
    }

    /// Its descriptor.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }

    /// Its descriptor, to be kept.
    pub fn into_fd(self) -> OwnedFd {
        self.0
    }

    /// Its bytes.
    ///
    /// # Errors
    /// None that happens.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> Result<u64, Error> {
        // The only seek that it knows, and the position is used by nothing.
        let end = lseek(&self.0, 0, Whence::SeekEnd).map_err(Error::os("size a dma-buf"))?;
        Ok(end.unsigned_abs())
    }

    /// What tells two dma-bufs apart: descriptors of the same one have the same number.
    ///
    /// # Errors
    /// None that happens.
    pub fn inode(&self) -> Result<u64, Error> {
        Ok(fstat(&self.0).map_err(Error::os("look at a dma-buf"))?.st_ino)
    }

    /// How many references to it there are: descriptors of all processes that are copies of this one,
    /// mappings, and devices that imported it. 1 if there is none but this.
    ///
    /// # Errors
    /// If `/proc` is not there, or does not tell.
    pub fn count(&self) -> Result<u64, Error> {
        let path = format!("/proc/self/fdinfo/{}", self.0.as_raw_fd());
        let info = fs::read_to_string(path).map_err(Error::os("read a dma-buf's fdinfo"))?;
        let count = info.lines().find_map(|l| l.strip_prefix("count:")?.trim().parse().ok());
        let missing = || std::io::Error::other("it has no line `count`");
        count.ok_or_else(missing).map_err(Error::os("read a dma-buf's fdinfo"))
    }

    /// Names it for `/sys/kernel/debug/dma_buf` and fdinfo; up to 31 bytes are kept.
    ///
    /// # Errors
    /// If the kernel refuses, as those before 5.3 do.
    pub fn set_name(&self, name: &str) -> Result<(), Error> {
        let mut bytes: Vec<u8> = name.bytes().filter(|b| *b != 0).collect();
        bytes.truncate(31);
        let name = CString::new(bytes).map_err(Error::os("name a dma-buf"))?;
        sys::dmabuf::set_name(&self.0, &name).map_err(Error::os("name a dma-buf"))
    }

    /// Begins an access of this process through a mapping: waits for devices, and makes what they
    /// wrote visible.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn sync_start(&self, access: Access) -> Result<(), Error> {
        self.sync(access.bits().into())
    }

    /// Ends what [`sync_start`](Self::sync_start) began.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn sync_end(&self, access: Access) -> Result<(), Error> {
        self.sync(u64::from(access.bits()) | sys::dmabuf::END)
    }

    fn sync(&self, flags: u64) -> Result<(), Error> {
        loop {
            match sys::dmabuf::sync(&self.0, flags) {
                Err(nix::errno::Errno::EINTR | nix::errno::Errno::EAGAIN) => {}
                done => return done.map_err(Error::os("sync a dma-buf")),
            }
        }
    }

    /// A file that is readable when everything is done that somebody who wants this access has to
    /// wait for: device writes for a reader, all device work for a writer.
    ///
    /// # Errors
    /// If the kernel refuses, as those before 6.0 do.
    pub fn export_sync_file(&self, access: Access) -> Result<OwnedFd, Error> {
        sys::dmabuf::export_sync_file(&self.0, access.bits())
            .map_err(Error::os("export a dma-buf's fences"))
    }

    /// Makes everybody who uses the dma-buf later wait for `file`, too.
    ///
    /// # Errors
    /// If the kernel refuses, as those before 6.0 do, or `file` is no sync file.
    pub fn import_sync_file(&self, access: Access, file: impl AsFd) -> Result<(), Error> {
        sys::dmabuf::import_sync_file(&self.0, access.bits(), file)
            .map_err(Error::os("import a fence into a dma-buf"))
    }

    /// Whether no device is at work on it that somebody with this access would have to wait for,
    /// after waiting up to `wait`.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn idle(&self, access: Access, wait: Duration) -> Result<bool, Error> {
        let events = match access {
            Access::Read => PollFlags::POLLIN,
            _ => PollFlags::POLLOUT,
        };
        let timeout = PollTimeout::try_from(wait).unwrap_or(PollTimeout::MAX);
        let mut fds = [PollFd::new(self.fd(), events)];
        match poll(&mut fds, timeout) {
            Ok(ready) => Ok(ready > 0),
            Err(nix::errno::Errno::EINTR) => Ok(false),
            Err(e) => Err(Error::os("wait for a dma-buf")(e)),
        }
    }

    /// Whether this descriptor is the only reference, and no device is at work: then its memory may be
    /// filled again.
    ///
    /// # Errors
    /// Those of [`count`](Self::count) and [`idle`](Self::idle).
    pub fn is_unused(&self) -> Result<bool, Error> {
        Ok(self.count()? <= 1 && self.idle(Access::Write, Duration::ZERO)?)
    }

    /// Maps all of it.
    ///
    /// # Errors
    /// If its exporter cannot, or there is no room for another mapping.
    pub fn map(&self) -> Result<Mapping, Error> {
        let len = usize::try_from(self.len()?).unwrap_or(usize::MAX);
        let map = sys::dmabuf::Shared::new(&self.0, len).map_err(Error::os("map a dma-buf"))?;
        Ok(Mapping(map))
    }
}

impl AsFd for DmaBuf {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }
}

impl fmt::Debug for DmaBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DmaBuf({}, {} bytes)", self.0.as_raw_fd(), self.len().unwrap_or(0))
    }
}

/// A shared mapping of a dma-buf. Its bytes may change while they are read, so they are copied and
/// never lent. Between [`DmaBuf::sync_start`] and [`DmaBuf::sync_end`] devices keep away.
pub struct Mapping(sys::dmabuf::Shared);

impl Mapping {
    /// Its bytes.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Where it begins. Valid as long as the mapping is.
    pub fn as_ptr(&self) -> *mut u8 {
        self.0.as_ptr()
    }

    /// Copies bytes out, from byte `at` on.
    ///
    /// # Errors
    /// If they do not lie inside.
    pub fn read(&self, at: usize, into: &mut [u8]) -> Result<(), Error> {
        inside(self.0.read(at, into))
    }

    /// Copies bytes in, from byte `at` on.
    ///
    /// # Errors
    /// If they do not lie inside.
    pub fn write(&self, at: usize, from: &[u8]) -> Result<(), Error> {
        inside(self.0.write(at, from))
    }
}

fn inside(was: bool) -> Result<(), Error> {
    let source = || std::io::Error::new(std::io::ErrorKind::InvalidInput, "beyond its end");
    if was { Ok(()) } else { Err(source()).map_err(Error::os("copy bytes of a dma-buf")) }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Mapping({} bytes)", self.len())
    }
}
