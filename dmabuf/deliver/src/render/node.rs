use std::env;
use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::unistd::ftruncate;

use super::buffer::Buffer;
use super::list::{nodes, unusable};
use crate::dmabuf::DmaBuf;
use crate::error::Error;
use crate::hip::{Device, Foreign, HipError};
use crate::sys::render::{self as sys, Shared};
use crate::udmabuf::Udmabuf;

/// The environment variable that names another render node than the device's: a path, or
/// `stand-in`.
const OVERRIDE: &str = "BATCHFS_RENDER_NODE";
/// The name of the stand-in's memfds, by which a stand-in of HIP knows them.
pub const STAND_IN: &str = "batchfs-stand-in-node";

/// What makes buffers.
pub trait Node: Send + Sync {
    /// A new buffer of `len` bytes, a multiple of the page size and not 0. What it holds is zeros.
    ///
    /// # Errors
    /// If there is no memory, or the driver refuses.
    fn create(&self, len: usize) -> Result<Buffer, Error>;

    /// In words.
    fn name(&self) -> String;
}

/// Opens what makes buffers for a device: its own render node; or `/dev/udmabuf`, if the node cannot
/// be used and the runtime takes what that makes.
///
/// # Errors
/// If there is no node for the device, or it cannot be opened.
pub fn open_for(device: &Device) -> Result<Box<dyn Node>, Error> {
    let path = match env::var_os(OVERRIDE).filter(|p| !p.is_empty()) {
        Some(word) if word == "stand-in" => return Ok(Box::new(StandIn)),
        Some(path) => Ok(PathBuf::from(path)),
        None => own_node(device),
    };
    let opened = path.map_err(Error::from).and_then(|path| Amdgpu::open(&path));
    let error = match opened {
        Ok(node) => return Ok(Box::new(node)),
        Err(e) => e,
    };
    match (device.takes_foreign(), Udmabuf::open()) {
        (Foreign::Taken, Ok(udmabuf)) => Ok(Box::new(Udma(udmabuf))),
        _ => Err(error),
    }
}

fn own_node(device: &Device) -> Result<PathBuf, HipError> {
    let pci = device.pci()?;
    let all = nodes();
    let own = all.iter().find(|n| n.driver == "amdgpu" && n.pci.as_ref() == Some(&pci));
    own.map(|n| n.path.clone()).ok_or_else(|| HipError::NoNode {
        id: device.id(),
        pci,
        nodes: all.iter().map(super::RenderNode::describe).collect(),
    })
}

fn open(path: &Path) -> Result<File, Error> {
    let opened = OpenOptions::new().read(true).write(true).open(path);
    opened.map_err(|e| unusable("the GPU's render node", path, &e).into())
}

/// The render node of amdgpu: memory of the system that the GPU has in its address space (GTT).
pub struct Amdgpu {
    file: File,
    path: PathBuf,
}

impl Amdgpu {
    /// Opens a node.
    ///
    /// # Errors
    /// If it is not there, or this process may not open it.
    pub fn open(path: &Path) -> Result<Amdgpu, Error> {
        Ok(Amdgpu { file: open(path)?, path: path.to_owned() })
    }
}

impl Node for Amdgpu {
    fn create(&self, len: usize) -> Result<Buffer, Error> {
        let handle = sys::amdgpu_create(&self.file, len)
            .map_err(Error::os("make memory on the GPU's render node"))?;
        let offset = sys::amdgpu_offset(&self.file, &handle);
        finish(&self.file, &handle, offset.map_err(Error::os("map the GPU's memory"))?, len)
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// The dumb buffers that every display driver has, and vgem, which has no device. They stand in for
/// the GPU's where there is none.
pub struct Dumb {
    file: File,
    path: PathBuf,
}

impl Dumb {
    /// Opens a node; render nodes make no dumb buffers, so this is a `card`.
    ///
    /// # Errors
    /// If it is not there, or this process may not open it.
    pub fn open(path: &Path) -> Result<Dumb, Error> {
        Ok(Dumb { file: open(path)?, path: path.to_owned() })
    }
}

impl Node for Dumb {
    fn create(&self, len: usize) -> Result<Buffer, Error> {
        let handle = sys::dumb_create(&self.file, len).map_err(Error::os("make a dumb buffer"))?;
        let offset = sys::dumb_offset(&self.file, &handle);
        finish(&self.file, &handle, offset.map_err(Error::os("map a dumb buffer"))?, len)
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }
}

/// Maps the memory and exports it. The handle goes: dma-buf and mapping keep the memory.
fn finish(file: &File, handle: &sys::Handle<'_>, offset: u64, len: usize) -> Result<Buffer, Error> {
    let map = Shared::new(file, offset, len).map_err(Error::os("map the memory of a node"))?;
    let fd = sys::export(file, handle).map_err(Error::os("export memory as a dma-buf"))?;
    Ok(Buffer::new(DmaBuf::from_fd(fd)?, map))
}

/// udmabuf, for runtimes that take what it makes.
pub struct Udma(pub Udmabuf);

impl Node for Udma {
    fn create(&self, len: usize) -> Result<Buffer, Error> {
        let file = memfd("batchfs-device", len)?;
        let dma_buf = self.0.create(file.as_fd(), 0, len as u64)?;
        let map = Shared::new(&file, 0, len).map_err(Error::os("map a memfd"))?;
        Ok(Buffer::new(dma_buf, map))
    }

    fn name(&self) -> String {
        "/dev/udmabuf".to_owned()
    }
}

/// memfds in the place of a node's memory, for tests with a stand-in of HIP. No GPU takes them.
pub struct StandIn;

impl Node for StandIn {
    fn create(&self, len: usize) -> Result<Buffer, Error> {
        let file = memfd(STAND_IN, len)?;
        let map = Shared::new(&file, 0, len).map_err(Error::os("map a memfd"))?;
        Ok(Buffer::plain(file, map))
    }

    fn name(&self) -> String {
        "a stand-in for a render node".to_owned()
    }
}

fn memfd(name: &str, len: usize) -> Result<std::os::fd::OwnedFd, Error> {
    let made = || -> Result<_, nix::errno::Errno> {
        let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_CLOEXEC;
        let file = memfd_create(name, flags)?;
        ftruncate(&file, i64::try_from(len).map_err(|_| nix::errno::Errno::EFBIG)?)?;
        fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK))?;
        Ok(file)
    };
    made().map_err(Error::os("make a memfd"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(node: &dyn Node) {
        for len in [4096, 1 << 20, 3 << 20] {
            let mut buffer = node.create(len).unwrap();
            assert_eq!(buffer.len(), len);
            assert!(buffer.bytes_mut().iter().all(|b| *b == 0));
            for (i, b) in buffer.bytes_mut().iter_mut().enumerate() {
                *b = (i / 7) as u8;
            }
            buffer.filled();
            // What others see who have nothing but the descriptor.
            let other = Shared::read_only(buffer.fd(), len).unwrap();
            let want: Vec<u8> = (0..len).map(|i| (i / 7) as u8).collect();
            assert!(other.to_vec() == want, "{} bytes of {}", len, node.name());
            drop(buffer);
            assert!(other.to_vec() == want, "the descriptor's pages outlive the buffer");
        }
    }

    #[test]
    fn the_stand_in_makes_memory() {
        check(&StandIn);
    }
}
