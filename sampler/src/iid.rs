//! Uniform draws with replacement.

use crate::draw::{Redraw, Word, chacha, threshold};
use rand_chacha::rand_core::Rng;

/// The largest global batch: its redraws end at word 2^61 * 128 = 2^68, where ChaCha's counter does.
pub(crate) const MAX_BATCH: u64 = 1 << 61;

/// Up to this length a draw takes one 32-bit word; above, two. So at most one draw in 256 is rejected, up to 2^56.
const NARROW: u64 = 1 << 24;

const KEY: &str = "order-1 iid";
const REDRAW_KEY: &str = "order-1 iid redraw";
const CHUNK: usize = 128;

/// Draws below a fixed length.
#[derive(Debug, Clone)]
pub(crate) struct Iid {
    len: u64,
    threshold: u64,
}

impl Iid {
    /// `len >= 1`.
    pub(crate) fn new(len: u64) -> Self {
        let threshold = if len <= NARROW { threshold::<u32>(len) } else { threshold::<u64>(len) };
        Self { len, threshold }
    }

    /// The slots `first..first + out.len()` of the global batch of `step`.
    pub(crate) fn ids(&self, seed: u64, step: u64, first: u64, out: &mut [u64]) {
        if self.len <= NARROW {
            self.draw(seed, step, first, out, |bytes: [u8; 4]| u32::from_le_bytes(bytes));
        } else {
            self.draw(seed, step, first, out, |bytes: [u8; 8]| u64::from_le_bytes(bytes));
        }
    }

    fn draw<W: Word, const N: usize>(
        &self,
        seed: u64,
        step: u64,
        first: u64,
        out: &mut [u64],
        word: impl Fn([u8; N]) -> W,
    ) {
        let redraw = Redraw { seed, purpose: REDRAW_KEY, stream: step };
        let mut rng = chacha(seed, KEY, step, u128::from(first) * u128::from(W::WORDS));
        let mut slot = first;
        for out in out.chunks_mut(CHUNK) {
            let mut bytes = [[0; N]; CHUNK];
            let bytes = &mut bytes[..out.len()];
            rng.fill_bytes(bytes.as_flattened_mut());
            let mut rejected = 0;
            for (id, &bytes) in out.iter_mut().zip(&*bytes) {
                let (high, low) = word(bytes).multiply(self.len);
                *id = high;
                rejected |= W::rejects(low, self.threshold);
            }
            if rejected >> 63 != 0 {
                for ((id, &bytes), slot) in out.iter_mut().zip(&*bytes).zip(slot..) {
                    if word(bytes).multiply(self.len).1 < self.threshold {
                        *id = redraw.draw::<W>(slot, self.len, self.threshold);
                    }
                }
            }
            slot += out.len() as u64;
        }
    }
}
