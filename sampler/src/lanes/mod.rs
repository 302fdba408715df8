//! Token lanes: documents packed into full rows, in an order that any step can be found in.
//!
//! The row groups of a dataset are permuted anew for each epoch, and each run of `window` of them is
//! a [`Window`]. A window's tokens are dealt to the lanes in contiguous stretches, cut by tokens
//! alone; inside a stretch the pieces of documents are shuffled. A lane is the endless sequence of
//! its stretches, and its row of step k is its tokens `[k * seq_len, (k + 1) * seq_len)`.
//!
//! All of it is arithmetic over counts. `docs/order.md` defines it exactly.
//!
//! ```
//! use batchfs_sampler::lanes::{LaneSpec, Lanes, WindowPieces};
//!
//! let spec: LaneSpec = "lanes=2,window=2,seq_len=4,seed=1".parse()?;
//! // Three row groups, with the lengths of their documents.
//! let groups: [Vec<u32>; 3] = [vec![5, 3], vec![1, 9], vec![6]];
//! let tokens = groups.iter().map(|g| g.iter().sum::<u32>().into()).collect();
//! let lanes = Lanes::new(spec, tokens)?;
//! let epoch = lanes.epoch(lanes.epoch_of(0));
//! let window = lanes.windows(0, &epoch).next().unwrap();
//! let members = epoch.groups(&window);
//! let lengths = |place: usize| groups[members[place] as usize].as_slice();
//! let pieces = WindowPieces::new(&lanes, &epoch, window, lengths);
//! let row: u64 = pieces.row(0, 0).map(|segment| segment.len).sum();
//! assert_eq!(row, 4);
//! # Ok::<(), batchfs_sampler::SpecError>(())
//! ```

mod epoch;
mod mix;
mod pieces;
mod spec;

pub use epoch::{Epoch, Stretch, Window};
pub use mix::{Mix, MixedStep, Mixture, SourceRow};
pub use pieces::{Segment, WindowPieces};
pub use spec::LaneSpec;

use std::ops::RangeInclusive;
use std::sync::Arc;

use crate::error::SpecError;

/// The order of a dataset's tokens under a spec. It has no state: any step at any time.
#[derive(Debug, Clone)]
pub struct Lanes {
    spec: LaneSpec,
    /// Tokens of each row group.
    tokens: Arc<[u64]>,
    total: u64,
}

impl Lanes {
    /// The order of row groups with so many `tokens` each.
    ///
    /// # Errors
    /// What [`LaneSpec::validate`] refuses; fewer tokens in all than one step takes; 2^32 row groups
    /// or 2^63 tokens and more.
    pub fn new(spec: LaneSpec, tokens: Arc<[u64]>) -> Result<Self, SpecError> {
        spec.validate()?;
        if u32::try_from(tokens.len()).is_err() {
            return Err(SpecError::TooMuchData { what: "2^32 - 1 row groups" });
        }
        let total = tokens
            .iter()
            .try_fold(0u64, |sum, &n| sum.checked_add(n))
            .filter(|&sum| sum < 1 << 63)
            .ok_or(SpecError::TooMuchData { what: "2^63 - 1 tokens" })?;
        if u128::from(total) < spec.step_tokens() {
            let LaneSpec { lanes, seq_len, .. } = spec;
            return Err(SpecError::TooFewTokens { lanes, seq_len, tokens: total });
        }
        Ok(Self { spec, tokens, total })
    }

    /// The spec.
    pub fn spec(&self) -> &LaneSpec {
        &self.spec
    }

    /// Tokens of each row group, in the order of the dataset.
    pub fn group_tokens(&self) -> &[u64] {
        &self.tokens
    }

    /// Tokens of an epoch.
    pub fn epoch_tokens(&self) -> u64 {
        self.total
    }

    /// Windows of an epoch; the last one can have fewer row groups than the others.
    pub fn windows_per_epoch(&self) -> u64 {
        (self.tokens.len() as u64).div_ceil(self.spec.window)
    }

    /// Where the tokens of a step begin in the endless run of epochs, see [`Window::before`].
    fn begin(&self, step: u64) -> u128 {
        u128::from(step) * self.spec.step_tokens()
    }

    /// The epoch of a step: that in which its first token lies. An epoch can end inside a step.
    pub fn epoch_of(&self, step: u64) -> u64 {
        // A step takes no more tokens than an epoch has, so there are no more epochs than steps.
        (self.begin(step) / u128::from(self.total)) as u64
    }

    /// The epochs that a step has tokens of: one or two.
    pub fn epochs_met(&self, step: u64) -> RangeInclusive<u64> {
        let last = self.begin(step) + self.spec.step_tokens() - 1;
        self.epoch_of(step)..=(last / u128::from(self.total)) as u64
    }

    /// The first step of an epoch; `None` if it is beyond the last step of all, 2^64 - 1.
    pub fn first_step(&self, epoch: u64) -> Option<u64> {
        let begin = u128::from(epoch) * u128::from(self.total);
        u64::try_from(begin.div_ceil(self.spec.step_tokens())).ok()
    }

    /// The order of an epoch's row groups: O(row groups), to be kept while its steps are read.
    pub fn epoch(&self, number: u64) -> Epoch {
        Epoch::new(self, number)
    }

    /// The windows of `epoch` that `step` has tokens of, in order.
    pub fn windows<'a>(
        &self,
        step: u64,
        epoch: &'a Epoch,
    ) -> impl Iterator<Item = Window> + use<'a> {
        let begin = self.begin(step);
        epoch.meeting(begin, begin + self.spec.step_tokens())
    }
}
