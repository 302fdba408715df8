//! The spec of a token stream and its canonical spelling.

use std::fmt;
use std::str::FromStr;

use crate::error::SpecError;
use crate::text::{bad, items, number};

/// How the tokens of a dataset are packed into rows, and which rows this rank gets.
///
/// Parsed from `key=value` items joined by commas, keys in any order; those left out take the values
/// of [`LaneSpec::default`]. [`Display`](fmt::Display) gives the one canonical spelling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LaneSpec {
    /// Rows of a step, of all ranks together; at least 1.
    pub lanes: u64,
    /// Row groups that are shuffled among each other; at least 1.
    pub window: u64,
    /// Tokens of a row; at least 1.
    pub seq_len: u64,
    /// The seed of all randomness.
    pub seed: u64,
    /// Room for pieces of documents, per row: 1 to `seq_len`. It has no influence on the order.
    pub pieces: u64,
    /// Whether tokens are given out as uint32 instead of int32: the same bits.
    pub unsigned: bool,
    /// This rank, `0..world`.
    pub rank: u64,
    /// The number of ranks; divides `lanes`.
    pub world: u64,
}

/// Room for pieces if the spec does not say: enough for documents of 32 tokens on average, and for
/// any documents in rows of up to 16 tokens.
fn default_pieces(seq_len: u64) -> u64 {
    seq_len.div_ceil(32).max(16).min(seq_len)
}

impl Default for LaneSpec {
    /// `lanes=256,window=64,seq_len=2048,seed=0,pieces=64,rank=0,world=1`.
    fn default() -> Self {
        let seq_len = 2048;
        Self {
            lanes: 256,
            window: 64,
            seq_len,
            seed: 0,
            pieces: default_pieces(seq_len),
            unsigned: false,
            rank: 0,
            world: 1,
        }
    }
}

const KEYS: [&str; 8] = ["lanes", "window", "seq_len", "seed", "pieces", "out", "rank", "world"];

impl LaneSpec {
    /// Checks what can be checked without the data.
    ///
    /// # Errors
    /// A 0 where at least 1 is needed, a rank outside the world, lanes that the ranks cannot share
    /// equally, more than 2^31 - 1 tokens for a rank, room for more pieces than tokens.
    pub fn validate(&self) -> Result<(), SpecError> {
        let Self { lanes, window, seq_len, pieces, rank, world, .. } = *self;
        let counts = [("lanes", lanes), ("window", window), ("seq_len", seq_len)];
        if let Some((key, _)) = counts.into_iter().find(|&(_, count)| count == 0) {
            Err(SpecError::Zero { key })
        } else if world == 0 {
            Err(SpecError::ZeroWorld)
        } else if rank >= world {
            Err(SpecError::RankOutOfRange { rank, world })
        } else if lanes % world != 0 {
            Err(SpecError::LanesIndivisible { lanes, world })
        } else if self.rows().checked_mul(seq_len).is_none_or(|n| n > i32::MAX as u64) {
            Err(SpecError::StepTooLarge { rows: self.rows(), seq_len })
        } else if pieces == 0 || pieces > seq_len {
            Err(SpecError::PiecesOutOfRange { pieces, seq_len })
        } else {
            Ok(())
        }
    }

    /// Rows of this rank in a step.
    pub fn rows(&self) -> u64 {
        self.lanes / self.world
    }

    /// The lanes of this rank.
    pub fn own_lanes(&self) -> std::ops::Range<u64> {
        self.rank * self.rows()..(self.rank + 1) * self.rows()
    }

    /// Tokens of a step, of all ranks together.
    pub(crate) fn step_tokens(&self) -> u128 {
        u128::from(self.lanes) * u128::from(self.seq_len)
    }
}

impl FromStr for LaneSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut spec = Self::default();
        let mut pieces = None;
        for (key, value) in items(text, &KEYS)? {
            if key == "out" {
                spec.unsigned = match value {
                    "int32" => false,
                    "uint32" => true,
                    _ => return Err(bad(key, value, "int32 or uint32")),
                };
                continue;
            }
            let value = number(key, value)?;
            match key {
                "lanes" => spec.lanes = value,
                "window" => spec.window = value,
                "seq_len" => spec.seq_len = value,
                "seed" => spec.seed = value,
                "pieces" => pieces = Some(value),
                "rank" => spec.rank = value,
                _ => spec.world = value,
            }
        }
        spec.pieces = pieces.unwrap_or(default_pieces(spec.seq_len));
        spec.validate()?;
        Ok(spec)
    }
}

impl fmt::Display for LaneSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { lanes, window, seq_len, seed, pieces, unsigned, rank, world } = *self;
        write!(f, "lanes={lanes},window={window},seq_len={seq_len},seed={seed}")?;
        if pieces != default_pieces(seq_len) {
            write!(f, ",pieces={pieces}")?;
        }
        if unsigned {
            f.write_str(",out=uint32")?;
        }
        if world > 1 {
            write!(f, ",rank={rank},world={world}")?;
        }
        Ok(())
    }
}
