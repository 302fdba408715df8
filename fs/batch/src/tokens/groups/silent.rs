//! Sources that do not answer.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use batchfs_store::Error;

use super::state::{Content, State};

/// How long a source that did not answer in time is let alone. Those who waited for their turn meanwhile
/// would each wait for it anew, one after the other.
const PAUSE: Duration = Duration::from_secs(10);

impl State {
    /// What a source answered: nothing went wrong, or this.
    pub(super) fn heard(&mut self, source: usize, error: Option<&Error>) {
        match error {
            None => drop(self.silent.remove(&source)),
            Some(error) if is_late(error) => {
                self.silent.insert(source, (Instant::now(), error.again()));
            }
            Some(_) => {}
        }
    }

    /// Whether what is not in memory of `wanted` is of sources that answer, as far as that is known.
    pub(super) fn answers(
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
            !matches!(content, Some(Content::Here(_) | Content::Packed(_) | Content::Used(_)))
        });
        let mut silent = missing.filter_map(|&group| self.silent.get(&source_of(group)));
        silent.next().map_or(Ok(()), |(_, error)| Err(error.again()))
    }
}

fn is_late(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::TimedOut)
}
