//! How long something is waited for.

use std::time::Duration;

/// Bytes a second that a slow connection has at least; one with fewer counts as stuck.
const PACE: u64 = 32 << 10;

/// Waits for `work` as long as `patience`, and a second more for each [`PACE`] bytes of those that
/// `came` meanwhile. `None` if that was not enough.
pub(super) async fn within<T>(
    patience: Duration,
    came: impl Fn() -> u64,
    work: impl Future<Output = T>,
) -> Option<T> {
    let begin = tokio::time::Instant::now();
    let mut work = std::pin::pin!(work);
    loop {
        let end = begin + patience + Duration::from_millis(came().saturating_mul(1000) / PACE);
        if let Ok(done) = tokio::time::timeout_at(end, &mut work).await {
            return Some(done);
        }
        if end >= begin + patience + Duration::from_millis(came().saturating_mul(1000) / PACE) {
            return None;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn what_is_slow_is_waited_for_and_what_is_stuck_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        // Each time some bytes come, until all is there, which takes longer than anybody's patience.
        let trickle = |each: u64, times: u64| {
            let came = AtomicU64::new(0);
            let work = async {
                for _ in 0..times {
                    tokio::time::sleep(SHORT / 3).await;
                    came.fetch_add(each, Ordering::Relaxed);
                }
                came.load(Ordering::Relaxed)
            };
            runtime.block_on(async { within(SHORT, || came.load(Ordering::Relaxed), work).await })
        };
        assert_eq!(trickle(1000 * PACE, 20), Some(20_000 * PACE));
        assert_eq!(trickle(0, 1_000_000), None);
        assert_eq!(trickle(1, 1_000_000), None);
    }
}
