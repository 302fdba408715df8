use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// One bit per record, all zero at first, set by any thread, never cleared.
///
/// The memory comes zeroed from the allocator, so that a large map costs nothing until touched.
pub(crate) struct AtomicBits(Vec<AtomicU64>);

const _: () = assert!(align_of::<u64>() == align_of::<AtomicU64>());

impl AtomicBits {
    pub(crate) fn new(bits: u64) -> Self {
        let mut words = ManuallyDrop::new(vec![0u64; bits.div_ceil(64) as usize]);
        let (ptr, len, cap) = (words.as_mut_ptr(), words.len(), words.capacity());
        // SAFETY: the parts are those of a Vec that is not used again, and AtomicU64 has the size
        // and bit validity of u64, and here its alignment.
        Self(unsafe { Vec::from_raw_parts(ptr.cast::<AtomicU64>(), len, cap) })
    }

    pub(crate) fn get(&self, bit: u64) -> bool {
        self.0[(bit / 64) as usize].load(Relaxed) >> (bit % 64) & 1 == 1
    }

    pub(crate) fn set(&self, bit: u64) {
        self.0[(bit / 64) as usize].fetch_or(1 << (bit % 64), Relaxed);
    }
}
