//! Batches as dma-bufs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use batchfs_batch::{Batch, Face, Item, Key, View};
use batchfs_dmabuf::{Body, Exported, Range, Refusal, Tensor, Udmabuf, Unavailable};
use batchfs_region::page_size;
use nix::errno::Errno;

use crate::exports::tensors;

/// Makes them. The device is opened when the first one is asked for.
pub(crate) struct Buffers {
    device: OnceLock<Result<Udmabuf, Unavailable>>,
    copies: Copies,
}

/// Copies are no part of the arena, so that they have a limit of their own.
struct Copies {
    used: Arc<AtomicU64>,
    limit: u64,
}

/// Bytes of a copy that somebody has.
struct Counted {
    bytes: u64,
    used: Arc<AtomicU64>,
}

impl Copies {
    /// Counts `bytes` as long as the result lives. An error is how many are in use.
    fn take(&self, bytes: u64) -> Result<Counted, u64> {
        let more = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.limit);
        self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more)?;
        Ok(Counted { bytes, used: self.used.clone() })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Buffers {
    /// With the most bytes that all copies of batches may take.
    pub(crate) fn new(limit: u64) -> Buffers {
        Buffers { device: OnceLock::new(), copies: Copies { used: Arc::default(), limit } }
    }

    /// The device.
    pub(crate) fn device(&self) -> Result<&Udmabuf, Refusal> {
        let opened = self.device.get_or_init(Udmabuf::open).as_ref();
        opened.map_err(|e| Refusal::new(Errno::ENODEV, format!("{e}; {}", e.way_out)))
    }

    /// The kinds that the service hands out.
    pub(crate) fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = vec!["memfd"];
        kinds.extend(self.device().is_ok().then_some("dmabuf"));
        kinds
    }

    /// A batch that is made of the pages of its records, in memory; `None` if these are not there. An
    /// error says why it has to be gathered.
    pub(crate) fn of_records(&self, view: &View, key: Key) -> Option<Result<Exported, String>> {
        let Key { item: Item::Batch(stream), face: Face::Bare, .. } = key else { return None };
        let resident = view.dataset().resident(stream)?.clone();
        let no = |why: String| format!("{}: not made of its records' pages: {why}", view.name(key));
        let make = || {
            let device = self.device().map_err(|e| e.message)?;
            let ids = view.plan(key).map_err(|e| e.to_string())?;
            let mut tensors = tensors(view, key).map_err(|e| e.to_string())?;
            for tensor in &mut tensors {
                if let Some(stride) = tensor.strides.first_mut() {
                    *stride = resident.stride();
                }
                *tensor = tensor.clone().with_picture();
            }
            let pieces = resident.pieces(&ids).map_err(|e| e.to_string())?;
            let memfd = resident.file();
            let ranges: Vec<Range<'_>> =
                pieces.iter().map(|p| Range { memfd, offset: p.offset, len: p.len }).collect();
            let buffer = device.create_list(&ranges).map_err(|e| e.to_string())?;
            let label = view.name(key);
            // A name is for whoever looks; kernels without them are as good.
            let _ = buffer.set_name(&label);
            let len = resident.stride() * ids.len() as u64;
            let body = Body::DmaBuf { buffer, len, shared: true };
            // The pages stay, whoever has them, and hold no part of the budget.
            Ok(Exported { label, body, tensors, held: Box::new(()) })
        };
        Some(make().map_err(no))
    }

    /// A dma-buf of a batch's own pages, if `shared` allows and they can be had; else of a copy.
    pub(crate) fn of_batch(
        &self,
        batch: Batch,
        tensors: Vec<Tensor>,
        shared: bool,
    ) -> Result<Exported, Refusal> {
        let device = self.device()?;
        let region = batch.region();
        let (label, size) = (region.label().to_owned(), region.len() as u64);
        let own = if shared && size.is_multiple_of(page_size()) {
            // If they cannot be had, it is copied.
            let memfd = region.memfd().ok().flatten();
            memfd.and_then(|memfd| device.create(memfd, 0, size).ok())
        } else {
            None
        };
        let (body, held): (_, Box<dyn std::any::Any + Send + Sync>) = match own {
            Some(buffer) => (Body::DmaBuf { buffer, len: size, shared: true }, Box::new(batch)),
            None => {
                let os = |e: std::io::Error| Errno::from_raw(e.raw_os_error().unwrap_or(libc::EIO));
                let len = size.next_multiple_of(page_size());
                let counted = self.copies.take(len).map_err(|used| {
                    let limit = self.copies.limit;
                    let why = format!("{label}: no room for a copy of {len} bytes: those that others have take {used}, and may take {limit}");
                    Refusal::new(Errno::ENOMEM, why)
                })?;
                let bytes = region
                    .bytes()
                    .map_err(|e| Refusal::new(os(e), format!("{label}: cannot be mapped")))?;
                let buffer = device.create_copy(bytes).map_err(|e| {
                    let errno = match &e {
                        batchfs_dmabuf::Error::TooLarge { .. } => Errno::EFBIG,
                        _ => Errno::EIO,
                    };
                    Refusal::new(errno, format!("{label}: {e}"))
                })?;
                (Body::DmaBuf { buffer, len, shared: false }, Box::new(counted))
            }
        };
        if let Body::DmaBuf { buffer, .. } = &body {
            let _ = buffer.set_name(&label);
        }
        Ok(Exported { label, body, tensors, held })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_take_what_they_may_and_give_it_back() {
        let copies = Copies { used: Arc::default(), limit: 100 };
        let first = copies.take(60).unwrap();
        assert_eq!(copies.take(41).err(), Some(60));
        assert_eq!(copies.take(u64::MAX).err(), Some(60));
        let second = copies.take(40).unwrap();
        drop(first);
        assert_eq!(copies.take(61).err(), Some(40));
        assert!(copies.take(60).is_ok());
        drop(second);
        assert_eq!(copies.used.load(Ordering::Relaxed), 0);
    }
}
