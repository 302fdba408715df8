use std::sync::atomic::{
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

use crate::sys::{AtomicBits, AtomicWords};

/// Heads of records that were seen, so that a frame is not decompressed for its head again.
/// Memory: that of the heads seen, in whole pages.
pub(crate) struct Heads {
    known: AtomicBits,
    words: AtomicWords,
    /// Words of a head.
    each: u64,
}

const WORD: usize = size_of::<u64>();

impl Heads {
    pub(crate) fn new(records: u64, head: usize) -> Self {
        let each = head.div_ceil(WORD) as u64;
        let words = AtomicWords::new(records.saturating_mul(each));
        Self { known: AtomicBits::new(records), words, each }
    }

    pub(crate) fn put(&self, id: u64, head: &[u8]) {
        if self.known.get(id) {
            return;
        }
        for (bytes, at) in head.chunks(WORD).zip(id * self.each..) {
            let mut word = [0; WORD];
            word[..bytes.len()].copy_from_slice(bytes);
            self.words.word(at).store(u64::from_le_bytes(word), Relaxed);
        }
        // Whoever sees the bit sees the words; two that write them write the same.
        fence(Release);
        self.known.set(id);
    }

    /// Writes the head of a record to `out`, if it is known.
    pub(crate) fn get(&self, id: u64, out: &mut [u8]) -> bool {
        if !self.known.get(id) {
            return false;
        }
        fence(Acquire);
        for (bytes, at) in out.chunks_mut(WORD).zip(id * self.each..) {
            let word = self.words.word(at).load(Relaxed).to_le_bytes();
            bytes.copy_from_slice(&word[..bytes.len()]);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_of_any_length_are_kept_apart() {
        for len in [1, 8, 12, 512] {
            let heads = Heads::new(5, len);
            let head = |id: u64| vec![id as u8 + 1; len];
            let mut out = vec![0; len];
            for id in [4, 0, 2] {
                assert!(!heads.get(id, &mut out));
                heads.put(id, &head(id));
            }
            for id in 0..5 {
                assert_eq!(heads.get(id, &mut out), id % 2 == 0);
                assert!(id % 2 == 1 || out == head(id));
            }
        }
    }
}
