//! Memory of a device, for the processor.

use std::os::fd::AsFd;
use std::ptr::NonNull;

use super::device::Device;
use super::error::HipError;
use crate::dmabuf::{Access, DmaBuf};
use crate::sys::hip::DeviceBytes;
use crate::sys::render::Shared;

/// Bytes of a device that this process can read.
pub struct HostBytes(Kind);

enum Kind {
    /// The device's own memory, mapped.
    Mapped { map: Shared, offset: usize, dma_buf: Option<DmaBuf> },
    /// A copy.
    Copied(Vec<u8>),
}

impl HostBytes {
    /// Where the first of them is, as long as this lives.
    pub fn at(&self) -> NonNull<u8> {
        match &self.0 {
            Kind::Mapped { map, offset, .. } => map.at(*offset),
            Kind::Copied(bytes) => NonNull::from(bytes.as_slice()).cast(),
        }
    }

    /// Whether they are a copy.
    pub fn is_copy(&self) -> bool {
        matches!(self.0, Kind::Copied(_))
    }
}

impl Drop for HostBytes {
    fn drop(&mut self) {
        if let Kind::Mapped { dma_buf: Some(dma_buf), .. } = &self.0 {
            let _ = dma_buf.sync_end(Access::Read);
        }
    }
}

impl Device {
    /// Bytes of its memory, after all work that it has been given: mapped through a dma-buf, or where
    /// that cannot be, copied by the runtime.
    ///
    /// # Errors
    /// [`HipError::Unreadable`], with what was tried.
    pub fn read(&self, bytes: &DeviceBytes) -> Result<HostBytes, HipError> {
        let (at, len) = (bytes.at(), bytes.len());
        self.synchronize()?;
        if len == 0 {
            return Ok(HostBytes(Kind::Copied(Vec::new())));
        }
        let mut why = match self.map(at, len) {
            Ok(mapped) => return Ok(mapped),
            Err(why) => why,
        };
        let copied = self.with(|runtime| {
            let done = runtime.functions.copy_out(bytes);
            done.map(|done| runtime.told("hipMemcpy", done)).transpose()
        });
        match copied {
            Ok(Some(bytes)) => return Ok(HostBytes(Kind::Copied(bytes))),
            Ok(None) => why.push_str("; the runtime has no hipMemcpy"),
            Err(e) => why = format!("{why}; {e}"),
        }
        Err(HipError::Unreadable { device: self.id(), len, why })
    }

    fn map(&self, at: usize, len: usize) -> Result<HostBytes, String> {
        let (fd, base, size) = self
            .with(|runtime| {
                let range = runtime.functions.address_range(at);
                let Some(range) = range else {
                    return Ok(Err("the runtime has no hipMemGetAddressRange"));
                };
                let (base, size) = runtime.told("hipMemGetAddressRange", range)?;
                let whole = size.next_multiple_of(batchfs_region::page_size() as usize);
                let export = runtime.functions.export(base, whole);
                let Some(export) = export else {
                    return Ok(Err("the runtime has no hipMemGetHandleForAddressRange"));
                };
                let fd = runtime.told("hipMemGetHandleForAddressRange", export)?;
                Ok(Ok((fd, base, whole)))
            })
            .map_err(|e| e.to_string())??;
        let offset =
            at.checked_sub(base).filter(|o| o.checked_add(len).is_some_and(|end| end <= size));
        let offset = offset.ok_or("the runtime names another allocation")?;
        let (dma_buf, fd) = match fd.try_clone().map(DmaBuf::from_fd) {
            Ok(Ok(dma_buf)) => (Some(dma_buf), fd),
            _ => (None, fd),
        };
        let there = file_len(&fd).ok_or("the dma-buf has no size")?;
        if there != size {
            // A part of a larger buffer, and HIP does not say which.
            return Err(format!(
                "the allocation of {size} bytes lies in a dma-buf of {there} bytes, and its place there is not told"
            ));
        }
        let map = Shared::read_only(&fd, size)
            .map_err(|e| format!("its dma-buf cannot be mapped: {e}"))?;
        if let Some(dma_buf) = &dma_buf {
            dma_buf.sync_start(Access::Read).map_err(|e| e.to_string())?;
        }
        Ok(HostBytes(Kind::Mapped { map, offset, dma_buf }))
    }
}

fn file_len(fd: impl AsFd) -> Option<usize> {
    let end = nix::unistd::lseek(fd, 0, nix::unistd::Whence::SeekEnd).ok()?;
    usize::try_from(end).ok()
}
