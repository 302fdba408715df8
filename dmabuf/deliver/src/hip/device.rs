use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::sys::stat::fstat;

use super::error::HipError;
use super::runtime::Runtime;
use crate::error::Error;
use crate::sys::hip::External;

/// A GPU, by the number that HIP has for it.
#[derive(Clone, Copy, Debug)]
pub struct Device {
    pub(super) runtime: &'static Runtime,
    id: i32,
}

/// Makes a device the calling thread's for a while: HIP's calls are about the thread's device, and
/// the thread is somebody else's.
struct Turn {
    runtime: &'static Runtime,
    before: Option<i32>,
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            let _ = self.runtime.functions.set_device(before);
        }
    }
}

impl Device {
    /// Device `id` of `runtime`.
    ///
    /// # Errors
    /// If the runtime cannot be started or has no such device.
    pub fn new(runtime: &'static Runtime, id: i32) -> Result<Device, HipError> {
        let count = runtime.devices()?;
        if (0..count).contains(&id) {
            Ok(Device { runtime, id })
        } else {
            Err(HipError::NoDevice { id, count })
        }
    }

    /// Its number.
    pub fn id(&self) -> i32 {
        self.id
    }

    /// The runtime that it is a device of.
    pub fn runtime(&self) -> &'static Runtime {
        self.runtime
    }

    /// Its PCI address, such as `0000:03:00.0`.
    ///
    /// # Errors
    /// If the runtime does not tell.
    pub fn pci(&self) -> Result<String, HipError> {
        self.runtime.told("hipDeviceGetPCIBusId", self.runtime.functions.pci(self.id))
    }

    /// Waits until all work is done that the device was given so far.
    ///
    /// # Errors
    /// If the runtime says so; also of earlier work.
    pub fn synchronize(&self) -> Result<(), HipError> {
        let _turn = self.turn()?;
        self.runtime.told("hipDeviceSynchronize", self.runtime.functions.synchronize())
    }

    fn turn(&self) -> Result<Turn, HipError> {
        let runtime = self.runtime;
        if !runtime.usable() {
            return Err(HipError::Forked);
        }
        let before = runtime.told("hipGetDevice", runtime.functions.device())?;
        if before == self.id {
            return Ok(Turn { runtime, before: None });
        }
        runtime.told("hipSetDevice", runtime.functions.set_device(self.id))?;
        Ok(Turn { runtime, before: Some(before) })
    }

    /// Runs `call` with this device as the thread's.
    pub(super) fn with<T>(
        &self,
        call: impl FnOnce(&'static Runtime) -> Result<T, HipError>,
    ) -> Result<T, HipError> {
        let turn = self.turn()?;
        let done = call(self.runtime);
        drop(turn);
        done
    }

    /// Gives the first `len` bytes of a dma-buf an address on the device.
    ///
    /// # Errors
    /// If the runtime refuses: ROCm's takes no dma-bufs but those of the kernel's amdgpu driver.
    pub fn import(&self, dma_buf: impl AsFd, len: usize) -> Result<Imported, Error> {
        // HIP's documents do not say whose the descriptor is from now on. So it gets one of its own.
        let fd = dma_buf.as_fd().try_clone_to_owned().map_err(Error::os("copy a descriptor"))?;
        let external = self.with(|runtime| {
            let made = runtime.functions.import(fd.as_fd(), len);
            made.or_else(|(function, code)| runtime.told(function, Err(code)))
        })?;
        let owner = identity(dma_buf.as_fd());
        Ok(Imported {
            device: *self,
            at: external.at(),
            external: Some(external),
            fd: Some(fd),
            owner,
        })
    }
}

/// The file behind a descriptor number, if there is one.
fn identity(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    fstat(fd).ok().map(|s| (s.st_dev, s.st_ino))
}

/// A dma-buf that has an address on a device, until it is dropped.
pub struct Imported {
    device: Device,
    external: Option<External>,
    at: usize,
    fd: Option<OwnedFd>,
    owner: Option<(u64, u64)>,
}

impl Imported {
    /// Its address on the device.
    pub fn at(&self) -> usize {
        self.at
    }

    /// The device.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Drop for Imported {
    fn drop(&mut self) {
        let (Some(external), Some(fd)) = (self.external.take(), self.fd.take()) else { return };
        // In a child made by `fork`, and when the process ends, the runtime does not answer. Then
        // nothing is left to free.
        let _ = self.device.with(|runtime| {
            // Not every runtime waits by itself.
            let _ = runtime.functions.synchronize();
            runtime.functions.release(external);
            runtime.functions.forget_error();
            Ok(())
        });
        // A runtime that takes the descriptor for its own has closed it.
        if identity(fd.as_fd()) == self.owner {
            drop(fd);
        } else {
            std::mem::forget(fd);
        }
    }
}
