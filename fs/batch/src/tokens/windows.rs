//! The windows of one source: their order, and their pieces once the documents are known.

use std::collections::VecDeque;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use batchfs_sampler::lanes::{Epoch, LaneSpec, Lanes, Window, WindowPieces};

use super::groups::Pinned;
use crate::{Error, Result};

/// Windows whose pieces are kept.
const WINDOWS: usize = 8;
/// Those that are kept, however large they are: a step can begin in one and end in the other.
const LEAST: usize = 2;
/// Epochs whose order is kept.
const EPOCHS: usize = 3;

/// A source under a spec, or one of those of a mixture.
pub(super) struct Windows {
    /// Its first row group in the dataset.
    first: usize,
    lanes: Lanes,
    epochs: Mutex<VecDeque<Arc<Epoch>>>,
    pieces: Mutex<Pieces>,
}

/// The pieces of windows that were used last.
struct Pieces {
    kept: VecDeque<Arc<WindowPieces>>,
    /// Bytes that those of all sources and views take.
    all: Arc<AtomicU64>,
}

/// A window, and the epoch that it is one of.
pub(super) type Met = (Arc<Epoch>, Window);

impl Windows {
    /// The source whose row groups, from `first` on, have so many `tokens`. `kept` are the bytes of the
    /// pieces that are kept for all sources and views of the dataset.
    ///
    /// # Errors
    /// [`Error::Sample`](crate::Error::Sample) if the spec does not fit them.
    pub(super) fn new(
        spec: LaneSpec,
        first: usize,
        tokens: Arc<[u64]>,
        kept: Arc<AtomicU64>,
    ) -> Result<Windows> {
        let lanes = Lanes::new(spec, tokens).map_err(Error::Sample)?;
        let pieces = Pieces { kept: VecDeque::new(), all: kept };
        Ok(Windows { first, lanes, epochs: Mutex::default(), pieces: Mutex::new(pieces) })
    }

    /// The windows that some of its steps have tokens of, in order.
    pub(super) fn met(&self, steps: RangeInclusive<u64>) -> Vec<Met> {
        let mut met: Vec<Met> = Vec::new();
        for step in steps {
            for number in self.lanes.epochs_met(step) {
                let epoch = self.epoch(number);
                for window in self.lanes.windows(step, &epoch) {
                    // Steps that follow each other can meet in one.
                    if met.last().is_none_or(|(_, last)| *last != window) {
                        met.push((epoch.clone(), window));
                    }
                }
            }
        }
        met
    }

    /// The window after this one.
    pub(super) fn after(&self, (epoch, window): &Met) -> Option<Met> {
        let (mut epoch, mut index) = (epoch.clone(), window.index + 1);
        if index >= self.lanes.windows_per_epoch() {
            (epoch, index) = (self.epoch(epoch.number().checked_add(1)?), 0);
        }
        let window = epoch.window(index)?;
        Some((epoch, window))
    }

    /// The row groups, counted through the dataset, that this rank needs of a window. Row groups
    /// without tokens are never read.
    pub(super) fn needed(&self, (epoch, window): &Met) -> Vec<usize> {
        let groups = epoch.groups(window);
        let needed = epoch.needed(window).map(|place| groups[place] as usize);
        let some = needed.filter(|&group| self.lanes.group_tokens()[group] > 0);
        some.map(|group| self.first + group).collect()
    }

    /// The row groups of a window, counted through the dataset.
    pub(super) fn groups(&self, (epoch, window): &Met) -> Vec<usize> {
        epoch.groups(window).iter().map(|&group| self.first + group as usize).collect()
    }

    fn epoch(&self, number: u64) -> Arc<Epoch> {
        let mut epochs = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(epoch) = epochs.iter().find(|epoch| epoch.number() == number) {
            return epoch.clone();
        }
        let epoch = Arc::new(self.lanes.epoch(number));
        epochs.push_back(epoch.clone());
        if epochs.len() > EPOCHS {
            epochs.pop_front();
        }
        epoch
    }

    /// The pieces of a window whose row groups are pinned.
    pub(super) fn pieces(&self, met: &Met, pinned: &Pinned) -> Arc<WindowPieces> {
        let (epoch, window) = met;
        // Under the lock, so that threads that fill neighbouring steps do not all cut it.
        let mut all = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pieces) = all.kept.iter().find(|pieces| pieces.window() == window) {
            return pieces.clone();
        }
        let groups = self.groups(met);
        let lengths = |place: usize| pinned.lengths(groups[place]).unwrap_or_default();
        let pieces = Arc::new(WindowPieces::new(&self.lanes, epoch, *window, lengths));
        all.keep(pieces.clone(), pinned.budget() / 2);
        pieces
    }
}

impl Pieces {
    /// Keeps some more, and forgets the oldest. Of very short documents pieces take more memory than tokens,
    /// so that their number alone does not bound them.
    fn keep(&mut self, pieces: Arc<WindowPieces>, room: u64) {
        self.all.fetch_add(pieces.bytes(), Ordering::Relaxed);
        self.kept.push_back(pieces);
        let over = || self.all.load(Ordering::Relaxed) > room;
        while self.kept.len() > WINDOWS || (self.kept.len() > LEAST && over()) {
            if let Some(oldest) = self.kept.pop_front() {
                self.all.fetch_sub(oldest.bytes(), Ordering::Relaxed);
            }
        }
    }
}

impl Drop for Pieces {
    fn drop(&mut self) {
        let bytes = self.kept.iter().map(|pieces| pieces.bytes()).sum();
        self.all.fetch_sub(bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_windows_stay_while_there_is_room() {
        let spec: LaneSpec = "lanes=2,window=1,seq_len=4".parse().unwrap();
        let lanes = Lanes::new(spec, vec![30; 12].into()).unwrap();
        let epoch = lanes.epoch(0);
        let windows: Vec<Arc<WindowPieces>> = (0..12)
            .map(|index| {
                let window = epoch.window(index).unwrap();
                Arc::new(WindowPieces::new(&lanes, &epoch, window, |_| &[1; 30][..]))
            })
            .collect();
        let one = windows[0].bytes();
        assert!(one > 30 * 16 && one < 30 * 48 + 300, "{one}");
        let all: Arc<AtomicU64> = Arc::default();
        let pieces = || Pieces { kept: VecDeque::new(), all: all.clone() };
        let left = |room: u64| {
            let mut pieces = pieces();
            windows.iter().for_each(|window| pieces.keep(window.clone(), room));
            assert_eq!(pieces.kept.back().unwrap().window(), windows[11].window());
            pieces.kept.len()
        };
        assert_eq!(left(u64::MAX), WINDOWS);
        assert_eq!(left(0), LEAST);
        assert_eq!(left(3 * one + one / 2), 3);
        assert_eq!(all.load(Ordering::Relaxed), 0, "given back");

        // Another view has its share of the same room.
        let (mut a, mut b) = (pieces(), pieces());
        windows[..4].iter().for_each(|window| a.keep(window.clone(), 7 * one));
        windows.iter().for_each(|window| b.keep(window.clone(), 7 * one));
        assert_eq!((a.kept.len(), b.kept.len()), (4, 3));
        drop(a);
        b.keep(windows[0].clone(), 7 * one);
        assert_eq!((b.kept.len(), all.load(Ordering::Relaxed)), (4, 4 * one));
    }
}
