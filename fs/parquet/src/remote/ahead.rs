//! Ranges that are fetched before they are read.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use batchfs_store::Result;
use bytes::Bytes;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::place::File;

/// Bytes that are fetched ahead of those who decode them.
pub(super) const AHEAD: u64 = 128 << 20;
/// Who said what will be read may be about to read what was said before, so what is begun goes on for a
/// while: it would be fetched twice.
const GRACE: Duration = Duration::from_millis(100);

/// Ranges that are on their way, or here.
#[derive(Clone)]
pub(super) struct Ahead {
    ranges: Arc<Mutex<Vec<Coming>>>,
    grace: Duration,
}

impl Default for Ahead {
    fn default() -> Self {
        Ahead { ranges: Arc::default(), grace: GRACE }
    }
}

struct Coming {
    key: String,
    range: Range<u64>,
    begun: Arc<AtomicBool>,
    /// Since when nobody has said that it will be read.
    unwanted: Option<Instant>,
    task: Task,
}

/// Ends when it is dropped.
struct Task(Option<JoinHandle<Result<Bytes>>>);

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

impl Ahead {
    /// The range if it was announced.
    pub(super) fn take(
        &self,
        file: &File,
        range: &Range<u64>,
    ) -> Option<JoinHandle<Result<Bytes>>> {
        let mut ranges = self.lock();
        let at = ranges.iter().position(|a| a.is(file, range))?;
        ranges.remove(at).task.0.take()
    }

    /// Has `fetch` begin with these, in this order and as far as there is room, and end with all others.
    /// It is told where to note that a range has its turn.
    pub(super) fn replace<F>(
        &self,
        wanted: Vec<(File, Range<u64>)>,
        runtime: &Handle,
        mut fetch: impl FnMut(File, Range<u64>, Arc<AtomicBool>) -> F,
    ) where
        F: Future<Output = Result<Bytes>> + Send + 'static,
    {
        let mut ranges = self.lock();
        let is_wanted = |a: &Coming| wanted.iter().any(|(file, range)| a.is(file, range));
        let mut swept = false;
        ranges.retain_mut(|a| {
            if is_wanted(a) {
                a.unwanted = None;
                return true;
            }
            swept |= a.unwanted.is_none();
            a.unwanted.get_or_insert_with(Instant::now);
            a.begun.load(Ordering::Relaxed)
        });
        let bytes = |range: &Range<u64>| range.end - range.start;
        let there = ranges.iter().filter(|a| a.unwanted.is_none());
        let mut used: u64 = there.map(|a| bytes(&a.range)).sum();
        for (file, range) in wanted {
            if ranges.iter().any(|a| a.is(&file, &range)) {
                continue;
            }
            used += bytes(&range);
            if used > AHEAD {
                break;
            }
            let (key, begun) = (file.key.clone(), Arc::new(AtomicBool::new(false)));
            let task = runtime.spawn(fetch(file, range.clone(), begun.clone()));
            let task = Task(Some(task));
            ranges.push(Coming { key, range, begun, unwanted: None, task });
        }
        drop(ranges);
        if swept {
            let all = self.clone();
            runtime.spawn(async move {
                tokio::time::sleep(all.grace).await;
                let kept = |a: &Coming| a.unwanted.is_none_or(|since| since.elapsed() < all.grace);
                all.lock().retain(kept);
            });
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Coming>> {
        self.ranges.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Coming {
    fn is(&self, file: &File, range: &Range<u64>) -> bool {
        self.key == file.key && self.range == *range
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::Semaphore;

    use super::*;

    fn file(key: &str) -> File {
        File { key: key.to_owned(), size: 100, version: String::new(), modified: 0 }
    }

    /// Fetches two at a time, and only when it is let to.
    struct Fetching {
        runtime: tokio::runtime::Runtime,
        ahead: Ahead,
        slots: Arc<Semaphore>,
        gate: Arc<Semaphore>,
        asked: Arc<Mutex<Vec<String>>>,
        ended: Arc<Mutex<Vec<String>>>,
    }

    struct Ends(String, Arc<Mutex<Vec<String>>>);

    impl Drop for Ends {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(self.0.clone());
        }
    }

    impl Fetching {
        fn new(grace: Duration) -> Fetching {
            let mut runtime = tokio::runtime::Builder::new_multi_thread();
            Fetching {
                runtime: runtime.worker_threads(1).enable_time().build().unwrap(),
                ahead: Ahead { grace, ..Ahead::default() },
                slots: Arc::new(Semaphore::new(2)),
                gate: Arc::new(Semaphore::new(0)),
                asked: Arc::default(),
                ended: Arc::default(),
            }
        }

        fn announce(&self, keys: &[&str]) {
            let wanted = keys.iter().map(|key| (file(key), 0..10)).collect();
            self.ahead.replace(wanted, self.runtime.handle(), |file, range, begun| {
                let (slots, gate) = (self.slots.clone(), self.gate.clone());
                let (asked, ended) = (self.asked.clone(), self.ended.clone());
                async move {
                    let _end = Ends(file.key.clone(), ended);
                    let _slot = slots.acquire().await;
                    begun.store(true, Ordering::Relaxed);
                    asked.lock().unwrap().push(file.key.clone());
                    let _gate = gate.acquire().await;
                    Ok(vec![file.key.as_bytes()[0]; range.end as usize].into())
                }
            });
        }

        fn asked_for(&self, count: usize) -> Vec<String> {
            while self.asked.lock().unwrap().len() < count {
                std::thread::yield_now();
            }
            self.asked.lock().unwrap().clone()
        }

        fn take(&self, key: &str) -> Option<Bytes> {
            let task = self.ahead.take(&file(key), &(0..10))?;
            Some(self.runtime.block_on(task).unwrap().unwrap())
        }
    }

    #[test]
    fn what_is_announced_replaces_what_was() {
        let fetching = Fetching::new(Duration::from_millis(1));
        fetching.announce(&["a", "b", "c", "d"]);
        assert_eq!(fetching.asked_for(2), ["a", "b"]);
        // One that is begun may be taken yet; one that waits has cost nothing.
        fetching.announce(&["e", "b", "f"]);
        assert!(fetching.ahead.take(&file("c"), &(0..10)).is_none());
        assert!(fetching.ahead.take(&file("e"), &(0..9)).is_none());
        // Nobody comes for `a`, whose place `e` gets, while `b` goes on.
        assert_eq!(fetching.asked_for(3), ["a", "b", "e"]);
        assert!(fetching.take("a").is_none());
        fetching.gate.add_permits(10);
        assert_eq!(fetching.take("b").unwrap(), [b'b'; 10][..]);
        assert_eq!(fetching.take("e").unwrap(), [b'e'; 10][..]);
        assert_eq!(fetching.take("f").unwrap(), [b'f'; 10][..]);
        assert!(fetching.take("f").is_none());
        let mut ended = fetching.ended.lock().unwrap().clone();
        ended.sort();
        assert_eq!(ended, ["a", "b", "c", "d", "e", "f"]);
    }

    #[test]
    fn what_is_taken_in_time_is_not_fetched_twice() {
        let fetching = Fetching::new(Duration::from_secs(3600));
        fetching.announce(&["a"]);
        fetching.asked_for(1);
        fetching.announce(&[]);
        let task = fetching.ahead.take(&file("a"), &(0..10)).unwrap();
        fetching.gate.add_permits(1);
        assert_eq!(fetching.runtime.block_on(task).unwrap().unwrap(), [b'a'; 10][..]);
        assert_eq!(fetching.asked_for(1), ["a"]);
    }

    #[test]
    fn no_more_than_some_bytes_are_ahead() {
        let fetching = Fetching::new(GRACE);
        let of = |key: &str| (file(key), 0..AHEAD / 2);
        let wanted = vec![of("a"), of("b"), of("c")];
        let never = |_, _, _| std::future::pending();
        fetching.ahead.replace(wanted, fetching.runtime.handle(), never);
        let here = |key: &str| fetching.ahead.take(&file(key), &(0..AHEAD / 2)).is_some();
        assert!(here("a") && here("b") && !here("c"));
    }
}
