use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use batchfs_region::page_size;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;

use crate::dmabuf::DmaBuf;
use crate::error::{Error, Unavailable};
use crate::sys;

const DEVICE: &str = "/dev/udmabuf";
const PARAMETERS: &str = "/sys/module/udmabuf/parameters";

/// How much one dma-buf may be made of. What the kernel does not tell is `None`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Pieces of a list.
    pub ranges: Option<u64>,
    /// Bytes, all pieces together.
    pub bytes: Option<u64>,
}

impl Limits {
    /// The limits of this moment: root may change them at any time.
    pub fn now() -> Limits {
        Limits::of(Path::new(PARAMETERS))
    }

    fn of(folder: &Path) -> Limits {
        let number = |name: &str| -> Option<u64> {
            fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok()
        };
        let bytes = number("size_limit_mb").and_then(|mb| mb.checked_mul(1 << 20));
        Limits { ranges: number("list_limit"), bytes }
    }
}

/// A part of a memfd.
#[derive(Clone, Copy, Debug)]
pub struct Range<'a> {
    /// The file.
    pub memfd: BorrowedFd<'a>,
    /// Where the part begins, in bytes: a multiple of the page size.
    pub offset: u64,
    /// Its bytes: a multiple of the page size.
    pub len: u64,
}

/// Makes dma-bufs out of the pages of memfds: no byte is copied, and what is written to the one
/// is seen in the other.
///
/// A memfd must be sealed against shrinking and must not be sealed against writing. Its pages stay
/// pinned as long as the dma-buf lives, the memfd itself may be closed. A hole that is punched into
/// the memfd later takes the pages from it, and the dma-buf keeps them: from then on they are two.
#[derive(Debug)]
pub struct Udmabuf(File);

impl Udmabuf {
    /// Opens `/dev/udmabuf`.
    ///
    /// # Errors
    /// If this machine has none, or this process may not open it.
    pub fn open() -> Result<Udmabuf, Unavailable> {
        Udmabuf::at(Path::new(DEVICE))
    }

    fn at(device: &Path) -> Result<Udmabuf, Unavailable> {
        // Reading is enough, and some systems allow no more.
        File::open(device).map(Udmabuf).map_err(|e| unavailable(device, &e))
    }

    /// What one dma-buf may be made of, now.
    pub fn limits(&self) -> Limits {
        Limits::now()
    }

    /// Makes a dma-buf of one page, to see that it works.
    ///
    /// # Errors
    /// What does not.
    pub fn probe(&self) -> Result<(), Error> {
        self.create_copy(&[1])?.map().map(drop)
    }

    /// A dma-buf with memory of its own that holds `bytes`, and zeros up to the end of the page.
    ///
    /// For what is no multiple of a page, and for those who must not get pages that others see: whoever
    /// has a dma-buf can write it.
    ///
    /// # Errors
    /// If there are no bytes or too many, or no memory.
    pub fn create_copy(&self, bytes: &[u8]) -> Result<DmaBuf, Error> {
        let len = (bytes.len() as u64).checked_next_multiple_of(page_size()).unwrap_or(u64::MAX);
        let file = File::from(memfd(len)?);
        file.write_all_at(bytes, 0).map_err(Error::os("fill a memfd"))?;
        self.create(file.as_fd(), 0, len)
    }

    /// A dma-buf of `len` bytes of `memfd`, from byte `offset` on.
    ///
    /// # Errors
    /// In words where the kernel says EINVAL: what is wrong with the file, the part or its size.
    pub fn create(&self, memfd: BorrowedFd<'_>, offset: u64, len: u64) -> Result<DmaBuf, Error> {
        match sys::udmabuf::create(&self.0, memfd, offset, len) {
            Ok(fd) => Ok(DmaBuf::new(fd)),
            Err(e) => Err(explain(&[Range { memfd, offset, len }], self.limits(), e)),
        }
    }

    /// A dma-buf of all the ranges, one behind the other. A range may come more than once.
    ///
    /// # Errors
    /// As [`create`](Self::create); and if there are none, or more than the limit.
    pub fn create_list(&self, ranges: &[Range<'_>]) -> Result<DmaBuf, Error> {
        match sys::udmabuf::create_list(&self.0, ranges) {
            Ok(fd) => Ok(DmaBuf::new(fd)),
            Err(e) => Err(explain(ranges, self.limits(), e)),
        }
    }
}

/// A memfd that udmabuf takes.
fn memfd(len: u64) -> Result<OwnedFd, Error> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = memfd_create(c"batchfs", flags).map_err(Error::os("make a memfd"))?;
    let len = i64::try_from(len).unwrap_or(i64::MAX);
    ftruncate(&file, len).map_err(Error::os("size a memfd"))?;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(Error::os("seal a memfd"))?;
    Ok(file)
}

fn unavailable(device: &Path, error: &io::Error) -> Unavailable {
    let name = device.display();
    let (why, way_out) = match error.kind() {
        io::ErrorKind::NotFound => (
            format!("{name} is not there"),
            "`modprobe udmabuf` as root, if the kernel has it (CONFIG_UDMABUF); in a container, \
             start it with `--device /dev/udmabuf`"
                .to_owned(),
        ),
        io::ErrorKind::PermissionDenied => match fs::metadata(device) {
            // Group numbers, since names may stand for other numbers inside of a container.
            Ok(meta) if meta.mode() & 0o040 != 0 => {
                let group = meta.gid();
                (
                    format!(
                        "{name} belongs to group number {group}, whose member this process is not, or the system refuses it"
                    ),
                    format!(
                        "become a member of group number {group} (`usermod -aG`, `docker run --group-add {group}`), or run as root"
                    ),
                )
            }
            _ => (
                format!("{name} may not be opened by anybody but root"),
                format!(
                    "run as root, or let root say `chmod g+rw {name}` and become a member of its group"
                ),
            ),
        },
        _ => (format!("{name} cannot be opened: {error}"), "run as root".to_owned()),
    };
    Unavailable { what: "udmabuf", why, way_out }
}

/// The rule that was broken. The kernel says no more than EINVAL for most of them.
fn explain(ranges: &[Range<'_>], limits: Limits, errno: Errno) -> Error {
    if ranges.is_empty() {
        return Error::Memory { why: "it is to have no pieces" };
    }
    if let Some(limit) = limits.ranges.filter(|l| ranges.len() as u64 > *l) {
        return Error::TooManyRanges { count: ranges.len(), limit };
    }
    for range in ranges {
        if let Some(e) = broken(range) {
            return e;
        }
    }
    let len: u64 = ranges.iter().fold(0, |sum, r| sum.saturating_add(r.len));
    match limits.bytes {
        Some(limit) if len > limit => Error::TooLarge { len, limit },
        _ => Error::Os { doing: "make a dma-buf", source: errno.into() },
    }
}

fn broken(range: &Range<'_>) -> Option<Error> {
    let Ok(seals) = fcntl(range.memfd, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain)
    else {
        return Some(Error::Memory { why: "it is no memfd" });
    };
    if !seals.contains(SealFlag::F_SEAL_SHRINK) && seals.contains(SealFlag::F_SEAL_SEAL) {
        // What other files of a tmpfs have.
        return Some(Error::Memory { why: "it is no memfd, or one that can get no seals" });
    }
    if !seals.contains(SealFlag::F_SEAL_SHRINK) {
        return Some(Error::Memory { why: "the memfd is not sealed against shrinking" });
    }
    if seals.intersects(SealFlag::F_SEAL_WRITE | SealFlag::F_SEAL_FUTURE_WRITE) {
        return Some(Error::Memory { why: "the memfd is sealed against writing" });
    }
    let Range { offset, len, .. } = *range;
    let file_len = fstat(range.memfd).map_or(0, |s| s.st_size.unsigned_abs());
    let why = if len == 0 {
        "it is empty"
    } else if !offset.is_multiple_of(page_size()) {
        "it does not begin at a page"
    } else if !len.is_multiple_of(page_size()) {
        "it does not end at a page"
    } else if offset.checked_add(len).is_none_or(|end| end > file_len) {
        "it goes beyond the file's end"
    } else {
        return None;
    };
    Some(Error::Range { offset, len, file_len, why })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(e: &Unavailable) -> String {
        format!("{e}; {}", e.way_out)
    }

    #[test]
    fn a_device_that_cannot_be_opened_says_what_to_do() {
        let folder = tempfile::tempdir().unwrap();
        let none = folder.path().join("none");
        let said = text(&Udmabuf::at(&none).unwrap_err());
        assert_eq!(
            said,
            format!(
                "udmabuf cannot be used: {} is not there; `modprobe udmabuf` as root, if the kernel has it \
                 (CONFIG_UDMABUF); in a container, start it with `--device /dev/udmabuf`",
                none.display()
            )
        );
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let node = folder.path().join("node");
        fs::write(&node, "").unwrap();
        let gid = fs::metadata(&node).unwrap().gid();
        let chmod = |mode| {
            use std::os::unix::fs::PermissionsExt as _;
            fs::set_permissions(&node, fs::Permissions::from_mode(mode)).unwrap();
        };
        chmod(0o660);
        let said = text(&unavailable(&node, &denied));
        assert!(said.contains(&format!("belongs to group number {gid}")), "{said}");
        assert!(said.contains(&format!("become a member of group number {gid} (")), "{said}");
        chmod(0o600);
        let said = text(&unavailable(&node, &denied));
        assert!(said.contains("may not be opened by anybody but root; run as root"), "{said}");
        let said = text(&unavailable(&node, &io::Error::from_raw_os_error(libc::ENXIO)));
        assert!(said.contains("cannot be opened: No such device or address"), "{said}");
    }

    #[test]
    fn limits_are_those_of_the_module_as_far_as_it_tells() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Limits::of(folder.path()), Limits { ranges: None, bytes: None });
        fs::write(folder.path().join("list_limit"), "1024\n").unwrap();
        fs::write(folder.path().join("size_limit_mb"), "64\n").unwrap();
        let limits = Limits { ranges: Some(1024), bytes: Some(64 << 20) };
        assert_eq!(Limits::of(folder.path()), limits);
        fs::write(folder.path().join("size_limit_mb"), "-1\n").unwrap();
        assert_eq!(Limits::of(folder.path()), Limits { ranges: Some(1024), bytes: None });
    }
}
