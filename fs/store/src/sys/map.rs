use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::ptr;
use std::sync::atomic::{Ordering::Acquire, fence};

use memmap2::{Advice, MmapOptions, MmapRaw};

use super::guard::Slot;

/// A read-only shared mapping of a file's first `len` bytes, guarded against SIGBUS.
pub(crate) struct Mapping {
    map: MmapRaw,
    slot: &'static Slot,
    /// The last byte of the last page that is not zero, or else the last byte, and where it is.
    ///
    /// Cutting a file raises no SIGBUS in the page that the new end falls into: the kernel fills
    /// that page's rest with zeros. But a cut before the last page takes this byte's page away, and
    /// one inside of it either clears this byte or takes nothing but zeros, which read as zeros
    /// still.
    canary: (usize, u8),
}

impl Mapping {
    /// Maps `len` bytes of `file`, or gives `None` where it cannot be mapped or guarded: nothing
    /// to map, a filesystem without mappings, too many mappings. Then `pread` is the way.
    pub(crate) fn new(file: &File, len: usize) -> io::Result<Option<Self>> {
        if len == 0 {
            return Ok(None);
        }
        let map = match MmapOptions::new().len(len).map_raw_read_only(file) {
            Ok(map) => map,
            Err(e) => {
                return match e.raw_os_error() {
                    Some(libc::ENODEV | libc::EACCES | libc::ENOMEM) => Ok(None),
                    _ => Err(e),
                };
            }
        };
        let start = map.as_ptr() as usize;
        let Some(slot) = Slot::register(start, start + len)? else { return Ok(None) };
        let mut map = Self { map, slot, canary: (len - 1, 0) };
        let page = (len - 1) / page_size() * page_size();
        let mut last = vec![0; len - page];
        file.read_exact_at(&mut last, page as u64)?;
        if let Some(i) = last.iter().rposition(|b| *b != 0) {
            map.canary = (page + i, last[i]);
        }
        Ok(Some(map))
    }

    /// Whether the file failed under the mapping. What was copied before a look that says `true`
    /// may be zeros; what was copied before one that says `false` is what the file held.
    #[inline]
    pub(crate) fn damaged(&self) -> bool {
        let (at, value) = self.canary;
        // Orders the copies before the look at the canary, and that before the look at the flag,
        // which it may raise.
        fence(Acquire);
        // SAFETY: inside of the mapping; volatile, since the file may change under it.
        if unsafe { self.map.as_ptr().add(at).read_volatile() } != value {
            self.slot.set_damaged();
        }
        fence(Acquire);
        self.slot.damaged()
    }

    /// Copies from `offset` on. What it copied counts only once [`damaged`](Self::damaged) said no.
    ///
    /// # Panics
    /// If the range is not inside of the mapping.
    #[inline]
    pub(crate) fn copy_to(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        // SAFETY: the source was checked to be inside of the mapping, which lives as long as
        // `self`; `out` is exclusive, so the two do not overlap. A fault is handled by the guard.
        unsafe {
            ptr::copy_nonoverlapping(self.map.as_ptr().add(offset), out.as_mut_ptr(), out.len());
        };
    }

    /// As [`copy_to`](Self::copy_to), past the caches.
    ///
    /// # Panics
    /// If the range is not inside of the mapping.
    pub(crate) fn copy_past_cache(&self, offset: usize, out: &mut [u8]) {
        self.check(offset, out.len());
        // SAFETY: as in `copy_to`.
        unsafe { super::stream::copy(self.map.as_ptr().add(offset), out.as_mut_ptr(), out.len()) };
    }

    /// Asks the processor to have `len` bytes from `offset` on in its cache soon. Never faults.
    #[inline]
    pub(crate) fn prefetch(&self, offset: usize, len: usize) {
        self.check(offset, len);
        for line in (0..len).step_by(64) {
            super::prefetch::line(self.map.as_ptr().wrapping_add(offset + line));
        }
    }

    /// Where a range begins in this process.
    ///
    /// # Panics
    /// If the range is not inside of the mapping.
    pub(super) fn address(&self, offset: usize, len: usize) -> usize {
        self.check(offset, len);
        self.map.as_ptr() as usize + offset
    }

    /// The pages of a range, address and length, for [`will_need`].
    pub(crate) fn pages(&self, offset: usize, len: usize) -> (usize, usize) {
        self.check(offset, len);
        let first = offset - offset % page_size();
        (self.map.as_ptr() as usize + first, offset + len - first)
    }

    /// Tells the kernel that nothing is gained by reading around a missing page.
    pub(crate) fn random(&self) {
        let _ = self.map.advise(Advice::Random);
    }

    #[inline]
    fn check(&self, offset: usize, len: usize) {
        assert!(
            offset.checked_add(len).is_some_and(|end| end <= self.map.len()),
            "read beyond the end of a mapping"
        );
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // Before it is unmapped: the guard must not touch the address once others may have it.
        self.slot.unregister();
    }
}

/// Asks the kernel to read [`pages`](Mapping::pages) in.
pub(crate) fn will_need(pages: &[(usize, usize)]) {
    super::advise::will_need(pages);
}

pub(super) fn page_size() -> usize {
    // SAFETY: sysconf only looks a number up.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
}

/// Bytes of memory that this machine has.
pub(crate) fn physical_memory() -> u64 {
    // SAFETY: sysconf only looks a number up.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    u64::try_from(pages).unwrap_or(0).saturating_mul(page_size() as u64)
}
