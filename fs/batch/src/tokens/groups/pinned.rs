//! Row groups that stay in memory while somebody needs them.

use std::sync::{Arc, OnceLock};

use batchfs_store::{Error, PackedGroup, TokenGroup};

use super::Inner;

/// A row group that is packed in memory.
pub(super) struct Packed {
    pub(super) group: Arc<dyn PackedGroup>,
    /// What it is as a whole, once a piece of it could not be decoded. It is read for that once, however
    /// many pieces there are.
    whole: OnceLock<Result<TokenGroup, Error>>,
}

impl Packed {
    pub(super) fn new(group: Arc<dyn PackedGroup>) -> Arc<Packed> {
        Arc::new(Packed { group, whole: OnceLock::new() })
    }

    /// Why it cannot be decoded, if that is known.
    pub(super) fn error(&self) -> Option<Error> {
        self.whole.get()?.as_ref().err().map(Error::again)
    }
}

/// A row group in memory.
#[derive(Clone)]
pub(super) enum Held {
    Whole(Arc<TokenGroup>),
    Packed(Arc<Packed>),
}

impl Held {
    /// Tokens of each document.
    pub(crate) fn lengths(&self) -> &[u32] {
        match self {
            Held::Whole(group) => &group.lengths,
            Held::Packed(packed) => packed.group.lengths(),
        }
    }
}

/// Row groups that stay in memory while this lives.
pub(crate) struct Pinned {
    /// By their numbers, in order: pieces of them are looked up by the thousand.
    pub(super) groups: Vec<(usize, Held)>,
    pub(super) inner: Arc<Inner>,
}

impl Pinned {
    fn get(&self, group: usize) -> Option<&Held> {
        let at = self.groups.binary_search_by_key(&group, |(group, _)| *group).ok()?;
        Some(&self.groups[at].1)
    }

    /// The bytes that all row groups in memory may take.
    pub(crate) fn budget(&self) -> u64 {
        self.inner.budget
    }

    /// Tokens of each document of a row group that was asked for.
    pub(crate) fn lengths(&self, group: usize) -> Option<&[u32]> {
        self.get(group).map(Held::lengths)
    }

    /// Whether some are packed.
    pub(crate) fn packed(&self) -> bool {
        self.groups.iter().any(|(_, held)| matches!(held, Held::Packed(_)))
    }

    /// Nothing more is needed of those that are packed: they are decoded for the next one.
    pub(crate) fn done(&self) {
        if self.packed() {
            self.inner.lock().used(self.groups.iter().map(|(group, _)| group));
            self.inner.work.notify_all();
        }
    }

    /// Says that so many tokens of a row group that was asked for are copied next.
    pub(crate) fn prefetch(&self, group: usize, from: usize, count: usize) {
        if let Some(Held::Whole(group)) = self.get(group) {
            group.tokens.prefetch(from, count);
        }
    }

    /// Writes tokens of a row group that was asked for to `out`, as little-endian bytes, from number
    /// `from` on; says whether it has so many.
    ///
    /// # Errors
    /// What is damaged, which shows in a packed row group only now.
    pub(crate) fn copy(&self, group: usize, from: usize, out: &mut [u8]) -> Result<bool, Error> {
        let inner = &self.inner;
        match self.get(group) {
            Some(Held::Whole(group)) => Ok(group.tokens.copy(from, out)),
            Some(Held::Packed(packed)) => {
                if packed.whole.get().is_none() && packed.group.copy(from, out) {
                    return Ok(true);
                }
                match packed.whole.get_or_init(|| inner.ask(group, || inner.source.read(group))) {
                    Ok(group) => Ok(group.tokens.copy(from, out)),
                    Err(error) => {
                        inner.lock().failed.insert(group);
                        Err(error.again())
                    }
                }
            }
            None => Ok(false),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.done();
        self.inner.unpin(self.groups.iter().map(|(group, _)| *group));
    }
}
