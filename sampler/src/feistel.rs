//! The keyed bijection for many records: a Feistel network over two digits of unlike base.
//!
//! A position below `a * b` is `left * b + right`. Each round adds a hash of one digit to the other, modulo the other's
//! base, so that each round can be undone and the whole is a permutation of `0..a * b`. It is cut down to `0..len` by
//! cycle walking: a value of `len` or more goes through again. `a * b - len < a`, so about one in `sqrt(len)` does.
//!
//! [`Keys::apply_one`] is the definition in plain arithmetic. The kernels do the same for many positions, round by round
//! and without branches, which is what compilers vectorise.

use crate::draw::chacha;
use rand_chacha::rand_core::Rng;

const KEY: &str = "order-1 feistel";
/// Up to this length digits are below 2^15 and the hash has 16 bits.
const NARROW: u64 = 1 << 30;
/// The rounds of both widths. Small digits take more of them to mix.
const NARROW_ROUNDS: usize = 12;
const WIDE_ROUNDS: usize = 8;
/// The kernel for 32 bits needs a sign bit beside its digits.
const KERNEL_BASE: u64 = 1 << 31;
const CHUNK: usize = 256;

/// The network's shape for a number of records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Feistel {
    len: u64,
    a: u64,
    b: u64,
}

/// The rounds' multipliers and offsets, as wide as the hash.
#[derive(Debug)]
enum Keys {
    Narrow([(u16, u16); NARROW_ROUNDS]),
    Wide([(u32, u32); WIDE_ROUNDS]),
}

impl Feistel {
    /// `a` is the square root of `len` and `b` is `len / a`, both rounded up; any `len >= 2` works.
    pub(crate) fn new(len: u64) -> Self {
        let a = (len - 1).isqrt() + 1;
        Self { len, a, b: len.div_ceil(a) }
    }

    fn keys(&self, seed: u64, cycle: u64) -> Keys {
        let mut rng = chacha(seed, KEY, cycle, 0);
        if self.len <= NARROW {
            Keys::Narrow(std::array::from_fn(|_| {
                let word = rng.next_u32();
                (word as u16 | 1, (word >> 16) as u16)
            }))
        } else {
            Keys::Wide(std::array::from_fn(|_| (rng.next_u32() | 1, rng.next_u32())))
        }
    }

    /// The records at the positions `from..from + out.len()` of the cycle's permutation.
    pub(crate) fn ids(&self, seed: u64, cycle: u64, from: u64, out: &mut [u64]) {
        let keys = self.keys(seed, cycle);
        let mut position = from;
        for out in out.chunks_mut(CHUNK) {
            keys.apply_run(self, position, out);
            if out.iter().fold(false, |any, &id| any | (id >= self.len)) {
                self.walk(&keys, out);
            }
            position = position.wrapping_add(out.len() as u64);
        }
    }

    /// Sends the values outside `0..len` through the network again until none is left.
    #[cold]
    fn walk(&self, keys: &Keys, out: &mut [u64]) {
        let (mut places, mut values) = ([0; CHUNK], [0; CHUNK]);
        loop {
            let mut outside = 0;
            for (place, &value) in out.iter().enumerate() {
                if value >= self.len {
                    places[outside] = place;
                    values[outside] = value;
                    outside += 1;
                }
            }
            if outside == 0 {
                break;
            }
            keys.apply(self, &mut values[..outside]);
            for (&place, &value) in places[..outside].iter().zip(&values) {
                out[place] = value;
            }
        }
    }
}

impl Keys {
    /// The network at the positions from `first` on, `out.len() <= CHUNK` of them.
    fn apply_run(&self, shape: &Feistel, first: u64, out: &mut [u64]) {
        match self {
            Self::Narrow(keys) => narrow::apply_run(shape, keys, first, out),
            Self::Wide(keys) if shape.a <= KERNEL_BASE => wide::apply_run(shape, keys, first, out),
            Self::Wide(_) => {
                for (value, position) in out.iter_mut().zip(first..) {
                    *value = self.apply_one(shape, position);
                }
            }
        }
    }

    /// The network at up to `CHUNK` positions below `a * b`, in place.
    fn apply(&self, shape: &Feistel, values: &mut [u64]) {
        match self {
            Self::Narrow(keys) => narrow::apply(shape, keys, values),
            Self::Wide(keys) if shape.a <= KERNEL_BASE => wide::apply(shape, keys, values),
            Self::Wide(_) => {
                for value in values {
                    *value = self.apply_one(shape, *value);
                }
            }
        }
    }

    /// The network at one position, as `docs/order.md` has it.
    fn apply_one(&self, shape: &Feistel, position: u64) -> u64 {
        let mut digits = [position / shape.b, position % shape.b];
        let bases = [shape.a, shape.b];
        let mut round = |index: usize, bits: u32, multiplier: u64, offset: u64| {
            let mask = (1_u64 << bits) - 1;
            let (to, from) = (index % 2, (index + 1) % 2);
            let mixed = (digits[from] * multiplier + offset) & mask;
            let square = mixed * mixed;
            let hash = ((square >> bits) + square) & mask;
            let sum = digits[to] + ((hash * bases[to]) >> bits);
            digits[to] = if sum < bases[to] { sum } else { sum - bases[to] };
        };
        match self {
            Self::Narrow(keys) => {
                for (index, &(multiplier, offset)) in keys.iter().enumerate() {
                    round(index, 16, multiplier.into(), offset.into());
                }
            }
            Self::Wide(keys) => {
                for (index, &(multiplier, offset)) in keys.iter().enumerate() {
                    round(index, 32, multiplier.into(), offset.into());
                }
            }
        }
        digits[0] * shape.b + digits[1]
    }
}

/// A kernel holds a digit `d` of base `m` as `d - m`, in `-m..0`. A sum with a hash below `m` is then negative if and
/// only if it needs no reduction, and the reduction is a mask. The shift by `m` goes into the round's offset.
macro_rules! kernel {
    ($name:ident, $bits:literal, $unsigned:ty, $signed:ty, $wide:ty, $rounds:expr, $hash:expr) => {
        mod $name {
            use super::{CHUNK, Feistel};

            // A function of its own and kept so: inlined and unrolled, the loop is no longer vectorised.
            #[inline(never)]
            fn round(
                from: &[$unsigned],
                to: &mut [$unsigned],
                multiplier: $unsigned,
                offset: $unsigned,
                base: $unsigned,
            ) {
                let hash: fn($unsigned) -> $unsigned = $hash;
                for (&from, to) in from.iter().zip(to) {
                    let hash = hash(from.wrapping_mul(multiplier).wrapping_add(offset));
                    let sum =
                        to.wrapping_add(((hash as $wide * base as $wide) >> $bits) as $unsigned);
                    let keep = ((sum as $signed) >> ($bits - 1)) as $unsigned;
                    *to = sum.wrapping_sub(base & !keep);
                }
            }

            type Keys = [($unsigned, $unsigned); $rounds];

            pub(super) fn apply_run(shape: &Feistel, keys: &Keys, first: u64, out: &mut [u64]) {
                let (mut left, mut right) = ([0; CHUNK], [0; CHUNK]);
                let (mut high, mut low) = (first / shape.b, first % shape.b);
                let mut done = 0;
                while done < out.len() {
                    let run = (shape.b - low).min((out.len() - done) as u64) as usize;
                    left[done..done + run].fill(high.wrapping_sub(shape.a) as $unsigned);
                    let start = low.wrapping_sub(shape.b) as $unsigned;
                    for (digit, add) in right[done..done + run].iter_mut().zip(0..) {
                        *digit = start.wrapping_add(add);
                    }
                    done += run;
                    (high, low) = (high + 1, 0);
                }
                network(shape, keys, &mut left[..done], &mut right[..done], out);
            }

            pub(super) fn apply(shape: &Feistel, keys: &Keys, values: &mut [u64]) {
                let (mut left, mut right) = ([0; CHUNK], [0; CHUNK]);
                for ((&value, left), right) in values.iter().zip(&mut left).zip(&mut right) {
                    *left = (value / shape.b).wrapping_sub(shape.a) as $unsigned;
                    *right = (value % shape.b).wrapping_sub(shape.b) as $unsigned;
                }
                let count = values.len();
                network(shape, keys, &mut left[..count], &mut right[..count], values);
            }

            fn network(
                shape: &Feistel,
                keys: &Keys,
                left: &mut [$unsigned],
                right: &mut [$unsigned],
                out: &mut [u64],
            ) {
                let (a, b) = (shape.a as $unsigned, shape.b as $unsigned);
                for pair in keys.chunks_exact(2) {
                    let (multiplier, offset) = pair[0];
                    round(
                        right,
                        left,
                        multiplier,
                        offset.wrapping_add(b.wrapping_mul(multiplier)),
                        a,
                    );
                    let (multiplier, offset) = pair[1];
                    round(
                        left,
                        right,
                        multiplier,
                        offset.wrapping_add(a.wrapping_mul(multiplier)),
                        b,
                    );
                }
                for ((value, &left), &right) in out.iter_mut().zip(&*left).zip(&*right) {
                    *value = u64::from(left.wrapping_add(a)) * u64::from(b)
                        + u64::from(right.wrapping_add(b));
                }
            }
        }
    };
}

kernel!(narrow, 16, u16, i16, u32, super::NARROW_ROUNDS, |mixed| {
    let high = ((mixed as u32 * mixed as u32) >> 16) as u16;
    high.wrapping_add(mixed.wrapping_mul(mixed))
});
kernel!(wide, 32, u32, i32, u64, super::WIDE_ROUNDS, |mixed| {
    let square = mixed as u64 * mixed as u64;
    // The sum of both halves, in the upper one: spelled so, the square is computed once, vectorised too.
    (square.wrapping_add(square << 32) >> 32) as u32
});

#[cfg(test)]
#[path = "feistel_tests.rs"]
mod tests;
