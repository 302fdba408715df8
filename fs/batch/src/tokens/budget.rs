//! How much memory decoded row groups need.

use batchfs_sampler::lanes::LaneSpec;
use batchfs_store::GroupCounts;

/// Bytes of decoded row groups.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Need {
    /// The least that steps need at a time.
    pub(super) least: u64,
    /// A window, to read ahead.
    pub(super) window: u64,
}

impl Need {
    /// What a source needs whose row groups are these, if `steps` steps that follow each other are
    /// needed at a time.
    pub(super) fn new(groups: &[GroupCounts], spec: &LaneSpec, steps: u64) -> Need {
        let count = groups.len();
        let window = usize::try_from(spec.window).unwrap_or(usize::MAX).min(count);
        let mut bytes: Vec<u64> = groups.iter().map(|group| group.decoded_bytes()).collect();
        let mut tokens: Vec<u64> = groups.iter().map(|group| group.tokens).collect();
        bytes.sort_unstable_by(|a, b| b.cmp(a));
        tokens.sort_unstable();
        let smallest = |groups: usize| tokens[..groups].iter().sum::<u64>();
        let step = spec.lanes.saturating_mul(spec.seq_len).saturating_mul(steps);
        // A step begins in a window, ends in another, and has others whole; the last one of an epoch
        // can be as small as its row groups.
        let whole = step.checked_div(smallest(window)).unwrap_or(count as u64);
        let rest = count % window.max(1);
        let short = u64::from(rest > 0 && smallest(rest) < step);
        let windows = whole.saturating_add(short).saturating_add(2);
        let all: u64 = bytes.iter().sum();
        let one: u64 = bytes[..window].iter().sum();
        // A rank has a contiguous share of each window's tokens, whatever documents lie there, and
        // whole row groups at both ends of it.
        let largest = |of: fn(&GroupCounts) -> u64| {
            let mut all: Vec<u64> = groups.iter().map(of).collect();
            all.sort_unstable_by(|a, b| b.cmp(a));
            all[..window].iter().sum::<u64>()
        };
        let share = match spec.world {
            1 => one,
            world => {
                let own = GroupCounts {
                    tokens: largest(|group| group.tokens) / world + 1,
                    documents: largest(|group| group.documents),
                };
                let ends = bytes.first().map_or(0, |&largest| largest.saturating_mul(2));
                one.min(own.decoded_bytes().saturating_add(ends))
            }
        };
        Need { least: all.min(share.saturating_mul(windows)), window: share }
    }

    pub(super) fn and(self, other: Need) -> Need {
        let least = self.least.saturating_add(other.least);
        Need { least, window: self.window.saturating_add(other.window) }
    }

    /// What is enough to read ahead, too.
    pub(super) fn ample(self) -> u64 {
        self.least.saturating_add(self.window)
    }
}
