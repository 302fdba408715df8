//! Which row groups are in memory or on their way, and how many bytes they take.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use batchfs_store::{Error, TokenGroup};

use super::pinned::{Held, Packed};

#[derive(Default)]
pub(super) struct State {
    pub(super) entries: HashMap<usize, Entry>,
    /// Bytes that all entries are reckoned with.
    pub(super) used: u64,
    pub(super) clock: u64,
    pub(super) demand: VecDeque<usize>,
    /// Packed ones that were used, to be decoded.
    pub(super) unpack: VecDeque<usize>,
    pub(super) ahead: VecDeque<usize>,
    /// What is not given up for something that is read ahead.
    pub(super) kept: HashSet<usize>,
    /// Those who wait to pin, in the order in which they came.
    pub(super) waiting: VecDeque<u64>,
    pub(super) tickets: u64,
    /// Sources that did not answer in time, since when, and what they are told who ask.
    pub(super) silent: HashMap<usize, (Instant, Error)>,
    /// What failed once is not read packed any more, so that each step hears of it from then on.
    pub(super) failed: HashSet<usize>,
    pub(super) stop: bool,
}

pub(super) struct Entry {
    pub(super) bytes: u64,
    pub(super) pins: usize,
    /// When it was last pinned.
    pub(super) last: u64,
    /// Whoever waits for it needs little of it.
    pub(super) little: bool,
    pub(super) content: Content,
}

pub(super) enum Content {
    /// Queued, or being decoded.
    Coming,
    Here(Arc<TokenGroup>),
    /// For those that wait for it now, until the first of them is done.
    Packed(Arc<Packed>),
    /// Queued to be decoded, as the next one may need more of it.
    Used(Arc<Packed>),
    /// For those that had it pinned. The next one tries again.
    Failed(Error),
}

impl Entry {
    /// Bytes that it takes, as far as is known.
    pub(super) fn held(&self) -> u64 {
        match &self.content {
            Content::Here(group) => group.bytes(),
            _ => self.bytes,
        }
    }
}

impl State {
    /// Removes what was queued and never begun.
    pub(super) fn forget(&mut self, group: usize) {
        let idle = |entry: &Entry| entry.pins == 0 && matches!(entry.content, Content::Coming);
        if self.entries.get(&group).is_some_and(idle)
            && let Some(entry) = self.entries.remove(&group)
        {
            self.used -= entry.bytes;
        }
    }

    /// Whether there is something to decode.
    pub(super) fn is_work(&self) -> bool {
        !(self.demand.is_empty() && self.unpack.is_empty() && self.ahead.is_empty())
    }

    /// What is queued to be read, in that order.
    pub(super) fn queued(&self) -> Vec<usize> {
        self.demand.iter().chain(&self.ahead).copied().collect()
    }

    /// Queues packed row groups that were used.
    pub(super) fn used<'a>(&mut self, groups: impl Iterator<Item = &'a usize>) {
        for group in groups {
            if let Some(entry) = self.entries.get_mut(group)
                && let Content::Packed(packed) = &entry.content
            {
                entry.content = Content::Used(packed.clone());
                self.unpack.push_back(*group);
            }
        }
    }

    /// What is to be unpacked of a row group that was queued for it; nothing if it was given up since.
    pub(super) fn begin_unpacking(&mut self, group: usize) -> Option<Arc<Packed>> {
        let entry = self.entries.get_mut(&group)?;
        let Content::Used(packed) = &entry.content else { return None };
        let packed = packed.clone();
        entry.content = Content::Coming;
        Some(packed)
    }

    pub(super) fn insert(&mut self, group: usize, bytes: u64, pins: usize, little: bool) {
        self.clock += 1;
        let entry = Entry { bytes, pins, last: self.clock, little, content: Content::Coming };
        self.entries.insert(group, entry);
        self.used += bytes;
    }

    /// Gives up row groups, the longest unused first, until `bytes` more fit into the budget.
    pub(super) fn make_room(
        &mut self,
        bytes: u64,
        budget: u64,
        keep: impl Fn(&usize, &State) -> bool,
    ) -> bool {
        while self.used.saturating_add(bytes) > budget {
            let idle = |entry: &Entry| entry.pins == 0 && !matches!(entry.content, Content::Coming);
            let oldest = self
                .entries
                .iter()
                .filter(|(group, entry)| idle(entry) && !keep(group, self))
                .min_by_key(|(_, entry)| entry.last)
                .map(|(group, _)| *group);
            let Some(entry) = oldest.and_then(|group| self.entries.remove(&group)) else {
                return false;
            };
            self.used -= entry.bytes;
        }
        true
    }

    /// All of them by their numbers, in order, once each is there or has failed.
    #[allow(clippy::type_complexity)]
    pub(super) fn collect(
        &self,
        wanted: &HashSet<usize>,
    ) -> Option<Result<Vec<(usize, Held)>, Error>> {
        let mut all = Vec::with_capacity(wanted.len());
        let mut failed = None;
        for group in wanted {
            match self.entries.get(group).map(|entry| &entry.content) {
                Some(Content::Here(here)) => {
                    all.push((*group, Held::Whole(here.clone())));
                }
                Some(Content::Packed(packed)) => {
                    all.push((*group, Held::Packed(packed.clone())));
                }
                Some(Content::Failed(error)) => failed = Some(error.again()),
                _ => return None,
            }
        }
        all.sort_unstable_by_key(|(group, _)| *group);
        Some(failed.map_or(Ok(all), Err))
    }
}
