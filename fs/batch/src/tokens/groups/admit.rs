//! Who gets room in the budget, and when.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{MutexGuard, PoisonError};

use super::Inner;
use super::state::{Content, State};

impl Inner {
    /// Waits until `wanted` fit beside what others have pinned, and pins them. What is wanted `soon`
    /// counts as used. Who came first is first: one that needs much room gets it however many come
    /// after it that need little.
    pub(super) fn admit(
        &self,
        wanted: &HashSet<usize>,
        soon: &[usize],
        little: bool,
    ) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        state.clock += 1;
        let now = state.clock;
        for group in soon {
            if let Some(entry) = state.entries.get_mut(group) {
                entry.last = now;
            }
        }
        let ticket = state.tickets;
        state.tickets += 1;
        state.waiting.push_back(ticket);
        loop {
            if state.waiting.front() != Some(&ticket) {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let ahead = std::mem::take(&mut state.ahead);
            let (now, later): (VecDeque<_>, VecDeque<_>) =
                ahead.into_iter().partition(|group| wanted.contains(group));
            for group in &now {
                if let Some(entry) = state.entries.get_mut(group) {
                    entry.little = little;
                }
            }
            state.demand.extend(now);
            state.ahead = later;
            // What is being decoded ahead cannot be given up before it is done; what is only queued can.
            let held: u64 = state
                .entries
                .iter()
                .filter(|(group, entry)| {
                    let busy = entry.pins > 0 || matches!(entry.content, Content::Coming);
                    busy && !wanted.contains(group) && !state.ahead.contains(group)
                })
                .map(|(_, entry)| entry.bytes)
                .sum();
            let bytes = |group: &usize| {
                state.entries.get(group).map_or_else(|| self.bytes(*group), |entry| entry.bytes)
            };
            let own: u64 = wanted.iter().map(bytes).sum();
            // One that is too large by itself was refused before; if not, it goes alone.
            if held == 0 || held.saturating_add(own) <= self.budget {
                break;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.waiting.pop_front();
        if !state.waiting.is_empty() {
            // There may be room for the next one, too.
            self.changed.notify_all();
        }
        let missing: Vec<usize> =
            wanted.iter().copied().filter(|group| !state.entries.contains_key(group)).collect();
        let needed = missing.iter().map(|group| self.bytes(*group)).sum();
        let keep = |group: &usize, _: &State| wanted.contains(group);
        if !state.make_room(needed, self.budget, keep) {
            for group in std::mem::take(&mut state.ahead) {
                state.forget(group);
            }
            state.make_room(needed, self.budget, keep);
        }
        state.clock += 1;
        let now = state.clock;
        for group in wanted {
            match state.entries.get_mut(group) {
                Some(entry) => {
                    entry.pins += 1;
                    entry.last = now;
                    match entry.content {
                        Content::Failed(_) if entry.pins == 1 => {
                            entry.content = Content::Coming;
                            entry.little = little;
                            state.demand.push_back(*group);
                        }
                        Content::Here(_) | Content::Packed(_) | Content::Used(_) => {
                            self.hits.fetch_add(1, Ordering::Relaxed);
                        }
                        Content::Coming | Content::Failed(_) => {}
                    }
                }
                None => {
                    state.insert(*group, self.bytes(*group), 1, little);
                    state.demand.push_back(*group);
                }
            }
        }
        if !missing.is_empty() {
            drop(state);
            self.announce();
            state = self.lock();
        }
        state
    }

    pub(super) fn unpin(&self, groups: impl Iterator<Item = usize>) {
        let mut state = self.lock();
        for group in groups {
            let Some(entry) = state.entries.get_mut(&group) else { continue };
            entry.pins = entry.pins.saturating_sub(1);
            if entry.pins == 0 && matches!(entry.content, Content::Failed(_)) {
                let bytes = entry.bytes;
                state.entries.remove(&group);
                state.used -= bytes;
            }
        }
        drop(state);
        self.changed.notify_all();
    }
}
