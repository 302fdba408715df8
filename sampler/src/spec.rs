//! The sampler's spec and its canonical spelling.

use crate::error::SpecError;
use crate::text::{bad, items, number};
use std::fmt;
use std::str::FromStr;

/// How records are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mode {
    /// In order of their ids; after the last record comes the first again.
    Sequential,
    /// Each independently and uniformly, with replacement.
    Iid,
    /// A fresh permutation of all records in every cycle.
    Cyclic,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sequential => "sequential",
            Self::Iid => "iid",
            Self::Cyclic => "cyclic",
        })
    }
}

/// What happens in a cyclic order to the records at a cycle's end that do not fill a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Remainder {
    /// They are left out; each cycle leaves out others.
    Drop,
    /// The batch is filled up from the next cycle, so that each cycle has every record exactly once. The one batch
    /// that spans two cycles can hold a record twice.
    Carry,
}

/// Which order, and which part of it.
///
/// Parsed from `key=value` items joined by commas, keys in any order. Keys left out take the value that
/// [`Spec::default`] has. Numbers are plain decimals: no sign, space or leading zero.
///
/// [`Display`](fmt::Display) gives the one canonical spelling, usable as a file name: `mode`, `batch`, `seed`
/// (not with `sequential`, which uses none), `remainder` (only `carry`), `rank` and `world` (only if `world > 1`).
/// Parsing it gives the spec back. Parsing sets the seed of a sequential spec to 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Spec {
    /// How records are chosen.
    pub mode: Mode,
    /// Records in the global batch, that is of all ranks together; at least 1.
    pub batch: u64,
    /// The seed of all randomness.
    pub seed: u64,
    /// What a cyclic order does with a cycle's last, partial batch; [`Remainder::Drop`] in other modes.
    pub remainder: Remainder,
    /// This rank, `0..world`.
    pub rank: u64,
    /// The number of ranks; divides `batch`.
    pub world: u64,
}

impl Default for Spec {
    /// `mode=cyclic,batch=256,seed=0,remainder=drop,rank=0,world=1`.
    fn default() -> Self {
        Self {
            mode: Mode::Cyclic,
            batch: 256,
            seed: 0,
            remainder: Remainder::Drop,
            rank: 0,
            world: 1,
        }
    }
}

impl Spec {
    /// Checks what can be checked without the data.
    ///
    /// # Errors
    /// A batch or world of 0, a rank outside the world, a batch that the ranks cannot share equally, a remainder
    /// without cycles, an iid batch over 2^61.
    pub fn validate(&self) -> Result<(), SpecError> {
        let Self { mode, batch, rank, world, .. } = *self;
        if batch == 0 {
            Err(SpecError::ZeroBatch)
        } else if world == 0 {
            Err(SpecError::ZeroWorld)
        } else if rank >= world {
            Err(SpecError::RankOutOfRange { rank, world })
        } else if batch % world != 0 {
            Err(SpecError::Indivisible { batch, world })
        } else if self.remainder == Remainder::Carry && mode != Mode::Cyclic {
            Err(SpecError::RemainderWithoutCycle { mode })
        } else if mode == Mode::Iid && batch > crate::iid::MAX_BATCH {
            Err(SpecError::IidBatchTooLarge { batch })
        } else {
            Ok(())
        }
    }
}

const KEYS: [&str; 6] = ["mode", "batch", "seed", "remainder", "rank", "world"];

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut spec = Self::default();
        let mut remainder = None;
        for (key, value) in items(text, &KEYS)? {
            match key {
                "mode" => spec.mode = mode(value)?,
                "remainder" => remainder = Some(parse_remainder(value)?),
                "batch" => spec.batch = number(key, value)?,
                "seed" => spec.seed = number(key, value)?,
                "rank" => spec.rank = number(key, value)?,
                _ => spec.world = number(key, value)?,
            }
        }
        if let Some(remainder) = remainder {
            if spec.mode != Mode::Cyclic {
                return Err(SpecError::RemainderWithoutCycle { mode: spec.mode });
            }
            spec.remainder = remainder;
        }
        spec.validate()?;
        if spec.mode == Mode::Sequential {
            spec.seed = 0;
        }
        Ok(spec)
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "mode={},batch={}", self.mode, self.batch)?;
        if self.mode != Mode::Sequential {
            write!(f, ",seed={}", self.seed)?;
        }
        if self.remainder == Remainder::Carry {
            f.write_str(",remainder=carry")?;
        }
        if self.world > 1 {
            write!(f, ",rank={},world={}", self.rank, self.world)?;
        }
        Ok(())
    }
}

fn mode(value: &str) -> Result<Mode, SpecError> {
    match value {
        "sequential" => Ok(Mode::Sequential),
        "iid" => Ok(Mode::Iid),
        "cyclic" => Ok(Mode::Cyclic),
        _ => Err(bad("mode", value, "sequential, iid or cyclic")),
    }
}

fn parse_remainder(value: &str) -> Result<Remainder, SpecError> {
    match value {
        "drop" => Ok(Remainder::Drop),
        "carry" => Ok(Remainder::Carry),
        _ => Err(bad("remainder", value, "drop or carry")),
    }
}
