use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes that several threads may have in memory together.
pub(crate) struct Allowance {
    most: u64,
    taken: Mutex<u64>,
    given_back: Condvar,
}

impl Allowance {
    pub(crate) fn new(most: u64) -> Allowance {
        Allowance { most, taken: Mutex::default(), given_back: Condvar::new() }
    }

    /// Waits until there is room for so many bytes. Those that are more than all go alone. Whoever has some
    /// does not take others.
    pub(crate) fn take(&self, bytes: u64) -> Taken<'_> {
        let no_room = |taken: &mut u64| *taken > 0 && taken.saturating_add(bytes) > self.most;
        let mut taken = self
            .given_back
            .wait_while(self.lock(), no_room)
            .unwrap_or_else(PoisonError::into_inner);
        *taken = taken.saturating_add(bytes);
        Taken { bytes, of: self }
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes that are given back when this is dropped.
pub(crate) struct Taken<'a> {
    bytes: u64,
    of: &'a Allowance,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.of.lock() -= self.bytes;
        self.of.given_back.notify_all();
    }
}
