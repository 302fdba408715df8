//! What the threads that decode do.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use batchfs_store::{Error, GroupRead, ITSELF_FAILED};

use super::Inner;
use super::pinned::Packed;
use super::state::Content;

impl Inner {
    pub(super) fn decode(&self) {
        loop {
            let mut state = self.lock();
            if state.stop {
                return;
            }
            if let Some(group) = state.demand.pop_front() {
                drop(state);
                self.load(group, false);
            } else if let Some(group) = state.unpack.pop_front() {
                let packed = state.begin_unpacking(group);
                drop(state);
                self.unpack(group, packed);
            } else if state.waiting.is_empty()
                // What is begun takes its room until it is done, which somebody may wait for.
                && let Some(group) = state.ahead.pop_front()
            {
                drop(state);
                self.load(group, true);
            } else {
                drop(self.work.wait(state));
            }
        }
    }

    /// Reads a row group, which has an entry that is `Coming`, and no step waits for if it is `ahead`.
    pub(super) fn load(&self, group: usize, ahead: bool) {
        let state = self.lock();
        let little = !state.failed.contains(&group)
            && state.entries.get(&group).is_some_and(|entry| entry.little);
        drop(state);
        let read = self.ask(group, || match little {
            true => self.source.read_packed(group),
            false => self.source.read(group).map(GroupRead::Whole),
        });
        if read.is_ok() {
            // Never fewer in all than ahead, for whoever looks.
            self.decoded.fetch_add(1, Ordering::Relaxed);
            self.decoded_ahead.fetch_add(u64::from(ahead), Ordering::Release);
        }
        self.settle(group, read);
    }

    /// Decodes a packed row group, which has an entry that is `Coming`.
    pub(super) fn unpack(&self, group: usize, packed: Option<Arc<Packed>>) {
        let Some(packed) = packed else { return };
        let whole = match packed.error() {
            Some(error) => Err(error),
            // What is wrong is found out, and told, as ever.
            None => packed
                .group
                .unpack()
                .map_or_else(|| self.ask(group, || self.source.read(group)), Ok),
        };
        self.settle(group, whole.map(GroupRead::Whole));
    }

    /// Asks the source, and remembers whether it answers.
    pub(super) fn ask<T>(
        &self,
        group: usize,
        read: impl FnOnce() -> Result<T, Error>,
    ) -> Result<T, Error> {
        let read = catch_unwind(AssertUnwindSafe(read)).unwrap_or_else(|_| {
            let place = self.source.place(group);
            let why = ITSELF_FAILED.to_owned();
            Err(Error::RowGroup { file: place.file, group: place.group, row: None, why })
        });
        self.lock().heard(self.source_of(group), read.as_ref().err());
        read
    }

    /// Keeps what came of a row group, and tells those who wait for it.
    fn settle(&self, group: usize, read: Result<GroupRead, Error>) {
        let mut state = self.lock();
        if read.is_err() {
            state.failed.insert(group);
        }
        let mut refund = 0;
        if let Some(entry) = state.entries.get_mut(&group) {
            match read {
                Ok(GroupRead::Whole(whole)) => {
                    entry.content = Content::Here(Arc::new(whole));
                    if self.refund {
                        refund = entry.bytes.saturating_sub(entry.held());
                        entry.bytes -= refund;
                    }
                }
                Ok(GroupRead::Packed(packed)) => {
                    entry.content = Content::Packed(Packed::new(packed));
                }
                Err(error) if entry.pins > 0 => entry.content = Content::Failed(error),
                // Nobody waits for it, and whoever wants it will hear for himself.
                Err(_) => state.forget(group),
            }
        }
        state.used -= refund;
        drop(state);
        self.changed.notify_all();
    }
}
