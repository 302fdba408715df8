//! ChaCha8 streams and unbiased draws from them. `docs/order.md` defines both.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

/// Fresh draws for one that was rejected. A draw is rejected with probability under 1/2, so the last of them, which
/// is taken as it is, is reached with probability under 2^-64.
const REDRAWS: u64 = 64;

/// The ChaCha8 stream `stream` under the key that `seed` and `purpose` make, from its 32-bit word `word` on.
///
/// Eight rounds: no attack on them is known, and an order needs no secrecy.
pub(crate) fn chacha(seed: u64, purpose: &str, stream: u64, word: u128) -> ChaCha8Rng {
    let mut key = [0; 32];
    key[..8].copy_from_slice(&seed.to_le_bytes());
    for (byte, &letter) in key[8..].iter_mut().zip(purpose.as_bytes()) {
        *byte = letter;
    }
    let mut rng = ChaCha8Rng::from_seed(key);
    rng.set_stream(stream);
    rng.set_word_pos(word);
    rng
}

/// A word of the key stream; a draw takes one.
pub(crate) trait Word: Copy {
    /// 32-bit words of ChaCha in one of these.
    const WORDS: u64;
    /// The highest word.
    const MAX: u64;
    fn take(rng: &mut ChaCha8Rng) -> Self;
    /// The high and the low half of the product with `bound`.
    fn multiply(self, bound: u64) -> (u64, u64);
    /// Bit 63 is set if and only if `low < threshold`; other bits mean nothing. To be or-ed over many draws.
    fn rejects(low: u64, threshold: u64) -> u64;
}

impl Word for u32 {
    const WORDS: u64 = 1;
    const MAX: u64 = Self::MAX as u64;

    fn take(rng: &mut ChaCha8Rng) -> Self {
        rng.next_u32()
    }

    #[inline]
    fn multiply(self, bound: u64) -> (u64, u64) {
        let product = u64::from(self) * u64::from(bound as u32);
        (product >> 32, u64::from(product as u32))
    }

    #[inline]
    fn rejects(low: u64, threshold: u64) -> u64 {
        low.wrapping_sub(threshold)
    }
}

impl Word for u64 {
    const WORDS: u64 = 2;
    const MAX: u64 = Self::MAX;

    fn take(rng: &mut ChaCha8Rng) -> Self {
        rng.next_u64()
    }

    #[inline]
    fn multiply(self, bound: u64) -> (u64, u64) {
        let product = u128::from(self) * u128::from(bound);
        ((product >> 64) as u64, product as u64)
    }

    #[inline]
    fn rejects(low: u64, threshold: u64) -> u64 {
        u64::from(low < threshold) << 63
    }
}

/// Where a rejected draw finds fresh words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Redraw {
    pub(crate) seed: u64,
    pub(crate) purpose: &'static str,
    pub(crate) stream: u64,
}

impl Redraw {
    /// A fresh draw below `bound` for the slot `slot`; low halves under `threshold` are rejected.
    #[cold]
    pub(crate) fn draw<W: Word>(&self, slot: u64, bound: u64, threshold: u64) -> u64 {
        let word = u128::from(slot) * u128::from(REDRAWS * W::WORDS);
        let mut rng = chacha(self.seed, self.purpose, self.stream, word);
        let mut value = 0;
        for _ in 0..REDRAWS {
            let (high, low) = W::take(&mut rng).multiply(bound);
            value = high;
            if low >= threshold {
                break;
            }
        }
        value
    }
}

/// How many low halves must be rejected so that each value below `bound` has as many words: 2^bits mod `bound`.
pub(crate) fn threshold<W: Word>(bound: u64) -> u64 {
    (W::MAX % bound + 1) % bound
}
