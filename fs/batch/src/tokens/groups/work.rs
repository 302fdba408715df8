//! What the threads that decode do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use batchfs_store::{Error, GroupRead, PackedGroup};

use super::Inner;
use super::silent::is_late;
use super::state::Content;

impl Inner {
    pub(super) fn decode(&self) {
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
    pub(super) fn load(&self, group: usize) {
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
    pub(super) fn unpack(&self, group: usize, packed: Option<Arc<dyn PackedGroup>>) {
        let Some(packed) = packed else { return };
        self.settle(group, || {
            // What is wrong is found out, and told, as ever.
            let whole = packed.unpack().map_or_else(|| self.source.read(group), Ok);
            whole.map(GroupRead::Whole)
        });
    }

    pub(super) fn settle(&self, group: usize, read: impl FnOnce() -> Result<GroupRead, Error>) {
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
                state.silent.insert(source, (Instant::now(), error.again()));
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
