use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Words, all zero at first. The memory comes zeroed from the allocator, so that a large table costs
/// nothing until touched.
pub(crate) struct AtomicWords(Vec<AtomicU64>);

const _: () = assert!(align_of::<u64>() == align_of::<AtomicU64>());

impl AtomicWords {
    pub(crate) fn new(words: u64) -> Self {
        let mut words = ManuallyDrop::new(vec![0u64; words as usize]);
        let (ptr, len, cap) = (words.as_mut_ptr(), words.len(), words.capacity());
        // SAFETY: the parts are those of a Vec that is not used again, and AtomicU64 has the size
        // and bit validity of u64, and here its alignment.
        Self(unsafe { Vec::from_raw_parts(ptr.cast::<AtomicU64>(), len, cap) })
    }

    pub(crate) fn word(&self, at: u64) -> &AtomicU64 {
        &self.0[at as usize]
    }
}

/// One bit per record, all zero at first, set by any thread, never cleared.
pub(crate) struct AtomicBits(AtomicWords);

impl AtomicBits {
    pub(crate) fn new(bits: u64) -> Self {
        Self(AtomicWords::new(bits.div_ceil(64)))
    }

    pub(crate) fn get(&self, bit: u64) -> bool {
        self.0.word(bit / 64).load(Relaxed) >> (bit % 64) & 1 == 1
    }

    pub(crate) fn set(&self, bit: u64) {
        self.0.word(bit / 64).fetch_or(1 << (bit % 64), Relaxed);
    }
}
