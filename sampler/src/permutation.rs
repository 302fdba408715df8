//! A permutation of the records for each cycle.

use crate::feistel::Feistel;
use crate::shuffle;

/// The permutations of a number of records.
#[derive(Debug, Clone)]
pub(crate) enum Permutation {
    /// Each order as likely as each other.
    Shuffle(u64),
    /// A keyed bijection; its cost does not depend on the number of records.
    Feistel(Feistel),
}

impl Permutation {
    pub(crate) fn new(len: u64) -> Self {
        if len <= shuffle::MAX_LEN { Self::Shuffle(len) } else { Self::Feistel(Feistel::new(len)) }
    }

    /// The records at the positions `from..from + out.len()` of the cycle, which must be below the length.
    pub(crate) fn ids(&self, seed: u64, cycle: u64, from: u64, out: &mut [u64]) {
        match self {
            Self::Shuffle(len) => shuffle::ids(*len, seed, cycle, from, out),
            Self::Feistel(feistel) => feistel.ids(seed, cycle, from, out),
        }
    }
}
