//! Decoded row groups in memory, within a budget of bytes.
//!
//! Whoever needs some pins all of them at once: nobody holds some and waits for others, so that two
//! never wait for each other.

use std::collections::{HashMap, HashSet, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use batchfs_store::{Error, GroupCounts, GroupRead, PackedGroup, TokenGroup, TokenSource};

use super::sources::TokenFigures;

/// How long a source that did not answer in time is let alone. Those who waited for their turn meanwhile
/// would each wait for it anew, one after the other.
const PAUSE: Duration = Duration::from_secs(10);

/// Decodes row groups and keeps them while there is room.
pub(crate) struct Groups {
    inner: Arc<Inner>,
}

struct Inner {
    source: Arc<dyn TokenSource>,
    /// The first row group of each source.
    firsts: Vec<usize>,
    budget: u64,
    state: Mutex<State>,
    /// Signalled when there is something to decode.
    work: Condvar,
    /// Signalled when something was decoded, or is no longer pinned.
    changed: Condvar,
    decoded: AtomicU64,
    decoded_ahead: AtomicU64,
    hits: AtomicU64,
}

#[derive(Default)]
struct State {
    entries: HashMap<usize, Entry>,
    /// Bytes of all entries.
    used: u64,
    clock: u64,
    demand: VecDeque<usize>,
    /// Packed ones that were used, to be decoded.
    unpack: VecDeque<usize>,
    ahead: VecDeque<usize>,
    /// What is not given up for something that is read ahead.
    kept: HashSet<usize>,
    /// Those who wait to pin, in the order in which they came.
    waiting: VecDeque<u64>,
    tickets: u64,
    /// Sources that did not answer in time, since when, and what they are told who ask.
    silent: HashMap<usize, (Instant, Error)>,
    /// What failed once is not read packed any more, so that each step hears of it from then on.
    failed: HashSet<usize>,
    stop: bool,
}

struct Entry {
    bytes: u64,
    pins: usize,
    /// When it was last pinned.
    last: u64,
    /// Whoever waits for it needs little of it.
    little: bool,
    content: Content,
}

enum Content {
    /// Queued, or being decoded.
    Coming,
    Here(Arc<TokenGroup>),
    /// For those that wait for it now, until the first of them is done.
    Packed(Arc<dyn PackedGroup>),
    /// Queued to be decoded, as the next one may need more of it.
    Used(Arc<dyn PackedGroup>),
    /// For those that had it pinned. The next one tries again.
    Failed(Error),
}

/// A row group in memory.
#[derive(Clone)]
pub(crate) enum Held {
    Whole(Arc<TokenGroup>),
    Packed(Arc<dyn PackedGroup>),
}

impl Held {
    /// Tokens of each document.
    pub(crate) fn lengths(&self) -> &[u32] {
        match self {
            Held::Whole(group) => &group.lengths,
            Held::Packed(group) => group.lengths(),
        }
    }
}

/// Row groups that stay in memory while this lives.
pub(crate) struct Pinned {
    groups: HashMap<usize, Held>,
    inner: Arc<Inner>,
}

impl Pinned {
    /// The bytes that all row groups in memory may take.
    pub(crate) fn budget(&self) -> u64 {
        self.inner.budget
    }

    /// A row group that was asked for.
    pub(crate) fn get(&self, group: usize) -> Option<&Held> {
        self.groups.get(&group)
    }

    /// Whether some are packed.
    pub(crate) fn packed(&self) -> bool {
        self.groups.values().any(|held| matches!(held, Held::Packed(_)))
    }

    /// Nothing more is needed of those that are packed: they are decoded for the next one.
    pub(crate) fn done(&self) {
        if self.packed() {
            self.inner.lock().used(self.groups.keys());
            self.inner.work.notify_all();
        }
    }

    /// Writes tokens of a row group that was asked for to `out`, as little-endian bytes, from number
    /// `from` on; says whether it has so many.
    ///
    /// # Errors
    /// What is damaged, which shows in a packed row group only now.
    pub(crate) fn copy(&self, group: usize, from: usize, out: &mut [u8]) -> Result<bool, Error> {
        let whole = |whole: &TokenGroup, out: &mut [u8]| {
            let tokens = whole.tokens.get(from..from.saturating_add(out.len() / 4));
            // Little-endian, as the host is: the store builds on no other.
            tokens.map(|tokens| out.copy_from_slice(bytemuck::cast_slice(tokens))).is_some()
        };
        match self.groups.get(&group) {
            Some(Held::Whole(group)) => Ok(whole(group, out)),
            Some(Held::Packed(packed)) if packed.copy(from, out) => Ok(true),
            Some(Held::Packed(_)) => match self.inner.source.read(group) {
                Ok(group) => Ok(whole(&group, out)),
                Err(error) => {
                    self.inner.lock().failed.insert(group);
                    Err(error)
                }
            },
            None => Ok(false),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.done();
        self.inner.unpin(self.groups.keys().copied());
    }
}

impl Groups {
    /// Starts `threads` threads that decode.
    ///
    /// # Errors
    /// If they cannot be started.
    pub(crate) fn new(
        source: Arc<dyn TokenSource>,
        firsts: Vec<usize>,
        budget: u64,
        threads: usize,
    ) -> std::io::Result<Groups> {
        let inner = Arc::new(Inner {
            source,
            firsts,
            budget,
            state: Mutex::default(),
            work: Condvar::new(),
            changed: Condvar::new(),
            decoded: AtomicU64::new(0),
            decoded_ahead: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        });
        let groups = Groups { inner };
        for i in 0..threads {
            let inner = groups.inner.clone();
            // Not joined: one may be waiting for a far source.
            thread::Builder::new().name(format!("decode-{i}")).spawn(move || inner.decode())?;
        }
        Ok(groups)
    }

    pub(crate) fn source(&self) -> &Arc<dyn TokenSource> {
        &self.inner.source
    }

    pub(crate) fn budget(&self) -> u64 {
        self.inner.budget
    }

    /// What was done so far; what the source received is for the source to say.
    pub(crate) fn figures(&self) -> TokenFigures {
        let inner = &self.inner;
        let count = |n: &AtomicU64| n.load(Ordering::Relaxed);
        TokenFigures {
            budget: inner.budget,
            used: inner.lock().used,
            decoded: count(&inner.decoded),
            ahead: count(&inner.decoded_ahead),
            hits: count(&inner.hits),
            received: 0,
        }
    }

    /// Pins the row groups `wanted`, which fit into the budget together, and waits until they are
    /// there: decoded, or those that are read for it packed if only a `little` of each is needed. They, and
    /// those that are wanted `soon`, are what reading ahead does not displace from now on.
    ///
    /// # Errors
    /// The first of them that could not be read.
    pub(crate) fn pin(
        &self,
        wanted: &[usize],
        soon: &[usize],
        little: bool,
    ) -> Result<Pinned, Error> {
        let wanted: HashSet<usize> = wanted.iter().copied().collect();
        let inner = &self.inner;
        inner.lock().answers(&wanted, |group| inner.source_of(group))?;
        let mut state = inner.admit(&wanted, soon, little);
        state.kept.clone_from(&wanted);
        state.kept.extend(soon);
        inner.work.notify_all();
        let pinned = loop {
            let own = state.demand.iter().position(|group| wanted.contains(group));
            if let Some(group) = own.and_then(|at| state.demand.remove(at)) {
                drop(state);
                inner.load(group);
                state = inner.lock();
                continue;
            }
            let used = state.unpack.iter().position(|group| wanted.contains(group));
            if let Some(group) = used.and_then(|at| state.unpack.remove(at)) {
                let packed = state.begin_unpacking(group);
                drop(state);
                inner.unpack(group, packed);
                state = inner.lock();
                continue;
            }
            match state.collect(&wanted) {
                Some(all) => break all,
                None => {
                    state = inner.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        drop(state);
        match pinned {
            Ok(groups) => Ok(Pinned { groups, inner: inner.clone() }),
            Err(error) => {
                inner.unpin(wanted.into_iter());
                Err(error)
            }
        }
    }

    /// Starts to decode these row groups as far as there is room, and says whether there is for all.
    /// What was to be decoded ahead before, and was not begun, is not any more.
    pub(crate) fn ahead(&self, wanted: &[usize]) -> bool {
        let inner = &self.inner;
        let mut state = inner.lock();
        for group in std::mem::take(&mut state.ahead) {
            state.forget(group);
        }
        let (mut new, mut complete) = (Vec::new(), true);
        let others: HashSet<usize> = wanted.iter().copied().collect();
        for &group in wanted {
            if state.entries.contains_key(&group) {
                continue;
            }
            let bytes = inner.bytes(group);
            let keep =
                |group: &usize, state: &State| state.kept.contains(group) || others.contains(group);
            if !state.make_room(bytes, inner.budget, keep) {
                complete = false;
                break;
            }
            state.insert(group, bytes, 0, false);
            state.ahead.push_back(group);
            new.push(group);
        }
        drop(state);
        inner.source.announce(&new);
        inner.work.notify_all();
        complete
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.inner.lock().stop = true;
        self.inner.work.notify_all();
    }
}

impl State {
    /// Removes what was queued and never begun.
    fn forget(&mut self, group: usize) {
        let idle = |entry: &Entry| entry.pins == 0 && matches!(entry.content, Content::Coming);
        if self.entries.get(&group).is_some_and(idle)
            && let Some(entry) = self.entries.remove(&group)
        {
            self.used -= entry.bytes;
        }
    }

    /// Queues packed row groups that were used.
    fn used<'a>(&mut self, groups: impl Iterator<Item = &'a usize>) {
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
    fn begin_unpacking(&mut self, group: usize) -> Option<Arc<dyn PackedGroup>> {
        let entry = self.entries.get_mut(&group)?;
        let Content::Used(packed) = &entry.content else { return None };
        let packed = packed.clone();
        entry.content = Content::Coming;
        Some(packed)
    }

    fn insert(&mut self, group: usize, bytes: u64, pins: usize, little: bool) {
        self.clock += 1;
        let entry = Entry { bytes, pins, last: self.clock, little, content: Content::Coming };
        self.entries.insert(group, entry);
        self.used += bytes;
    }

    /// Gives up row groups, the longest unused first, until `bytes` more fit into the budget.
    fn make_room(
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

    /// Whether what is not in memory of `wanted` is of sources that answer, as far as that is known.
    fn answers(
        &mut self,
        wanted: &HashSet<usize>,
        source_of: impl Fn(usize) -> usize,
    ) -> Result<(), Error> {
        if self.silent.is_empty() {
            return Ok(());
        }
        self.silent.retain(|_, (since, _)| since.elapsed() < PAUSE);
        let missing = wanted.iter().filter(|group| {
            let content = self.entries.get(group).map(|entry| &entry.content);
            !matches!(content, Some(Content::Here(_)))
        });
        let mut silent = missing.filter_map(|&group| self.silent.get(&source_of(group)));
        silent.next().map_or(Ok(()), |(_, error)| Err(again(error)))
    }

    /// All of them, once each is there or has failed.
    #[allow(clippy::type_complexity)]
    fn collect(&self, wanted: &HashSet<usize>) -> Option<Result<HashMap<usize, Held>, Error>> {
        let mut all = HashMap::with_capacity(wanted.len());
        let mut failed = None;
        for group in wanted {
            match self.entries.get(group).map(|entry| &entry.content) {
                Some(Content::Here(here)) => {
                    all.insert(*group, Held::Whole(here.clone()));
                }
                Some(Content::Packed(packed)) => {
                    all.insert(*group, Held::Packed(packed.clone()));
                }
                Some(Content::Failed(error)) => failed = Some(again(error)),
                _ => return None,
            }
        }
        Some(failed.map_or(Ok(all), Err))
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Entries are whole at each point where a method could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn source_of(&self, group: usize) -> usize {
        self.firsts.partition_point(|&first| first <= group)
    }

    fn bytes(&self, group: usize) -> u64 {
        self.source.groups().get(group).copied().map_or(0, GroupCounts::decoded_bytes)
    }

    /// Waits until `wanted` fit beside what others have pinned, and pins them. What is wanted `soon`
    /// counts as used. Who came first is first: one that needs much room gets it however many come
    /// after it that need little.
    fn admit(
        &self,
        wanted: &HashSet<usize>,
        soon: &[usize],
        little: bool,
    ) -> MutexGuard<'_, State> {
        let own: u64 = wanted.iter().map(|group| self.bytes(*group)).sum();
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
                    if matches!(entry.content, Content::Failed(_)) && entry.pins == 1 {
                        entry.content = Content::Coming;
                        entry.little = little;
                        state.demand.push_back(*group);
                    } else {
                        self.hits.fetch_add(1, Ordering::Relaxed);
                    }
                }
                None => {
                    state.insert(*group, self.bytes(*group), 1, little);
                    state.demand.push_back(*group);
                }
            }
        }
        if !missing.is_empty() {
            let mut missing = missing;
            missing.sort_unstable();
            drop(state);
            self.source.announce(&missing);
            state = self.lock();
        }
        state
    }

    fn unpin(&self, groups: impl Iterator<Item = usize>) {
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

    fn decode(&self) {
        loop {
            let mut state = self.lock();
            let group = loop {
                if state.stop {
                    return;
                }
                if let Some(group) = state.demand.pop_front() {
                    break group;
                }
                if let Some(group) = state.unpack.pop_front() {
                    let packed = state.begin_unpacking(group);
                    drop(state);
                    self.unpack(group, packed);
                    state = self.lock();
                    continue;
                }
                // What is begun takes its room until it is done, which somebody may wait for.
                if state.waiting.is_empty()
                    && let Some(group) = state.ahead.pop_front()
                {
                    self.decoded_ahead.fetch_add(1, Ordering::Relaxed);
                    break group;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            };
            drop(state);
            self.load(group);
        }
    }

    /// Reads a row group, which has an entry that is `Coming`.
    fn load(&self, group: usize) {
        let state = self.lock();
        let little = !state.failed.contains(&group)
            && state.entries.get(&group).is_some_and(|entry| entry.little);
        drop(state);
        self.settle(group, || match little {
            true => self.source.read_packed(group),
            false => self.source.read(group).map(GroupRead::Whole),
        });
        self.decoded.fetch_add(1, Ordering::Relaxed);
    }

    /// Decodes a packed row group, which has an entry that is `Coming`.
    fn unpack(&self, group: usize, packed: Option<Arc<dyn PackedGroup>>) {
        let Some(packed) = packed else { return };
        self.settle(group, || {
            // What is wrong is found out, and told, as ever.
            let whole = packed.unpack().map_or_else(|| self.source.read(group), Ok);
            whole.map(GroupRead::Whole)
        });
    }

    fn settle(&self, group: usize, read: impl FnOnce() -> Result<GroupRead, Error>) {
        let read = catch_unwind(AssertUnwindSafe(read));
        let read = read.unwrap_or_else(|_| {
            let place = self.source.place(group);
            let why = "batchfs itself failed; please report this".to_owned();
            Err(Error::RowGroup { file: place.file, group: place.group, row: None, why })
        });
        let mut state = self.lock();
        let source = self.source_of(group);
        match &read {
            Ok(_) => drop(state.silent.remove(&source)),
            Err(error) if is_late(error) => {
                state.silent.insert(source, (Instant::now(), again(error)));
            }
            Err(_) => {}
        }
        if read.is_err() {
            state.failed.insert(group);
        }
        if let Some(entry) = state.entries.get_mut(&group) {
            match read {
                Ok(GroupRead::Whole(whole)) => entry.content = Content::Here(Arc::new(whole)),
                Ok(GroupRead::Packed(packed)) => entry.content = Content::Packed(packed),
                Err(error) if entry.pins > 0 => entry.content = Content::Failed(error),
                // Nobody waits for it, and whoever wants it will hear for himself.
                Err(_) => state.forget(group),
            }
        }
        drop(state);
        self.changed.notify_all();
    }
}

fn is_late(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::TimedOut)
}

/// The same error for another one who waits.
fn again(error: &Error) -> Error {
    match error {
        Error::Io { path, action, source } => Error::Io {
            path: path.clone(),
            action,
            source: std::io::Error::new(source.kind(), source.to_string()),
        },
        Error::RowGroup { file, group, row, why } => {
            Error::RowGroup { file: file.clone(), group: *group, row: *row, why: why.clone() }
        }
        Error::BadStore { path, why } => Error::BadStore { path: path.clone(), why: why.clone() },
        other => Error::BadStore { path: "tokens".into(), why: other.to_string() },
    }
}

#[cfg(test)]
#[path = "groups_tests.rs"]
mod tests;
