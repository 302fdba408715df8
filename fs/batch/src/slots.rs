//! Which regions there are, who wants them, and which go first. No threads and no clocks here.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use batchfs_region::Region;

use crate::face::Making;
use crate::predict::Predictor;
use crate::{Error, Face, Item, Key, View};

/// Regions per view, item and face that are kept after their last reader closed them, for those
/// who open a step twice. Few, because most steps are opened once.
const KEPT: usize = 4;

/// A run of steps without one of so many opens of its kind is over, and what was filled for it goes.
const QUIET: u64 = 64;

/// The same where there is no room to fill ahead for another one.
const QUIET_IF_FULL: u64 = 12;

/// Called when a wanted region is there, or cannot be had.
pub(crate) type Then = Box<dyn FnOnce(Result<Region, Arc<Error>>) + Send>;

/// Keys that differ in the number alone.
type Group = (u16, Item, Face);

fn group(key: Key) -> Group {
    (key.view, key.item, key.face)
}

pub(crate) enum Slot {
    /// Queued or being filled.
    Coming {
        view: Arc<View>,
        /// Opens that wait; none for a prefetch.
        waiters: Vec<Then>,
        /// When the budget was first found full.
        blocked: Option<Instant>,
        /// Bytes counted as prefetched, until somebody opens it.
        ahead: u64,
        /// A prefetch that takes about as long as a reader needs for what was filled before.
        light: bool,
    },
    /// Filled. Without pins it may be dropped at any time.
    Ready { region: Region, pins: usize, ahead: u64 },
}

/// A fill ahead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ahead {
    pub(crate) key: Key,
    /// What it takes of the budget.
    pub(crate) bytes: u64,
    /// Whether it takes about as long as a reader needs for what was filled before.
    pub(crate) light: bool,
}

/// Something to fill.
pub(crate) struct Job {
    pub(crate) key: Key,
    pub(crate) view: Arc<View>,
    /// Whether it counts for [`Slots::most_light`]; then [`Slots::light_done`] is to be told.
    pub(crate) light: bool,
}

#[derive(Default)]
pub(crate) struct Slots {
    pub(crate) map: HashMap<Key, Slot>,
    /// Opens first, in order; then prefetches.
    pub(crate) demand: VecDeque<Key>,
    pub(crate) prefetch: VecDeque<Key>,
    /// Opens that found no room.
    pub(crate) blocked: Vec<Key>,
    /// How many light fills may run at a time.
    most_light: usize,
    light: usize,
    /// Ready, opened before, closed by all; oldest first.
    released: VecDeque<Key>,
    /// Ready and never opened; oldest first.
    unopened: VecDeque<Key>,
    /// With the number of the last open of the group.
    predictors: HashMap<Group, (Predictor, u64)>,
    /// Opens so far that could be predicted.
    opens: u64,
    /// Opens per view that have yet to look ahead.
    opening: HashMap<u16, usize>,
    /// Bytes that were, or are being, filled ahead and that nobody has opened.
    ahead_bytes: u64,
}

/// What an open found.
pub(crate) enum Found {
    Ready(Region, Then),
    Coming,
    Missing,
}

impl Slots {
    /// With at most so many light fills at a time, at least one.
    pub(crate) fn new(most_light: usize) -> Slots {
        Slots { most_light: most_light.max(1), ..Slots::default() }
    }

    /// An open. If the region is ready it is pinned and `then` comes back to be called.
    pub(crate) fn open(&mut self, key: Key, view: &Arc<View>, then: Then) -> Found {
        *self.opening.entry(key.view).or_default() += 1;
        match self.map.get_mut(&key) {
            Some(Slot::Ready { region, pins, ahead }) => {
                let region = region.clone();
                if *pins == 0 {
                    let queue = if *ahead > 0 { &mut self.unopened } else { &mut self.released };
                    queue.retain(|k| *k != key);
                }
                *pins += 1;
                self.ahead_bytes -= std::mem::take(ahead);
                Found::Ready(region, then)
            }
            Some(Slot::Coming { waiters, ahead, .. }) => {
                self.ahead_bytes -= std::mem::take(ahead);
                if waiters.is_empty()
                    && let Some(at) = self.prefetch.iter().position(|k| *k == key)
                {
                    self.prefetch.remove(at);
                    self.demand.push_back(key);
                }
                waiters.push(then);
                Found::Coming
            }
            None => {
                let view = view.clone();
                let slot = Slot::Coming {
                    view,
                    waiters: vec![then],
                    blocked: None,
                    ahead: 0,
                    light: false,
                };
                self.map.insert(key, slot);
                self.demand.push_back(key);
                Found::Missing
            }
        }
    }

    /// Takes note of an open for prediction. Returns what should be filled next, nearest first, and
    /// regions that are not expected to be opened any more.
    pub(crate) fn look_ahead(&mut self, key: Key) -> (Vec<Key>, Vec<Region>) {
        if matches!(key.item, Item::Record(_)) || key.face.making() != Making::Gathered {
            return (Vec::new(), Vec::new());
        }
        self.opens += 1;
        let (predictor, last) = self.predictors.entry(group(key)).or_default();
        *last = self.opens;
        let mut next = predictor.opened(key.number);
        let stale: Vec<Key> = self
            .unopened
            .iter()
            .filter(|k| group(**k) == group(key) && !predictor.expects(k.number, QUIET))
            .copied()
            .collect();
        let dropped = stale.into_iter().filter_map(|k| self.drop_ready(k)).collect();
        next.retain(|number| !self.map.contains_key(&Key { number: *number, ..key }));
        (next.into_iter().map(|number| Key { number, ..key }).collect(), dropped)
    }

    /// Queues fills ahead, up to `limit` bytes filled ahead in all. Returns for how many of them a
    /// thread may be woken, and regions that made room: those of runs that have been quiet.
    pub(crate) fn fill_ahead(
        &mut self,
        next: &[Ahead],
        view: &Arc<View>,
        limit: u64,
    ) -> (usize, Vec<Region>) {
        let (mut queued, mut light_queued, mut dropped) = (0, 0, Vec::new());
        for &Ahead { key, bytes: ahead, light } in next {
            if self.map.contains_key(&key) {
                continue;
            }
            while self.ahead_bytes.saturating_add(ahead) > limit
                && let Some(quiet) = self.quiet(group(key))
            {
                dropped.extend(self.drop_ready(quiet));
            }
            if self.ahead_bytes.saturating_add(ahead) > limit {
                break;
            }
            self.ahead_bytes += ahead;
            let view = view.clone();
            let waiters = Vec::new();
            self.map.insert(key, Slot::Coming { view, waiters, blocked: None, ahead, light });
            self.prefetch.push_back(key);
            *(if light { &mut light_queued } else { &mut queued }) += 1;
        }
        (queued + light_queued.min(self.most_light - self.light), dropped)
    }

    /// A region that was filled ahead for a run whose reader has gone on to something else, as it
    /// seems to one of the group `now`.
    fn quiet(&self, now: Group) -> Option<Key> {
        // Readers that take turns come by that much more seldom.
        let readers =
            self.predictors.values().filter(|(_, last)| self.opens - last < QUIET).count();
        let patience = QUIET_IF_FULL + 2 * readers as u64;
        let is_quiet = |key: &Key| match self.predictors.get(&group(*key)) {
            Some((predictor, _)) if group(*key) == now => {
                !predictor.expects(key.number, QUIET_IF_FULL)
            }
            Some((_, last)) => self.opens - last > patience,
            None => true,
        };
        self.unopened.iter().copied().find(is_quiet)
    }

    /// An open of this view is over: nothing more will be asked for on its behalf.
    pub(crate) fn opened(&mut self, view: u16) {
        if let Some(count) = self.opening.get_mut(&view) {
            *count -= 1;
            if *count == 0 {
                self.opening.remove(&view);
            }
        }
    }

    /// Whether anybody has something of this view open, or waits for it.
    pub(crate) fn in_use(&self, view: u16) -> bool {
        self.map.iter().any(|(key, slot)| {
            key.view == view
                && match slot {
                    Slot::Coming { waiters, .. } => !waiters.is_empty(),
                    Slot::Ready { pins, .. } => *pins > 0,
                }
        })
    }

    /// Gives up what is kept of a view that nobody knows any more. Returns whether all of it is
    /// gone, so that the number can be another view's, and the regions.
    pub(crate) fn retire(&mut self, view: u16) -> (bool, Vec<Region>) {
        self.predictors.retain(|group, _| group.0 != view);
        let (gone, kept) = self.prefetch.iter().partition(|k| k.view == view);
        self.prefetch = kept;
        for key in Vec::from(gone) {
            self.failed(key);
        }
        let keys: Vec<Key> = self.map.keys().filter(|k| k.view == view).copied().collect();
        let count = keys.len();
        let dropped: Vec<Region> = keys.into_iter().filter_map(|k| self.drop_ready(k)).collect();
        (dropped.len() == count && !self.opening.contains_key(&view), dropped)
    }

    /// The next one to fill that somebody waits for.
    pub(crate) fn next_wanted(&mut self) -> Option<Job> {
        while let Some(key) = self.demand.pop_front() {
            if let Some(Slot::Coming { view, .. }) = self.map.get(&key) {
                return Some(Job { key, view: view.clone(), light: false });
            }
        }
        None
    }

    /// The next one to fill.
    pub(crate) fn next_job(&mut self) -> Option<Job> {
        if let Some(job) = self.next_wanted() {
            return Some(job);
        }
        let full = self.light >= self.most_light;
        let may = |key: &Key| match self.map.get(key) {
            Some(Slot::Coming { light, .. }) => !(full && *light),
            _ => true,
        };
        loop {
            let at = self.prefetch.iter().position(may)?;
            let key = self.prefetch.remove(at)?;
            if let Some(Slot::Coming { view, light, .. }) = self.map.get(&key) {
                let (view, light) = (view.clone(), *light);
                self.light += usize::from(light);
                return Some(Job { key, view, light });
            }
        }
    }

    /// A light fill is over.
    pub(crate) fn light_done(&mut self) {
        self.light -= 1;
    }

    /// Whether anybody waits for `key`.
    pub(crate) fn is_wanted(&self, key: Key) -> bool {
        matches!(self.map.get(&key), Some(Slot::Coming { waiters, .. }) if !waiters.is_empty())
    }

    /// Sets an open aside until there is room again; returns since when it has been waiting.
    pub(crate) fn block(&mut self, key: Key, now: Instant) -> Instant {
        match self.map.get_mut(&key) {
            Some(Slot::Coming { blocked, .. }) => {
                let since = *blocked.get_or_insert(now);
                self.blocked.push(key);
                since
            }
            _ => now,
        }
    }

    /// Since when `key` has found no room.
    pub(crate) fn blocked_since(&self, key: Key) -> Option<Instant> {
        match self.map.get(&key) {
            Some(Slot::Coming { blocked, .. }) => *blocked,
            _ => None,
        }
    }

    /// A region was filled. Returns who waits for it; each of them pins it.
    pub(crate) fn filled(&mut self, key: Key, region: Region) -> Vec<Then> {
        let (waiters, ahead) = match self.map.remove(&key) {
            Some(Slot::Coming { waiters, ahead, .. }) => (waiters, ahead),
            _ => (Vec::new(), 0),
        };
        let pins = waiters.len();
        self.map.insert(key, Slot::Ready { region, pins, ahead });
        if pins == 0 {
            self.unopened.push_back(key);
        }
        waiters
    }

    /// A region could not be filled. Returns who waits for it. The next open tries again.
    pub(crate) fn failed(&mut self, key: Key) -> Vec<Then> {
        match self.map.remove(&key) {
            Some(Slot::Coming { waiters, ahead, .. }) => {
                self.ahead_bytes -= ahead;
                waiters
            }
            Some(ready) => {
                self.map.insert(key, ready);
                Vec::new()
            }
            None => Vec::new(),
        }
    }

    /// A reader closed the region. Returns one that is kept no longer.
    pub(crate) fn unpin(&mut self, key: Key) -> Option<Region> {
        let Some(Slot::Ready { pins, .. }) = self.map.get_mut(&key) else { return None };
        *pins = pins.saturating_sub(1);
        if *pins > 0 {
            return None;
        }
        self.released.push_back(key);
        let mut same = self.released.iter().filter(|k| group(**k) == group(key));
        let oldest = same.next().copied()?;
        if same.count() < KEPT { None } else { self.drop_ready(oldest) }
    }

    /// Drops the region that is least likely to be opened: one that was closed, else, for an
    /// open, the latest that was filled ahead.
    pub(crate) fn evict(&mut self, for_open: bool) -> Option<(Region, bool)> {
        if let Some(key) = self.released.front().copied() {
            return self.drop_ready(key).map(|r| (r, false));
        }
        let key = self.unopened.back().copied().filter(|_| for_open)?;
        self.drop_ready(key).map(|r| (r, true))
    }

    /// Drops everything that nobody has open.
    pub(crate) fn evict_all(&mut self) -> Vec<Region> {
        std::iter::from_fn(|| self.evict(true)).map(|(region, _)| region).collect()
    }

    fn drop_ready(&mut self, key: Key) -> Option<Region> {
        self.released.retain(|k| *k != key);
        self.unopened.retain(|k| *k != key);
        match self.map.remove(&key) {
            Some(Slot::Ready { region, pins: 0, ahead }) => {
                self.ahead_bytes -= ahead;
                Some(region)
            }
            Some(other) => {
                self.map.insert(key, other);
                None
            }
            None => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use batchfs_region::{Arena, Config};
    use batchfs_store::{DType, OpenOptions, Schema, Store, StoreWriter, WriteOptions};
    use proptest::prelude::*;

    use super::*;
    use crate::{Dataset, NamedStream};

    #[derive(Clone, Debug)]
    enum Op {
        Open(u64, bool),
        Fill,
        Fail,
        Unpin(usize),
        Evict(bool),
        Block,
    }

    fn ops() -> impl Strategy<Value = Vec<Op>> {
        let op = prop_oneof![
            6 => (0u64..40, any::<bool>()).prop_map(|(n, npy)| Op::Open(n, npy)),
            6 => Just(Op::Fill),
            1 => Just(Op::Fail),
            4 => any::<usize>().prop_map(Op::Unpin),
            1 => any::<bool>().prop_map(Op::Evict),
            1 => Just(Op::Block),
        ];
        proptest::collection::vec(op, 1..200)
    }

    fn view(dir: &std::path::Path) -> Arc<View> {
        let path = dir.join("s");
        let schema = Schema::dense(DType::UInt8, []);
        let mut writer = StoreWriter::create(&path, schema, WriteOptions::default()).unwrap();
        writer.append(&[7; 100]).unwrap();
        writer.finish().unwrap();
        let stream = Arc::new(Store::open(&path, OpenOptions::default()).unwrap());
        let named = NamedStream { name: "s".to_owned(), stream };
        let data = Arc::new(Dataset::new(&path, vec![named]).unwrap());
        Arc::new(
            View::new(0, "", data, "batch=10".parse::<batchfs_sampler::Spec>().unwrap()).unwrap(),
        )
    }

    /// Of every other step a light one.
    fn ahead(key: Key) -> Ahead {
        Ahead { key, bytes: 4096, light: key.number.is_multiple_of(2) }
    }

    fn check(slots: &Slots) {
        let mut ahead = 0;
        for (key, slot) in &slots.map {
            let (released, unopened) = (slots.released.contains(key), slots.unopened.contains(key));
            match slot {
                Slot::Coming { ahead: a, .. } => {
                    ahead += a;
                    assert!(!released && !unopened, "{key:?} is queued for eviction unfilled");
                }
                Slot::Ready { pins, ahead: a, .. } => {
                    ahead += a;
                    assert_eq!(*pins == 0, released || unopened, "{key:?} with {pins} pins");
                    assert_eq!(unopened, *a > 0, "{key:?}");
                }
            }
        }
        assert_eq!(slots.ahead_bytes, ahead);
        assert!(slots.released.iter().chain(&slots.unopened).all(|k| slots.map.contains_key(k)));
    }

    /// Opens steps in order, each when all that was queued is filled; says how many were found ready.
    fn read(slots: &mut Slots, view: &Arc<View>, face: Face, steps: std::ops::Range<u64>) -> usize {
        const ROOM: u64 = 8 * 4096;
        let arena = Arena::new(&Config { limit: 1 << 24, backing: None }).unwrap();
        let mut hits = 0;
        for number in steps {
            let key = Key { view: 0, item: Item::Batch(0), face, number };
            hits +=
                usize::from(matches!(slots.open(key, view, Box::new(|_| ())), Found::Ready(..)));
            let (next, _) = slots.look_ahead(key);
            let sized: Vec<Ahead> = next.into_iter().map(ahead).collect();
            slots.fill_ahead(&sized, view, ROOM);
            slots.opened(0);
            while let Some(job) = slots.next_job() {
                let region = arena.alloc(10, "r".into()).unwrap().freeze();
                slots.filled(job.key, region);
                if job.light {
                    slots.light_done();
                }
            }
            slots.unpin(key);
            check(slots);
            assert!(slots.ahead_bytes <= ROOM);
        }
        hits
    }

    #[test]
    fn a_reader_that_goes_on_elsewhere_is_followed_though_the_room_was_filled_for_it() {
        let view = view(tempfile::tempdir().unwrap().path());
        let mut slots = Slots::new(1);
        assert_eq!(read(&mut slots, &view, Face::Bare, 0..20), 19);
        assert_eq!(slots.ahead_bytes, 8 * 4096);
        // Elsewhere in the same files: what was filled for the first run goes after a while.
        assert!(read(&mut slots, &view, Face::Bare, 1000..1040) >= 26);
        assert_eq!(read(&mut slots, &view, Face::Bare, 1040..1060), 20);
        // And in others.
        assert!(read(&mut slots, &view, Face::Npy, 0..40) >= 22);
        assert_eq!(read(&mut slots, &view, Face::Npy, 40..60), 20);
    }

    proptest! {
        #[test]
        fn counts_and_queues_agree_whatever_happens(ops in ops()) {
            // Only sizes are asked of it, which it knows without its files; a static folder would
            // never be removed.
            static VIEW: LazyLock<Arc<View>> =
                LazyLock::new(|| view(tempfile::tempdir().unwrap().path()));
            let view = &*VIEW;
            let arena = Arena::new(&Config { limit: 1 << 24, backing: None }).unwrap();
            let mut slots = Slots::new(1);
            let mut running: VecDeque<Job> = VecDeque::new();
            let mut pinned: Vec<Key> = Vec::new();
            let mut asked = 0usize;
            let answered = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            for op in ops {
                match op {
                    Op::Open(number, npy) => {
                        let face = if npy { Face::Npy } else { Face::Bare };
                        let key = Key { view: 0, item: Item::Batch(0), face, number };
                        asked += 1;
                        let count = answered.clone();
                        let then: Then = Box::new(move |_| {
                            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        });
                        if let Found::Ready(region, then) = slots.open(key, view, then) {
                            pinned.push(key);
                            then(Ok(region));
                        }
                        let (next, _) = slots.look_ahead(key);
                        let sized: Vec<Ahead> = next.into_iter().map(ahead).collect();
                        slots.fill_ahead(&sized, view, 40 << 10);
                        slots.opened(0);
                    }
                    Op::Fill | Op::Fail => {
                        running.extend(slots.next_job());
                        prop_assert!(running.iter().filter(|job| job.light).count() <= 1);
                        let Some(Job { key, light, .. }) = running.pop_front() else { continue };
                        if matches!(op, Op::Fail) {
                            let error = Arc::new(Error::Bug { item: String::new() });
                            slots.failed(key).into_iter().for_each(|then| then(Err(error.clone())));
                        } else {
                            let region = arena.alloc(10, "r".into()).unwrap().freeze();
                            for then in slots.filled(key, region.clone()) {
                                pinned.push(key);
                                then(Ok(region.clone()));
                            }
                        }
                        if light {
                            slots.light_done();
                        }
                    }
                    Op::Unpin(which) if !pinned.is_empty() => {
                        let key = pinned.swap_remove(which % pinned.len());
                        slots.unpin(key);
                    }
                    Op::Unpin(_) => {}
                    Op::Evict(for_open) => drop(slots.evict(for_open)),
                    Op::Block => {
                        let Some(Job { key, light, .. }) = running.pop_front() else { continue };
                        if light {
                            slots.light_done();
                        }
                        if slots.is_wanted(key) {
                            slots.block(key, Instant::now());
                            slots.demand.extend(std::mem::take(&mut slots.blocked));
                        } else {
                            slots.failed(key);
                        }
                    }
                }
                check(&slots);
            }
            // To the end: everything asked for is answered, everything goes.
            while let Some(job) = running.pop_front().or_else(|| slots.next_job()) {
                if job.light {
                    slots.light_done();
                }
                let key = job.key;
                let region = arena.alloc(10, "r".into()).unwrap().freeze();
                for then in slots.filled(key, region.clone()) {
                    pinned.push(key);
                    then(Ok(region.clone()));
                }
            }
            prop_assert_eq!(asked, answered.load(std::sync::atomic::Ordering::Relaxed));
            for key in pinned {
                slots.unpin(key);
            }
            check(&slots);
            prop_assert_eq!(slots.retire(1).0, true, "nothing of the other view");
            prop_assert_eq!(slots.retire(0).0, true, "nothing is open");
            prop_assert!(slots.map.is_empty() && slots.predictors.is_empty());
            prop_assert_eq!(slots.ahead_bytes, 0);
        }
    }
}
