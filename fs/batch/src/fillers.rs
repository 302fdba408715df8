//! The threads that fill regions, and more of them while all wait for a source of tokens.
//!
//! A source that does not answer must not hold up steps that need nothing of it: those of a mixture that
//! have only rows of others, or that are in memory.

use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Key;

/// A fill that takes so long waits for its source.
const LONG: Duration = Duration::from_millis(500);

/// Spare threads at a time. Each open that waits for a source has one, up to this many.
const SPARES: usize = 128;

#[derive(Default)]
pub(crate) struct Fillers {
    /// Threads, spare ones included.
    threads: usize,
    spares: usize,
    /// Fills of tokens that are under way, and since when.
    filling: Vec<(Key, Instant)>,
    handles: Vec<JoinHandle<()>>,
}

impl Fillers {
    pub(crate) fn new(threads: usize) -> Fillers {
        Fillers { threads, ..Fillers::default() }
    }

    /// Spare threads.
    pub(crate) fn spares(&self) -> usize {
        self.spares
    }

    /// A fill of tokens begins.
    pub(crate) fn begin(&mut self, key: Key, now: Instant) {
        self.filling.push((key, now));
    }

    /// It is over.
    pub(crate) fn end(&mut self, key: Key) {
        if let Some(at) = self.filling.iter().position(|(other, _)| *other == key) {
            self.filling.swap_remove(at);
        }
    }

    /// How many more threads there should be while so many opens wait for one.
    pub(crate) fn missing(&self, waiting: usize, now: Instant) -> usize {
        let long = |(_, since): &&(Key, Instant)| now.duration_since(*since) >= LONG;
        let stuck = self.filling.iter().filter(long).count() >= self.threads;
        if stuck { waiting.min(SPARES - self.spares) } else { 0 }
    }

    /// One was started.
    pub(crate) fn started(&mut self, handle: JoinHandle<()>) {
        self.threads += 1;
        self.spares += 1;
        self.handles.retain(|handle| !handle.is_finished());
        self.handles.push(handle);
    }

    /// A spare one ends.
    pub(crate) fn ended(&mut self) {
        self.threads -= 1;
        self.spares -= 1;
    }

    /// Those to wait for at the end.
    pub(crate) fn take(&mut self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut self.handles)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Face, Item};

    #[test]
    fn there_are_more_threads_while_all_wait_and_somebody_else_does_too() {
        let key = |number| Key { view: 0, item: Item::Index, number, face: Face::Bare };
        let start = Instant::now();
        let later = start + 2 * LONG;
        let mut fillers = Fillers::new(2);
        fillers.begin(key(1), start);
        assert_eq!(fillers.missing(3, later), 0, "one has nothing to do");
        fillers.begin(key(2), later);
        assert_eq!(fillers.missing(3, later), 0, "one has only begun");
        fillers.end(key(2));
        fillers.begin(key(3), start);
        assert_eq!(fillers.missing(0, later), 0, "nobody waits");
        assert_eq!(fillers.missing(3, later), 3);
        assert_eq!(fillers.missing(10_000, later), SPARES);
        fillers.started(std::thread::spawn(|| ()));
        assert_eq!(fillers.missing(3, later), 0, "there is one more");
        fillers.begin(key(4), start);
        assert_eq!(fillers.missing(10_000, later), SPARES - 1);
        fillers.end(key(4));
        fillers.ended();
        fillers.end(key(1));
        assert_eq!(fillers.missing(3, later), 0);
        fillers.take().into_iter().for_each(|handle| handle.join().unwrap());
    }
}
