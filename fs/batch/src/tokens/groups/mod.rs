//! Decoded row groups in memory, within a budget of bytes.
//!
//! Whoever needs some pins all of them at once: nobody holds some and waits for others, so that two
//! never wait for each other.

mod admit;
mod pinned;
mod silent;
mod state;
mod work;

use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use batchfs_store::{Error, GroupCounts, TokenSource};

pub(crate) use self::pinned::Pinned;
use self::state::{Entry, State};
use super::sources::TokenFigures;

/// Decodes row groups and keeps them while there is room.
pub(crate) struct Groups {
    inner: Arc<Inner>,
}

struct Inner {
    source: Arc<dyn TokenSource>,
    /// The first row group of each source.
    firsts: Vec<usize>,
    budget: u64,
    /// What row groups turn out to take less than was reckoned with is for others.
    refund: bool,
    state: Mutex<State>,
    /// Held while the source is told what is queued.
    announcing: Mutex<()>,
    /// Signalled when there is something to decode.
    work: Condvar,
    /// Signalled when something was decoded, or is no longer pinned.
    changed: Condvar,
    decoded: AtomicU64,
    decoded_ahead: AtomicU64,
    hits: AtomicU64,
}

impl Groups {
    /// Starts `threads` threads that decode. With `refund` the budget is full when the memory is; else when
    /// there are as many row groups as would fill it with tokens of 32 bits.
    ///
    /// # Errors
    /// If they cannot be started.
    pub(crate) fn new(
        source: Arc<dyn TokenSource>,
        firsts: Vec<usize>,
        budget: u64,
        refund: bool,
        threads: usize,
    ) -> std::io::Result<Groups> {
        let inner = Arc::new(Inner {
            source,
            firsts,
            budget,
            refund,
            state: Mutex::default(),
            announcing: Mutex::default(),
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
        let count = |n: &AtomicU64| n.load(Ordering::Acquire);
        let ahead = count(&inner.decoded_ahead);
        TokenFigures {
            budget: inner.budget,
            used: inner.lock().entries.values().map(Entry::held).sum(),
            decoded: count(&inner.decoded),
            ahead,
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
        if state.is_work() {
            inner.work.notify_all();
        }
        let pinned = loop {
            let own = state.demand.iter().position(|group| wanted.contains(group));
            if let Some(group) = own.and_then(|at| state.demand.remove(at)) {
                drop(state);
                inner.load(group, false);
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
        let mut complete = true;
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
        }
        drop(state);
        inner.announce();
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

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Entries are whole at each point where a method could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells the source what is queued by now.
    fn announce(&self) {
        // Nobody says what was queued before after another one has said what is.
        let _turn = self.announcing.lock().unwrap_or_else(PoisonError::into_inner);
        let queued = self.lock().queued();
        self.source.announce(&queued);
    }

    fn source_of(&self, group: usize) -> usize {
        self.firsts.partition_point(|&first| first <= group)
    }

    fn bytes(&self, group: usize) -> u64 {
        self.source.groups().get(group).copied().map_or(0, GroupCounts::decoded_bytes)
    }
}

#[cfg(test)]
mod tests;
