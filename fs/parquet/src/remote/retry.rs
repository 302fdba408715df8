//! Asking again for what broke off, in a way that many machines can do at a time.

use std::hash::{BuildHasher as _, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use batchfs_store::{Error, Result};
use object_store::Error as StoreError;

use super::Inner;
use super::said::{has_expired, is_settled};

/// How often something is asked for.
const ATTEMPTS: u32 = 4;
/// The first pause is as long as this, or up to twice as long. Each other one is twice that.
const PAUSE: Duration = Duration::from_millis(100);

/// What came of an attempt that failed.
pub(super) enum Try {
    Again(Error),
    /// The credentials of this number have expired.
    Expired(u64, Error),
    Final(Error),
}

impl Try {
    /// What to do about an error of the client that has this number.
    pub(super) fn of(error: &StoreError, client: u64, told: Error) -> Try {
        match error {
            _ if has_expired(error) => Try::Expired(client, told),
            _ if is_settled(error) => Try::Final(told),
            _ => Try::Again(told),
        }
    }
}

/// Pauses that differ from process to process: ranks that were cut off together would else come back
/// together.
#[derive(Default)]
pub(super) struct Jitter {
    random: RandomState,
    drawn: AtomicU64,
}

impl Jitter {
    /// The pause after so many others.
    pub(super) fn pause(&self, before: u32) -> Duration {
        let drawn = self.random.hash_one(self.drawn.fetch_add(1, Ordering::Relaxed));
        let share = (drawn >> 32) as f64 / f64::from(u32::MAX);
        PAUSE.mul_f64(1.0 + share) * (1 << before.min(ATTEMPTS))
    }
}

/// Attempts at one thing.
#[derive(Default)]
pub(super) struct Tries {
    failed: u32,
}

impl Tries {
    /// Waits until it is time for another attempt.
    ///
    /// # Errors
    /// If there is to be none.
    pub(super) async fn wait(&mut self, inner: &Inner, failed: Try) -> Result<()> {
        self.failed += 1;
        let last = self.failed >= ATTEMPTS;
        let error = match failed {
            Try::Final(error) => return Err(error),
            Try::Again(error) | Try::Expired(_, error) if last => return Err(error),
            Try::Again(error) => error,
            Try::Expired(client, error) => match inner.client.renew(client) {
                true => error,
                false => return Err(error),
            },
        };
        tracing::debug!("{error}; asking again");
        tokio::time::sleep(inner.jitter.pause(self.failed - 1)).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_within_their_bounds_and_differ_from_process_to_process() {
        let all: Vec<Vec<Duration>> = (0..8)
            .map(|_| Jitter::default())
            .map(|jitter| (0..300).map(|i| jitter.pause(i % (ATTEMPTS - 1))).collect())
            .collect();
        let bounds = [100..=200, 200..=400, 400..=800];
        for (number, &pause) in all.iter().flat_map(|one| one.iter().enumerate()) {
            let bound = &bounds[number % 3];
            let bound = Duration::from_millis(*bound.start())..=Duration::from_millis(*bound.end());
            assert!(bound.contains(&pause), "{number}: {pause:?}");
        }
        for (number, one) in all.iter().enumerate() {
            // They fill their bounds, too.
            let firsts = one.iter().step_by(3).copied();
            assert!(firsts.clone().min() < Some(PAUSE.mul_f64(1.3)));
            assert!(firsts.max() > Some(PAUSE.mul_f64(1.7)));
            for other in &all[..number] {
                let same = one.iter().zip(other).filter(|(a, b)| a == b).count();
                assert!(same < 10, "{same} of 300 pauses are the same");
            }
        }
    }
}
