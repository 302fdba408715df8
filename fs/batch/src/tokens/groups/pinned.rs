//! Row groups that stay in memory while somebody needs them.

use std::collections::HashMap;
use std::sync::Arc;

use batchfs_store::{Error, PackedGroup, TokenGroup};

use super::Inner;

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
    pub(super) groups: HashMap<usize, Held>,
    pub(super) inner: Arc<Inner>,
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
