//! Mixtures: which source each row of a step comes from.

use std::fmt;
use std::str::FromStr;

use rand_chacha::rand_core::Rng;

use super::LaneSpec;
use crate::draw::chacha;
use crate::error::SpecError;
use crate::permutation::Permutation;

const MIX_KEY: &str = "order-1 mix";

/// The most rows of a block: the shares of sources are exact in each.
const MOST_ROWS: u128 = 1 << 16;

/// The most digits behind the point of a weight, and in front of it.
const DIGITS: usize = 9;

/// Sources and their weights, such as `code=0.3,web=0.7`.
///
/// Weights are decimals and exact; what counts is how they compare. Sources are in the order of
/// the bytes of their names, whatever the order that they are given in. [`Display`](fmt::Display)
/// gives the one canonical spelling, with the smallest whole weights: `code=3,web=7`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Mix {
    sources: Vec<(String, u64)>,
}

impl Mix {
    /// The sources' names, in their order.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.sources.iter().map(|(name, _)| name.as_str())
    }

    /// The weights, in the same order: the smallest whole numbers that compare alike.
    pub fn weights(&self) -> impl ExactSizeIterator<Item = u64> {
        self.sources.iter().map(|&(_, weight)| weight)
    }

    /// Rows of a block, and how many of them come from each source.
    pub fn shares(&self) -> (u64, Vec<u64>) {
        let sum: u128 = self.weights().map(u128::from).sum();
        let block = sum.min(MOST_ROWS);
        let parts: Vec<(u128, u128)> = self
            .weights()
            .map(|weight| (u128::from(weight) * block / sum, u128::from(weight) * block % sum))
            .collect();
        let mut shares: Vec<u64> = parts.iter().map(|&(share, _)| share as u64).collect();
        let left = block as u64 - shares.iter().sum::<u64>();
        // The largest remainders first; of equal ones the earlier source.
        let mut order: Vec<usize> = (0..parts.len()).collect();
        order.sort_by_key(|&source| std::cmp::Reverse(parts[source].1));
        for &source in &order[..left as usize] {
            shares[source] += 1;
        }
        (block as u64, shares)
    }
}

/// The weight's digits as a whole number of 10^-9.
fn weight(text: &str) -> Option<u64> {
    let (whole, part) = text.split_once('.').unwrap_or((text, "0"));
    let digits =
        |s: &str| (1..=DIGITS).contains(&s.len()) && s.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(part) {
        return None;
    }
    format!("{whole}{part:0<DIGITS$}").parse().ok().filter(|&weight| weight > 0)
}

fn common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}

fn is_name(name: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
    name.bytes().all(allowed) && name.starts_with(|c: char| c.is_ascii_alphanumeric())
}

impl FromStr for Mix {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let mut sources: Vec<(String, u64)> = Vec::new();
        for item in text.split(',') {
            let Some((name, value)) = item.split_once('=').filter(|(name, _)| is_name(name)) else {
                return Err(SpecError::NotNameWeight { item: item.to_owned() });
            };
            let Some(weight) = weight(value) else {
                return Err(SpecError::BadWeight {
                    name: name.to_owned(),
                    value: value.to_owned(),
                });
            };
            if sources.iter().any(|(known, _)| known == name) {
                return Err(SpecError::DuplicateSource { name: name.to_owned() });
            }
            sources.push((name.to_owned(), weight));
        }
        sources.sort();
        let divisor = sources.iter().fold(0, |divisor, &(_, n)| common_divisor(n, divisor));
        sources.iter_mut().for_each(|(_, weight)| *weight /= divisor);
        let mut mix = Self { sources };
        let (block, shares) = mix.shares();
        match shares.iter().position(|&share| share == 0) {
            None => Ok(mix),
            Some(at) => {
                Err(SpecError::WeightTooSmall { name: mix.sources.swap_remove(at).0, block })
            }
        }
    }
}

impl fmt::Display for Mix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (name, weight)) in self.sources.iter().enumerate() {
            write!(f, "{}{name}={weight}", if at == 0 { "" } else { "," })?;
        }
        Ok(())
    }
}

/// Where a row of a mixture comes from: the row that this lane has in this step when the source is
/// read alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct SourceRow {
    /// The source, by its place in the mix.
    pub source: usize,
    /// The source's own step.
    pub step: u64,
    /// The lane there, of all ranks together.
    pub lane: u64,
}

/// A rank's rows of a step of a mixture.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MixedStep {
    /// Where each row comes from.
    pub rows: Vec<SourceRow>,
    /// For each source the row that it gives next; beyond the last step of all that may not exist.
    pub next: Vec<SourceRow>,
}

/// The order of a mixture under a spec. It has no state: any step at any time.
#[derive(Debug, Clone)]
pub struct Mixture {
    spec: LaneSpec,
    block: u64,
    shares: Vec<u64>,
    permutation: Permutation,
}

impl Mixture {
    /// The mixture of `mix` in steps of `spec`.
    pub fn new(mix: &Mix, spec: LaneSpec) -> Self {
        let (block, shares) = mix.shares();
        Self { spec, block, shares, permutation: Permutation::new(block) }
    }

    /// The rows of this rank in a step, in order.
    pub fn rows(&self, step: u64) -> Vec<SourceRow> {
        self.step(step).rows
    }

    /// The rows of this rank in a step, and what comes then. The cost is that of the rows and of a
    /// block.
    pub fn step(&self, step: u64) -> MixedStep {
        let lanes = self.spec.own_lanes();
        let all = u128::from(self.spec.lanes);
        // A source has had no more rows than there were, so its step is no later.
        let row = |source, number| SourceRow {
            source,
            step: (number / all) as u64,
            lane: (number % all) as u64,
        };
        let first = u128::from(step) * all + u128::from(lanes.start);
        let end = u128::from(step) * all + u128::from(lanes.end);
        let size = u128::from(self.block);
        let mut rows = Vec::with_capacity((lanes.end - lanes.start) as usize);
        let mut values = vec![0; self.block as usize];
        let mut had = vec![0; self.shares.len()];
        let mut seed = None;
        for block in first / size..end.div_ceil(size) {
            let (high, low) = ((block >> 64) as u64, block as u64);
            let known = seed.filter(|&(of, _)| of == high);
            let (_, seed) = *seed.insert(known.unwrap_or_else(|| (high, self.seed(high))));
            self.permutation.ids(seed, low, 0, &mut values);
            for (had, &share) in had.iter_mut().zip(&self.shares) {
                *had = block * u128::from(share);
            }
            for (place, &value) in (block * size..end).zip(&values) {
                let source = self.source(value);
                if place >= first {
                    rows.push(row(source, had[source]));
                }
                had[source] += 1;
            }
        }
        let next = (0..).zip(had).map(|(source, number)| row(source, number)).collect();
        MixedStep { rows, next }
    }

    /// The seed of the permutations of 2^64 blocks.
    fn seed(&self, number: u64) -> u64 {
        chacha(self.spec.seed, MIX_KEY, number, 0).next_u64()
    }

    fn source(&self, value: u64) -> usize {
        let mut end = 0;
        let found = self.shares.iter().position(|&share| {
            end += share;
            value < end
        });
        found.unwrap_or(self.shares.len() - 1)
    }
}
