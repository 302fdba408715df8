//! Which steps a reader will open next.

/// How far from the last step an open may be and still count as the same run: several workers
/// take turns, and none of them is exactly in order.
const NEAR: u64 = 16;

/// Most steps that are prepared ahead of the last one opened.
pub(crate) const MOST_AHEAD: usize = 8;

/// Watches the steps of one view, item and face.
#[derive(Debug, Default)]
pub(crate) struct Predictor {
    head: Option<u64>,
    stride: u64,
    streak: u32,
}

impl Predictor {
    /// Takes note of an open and returns the steps expected after it, nearest first.
    pub(crate) fn opened(&mut self, step: u64) -> Vec<u64> {
        let Some(head) = self.head else {
            self.head = Some(step);
            self.stride = 1;
            // One open is no run, but most readers that open one step open the next.
            return self.ahead(1);
        };
        if step > head {
            let delta = step - head;
            if delta == self.stride || (self.stride == 1 && delta <= NEAR) {
                self.streak = self.streak.saturating_add(1);
            } else {
                // A new stride is believed when it comes a second time.
                self.streak = 0;
                self.stride = delta;
            }
            self.head = Some(step);
        } else if head - step > NEAR {
            *self = Predictor { head: Some(step), stride: 1, streak: 0 };
        }
        match (self.streak, self.stride) {
            (0, 1) => self.ahead(1),
            (0, _) => Vec::new(),
            (n, _) => self.ahead((2 * n as usize).min(MOST_AHEAD)),
        }
    }

    /// Whether `step` may still be wanted by the run that was last seen.
    pub(crate) fn expects(&self, step: u64) -> bool {
        self.head.is_some_and(|head| {
            let far = self.stride.saturating_mul(MOST_AHEAD as u64).max(NEAR);
            step >= head.saturating_sub(NEAR) && step <= head.saturating_add(far)
        })
    }

    fn ahead(&self, count: usize) -> Vec<u64> {
        let Some(head) = self.head else { return Vec::new() };
        (1..=count as u64)
            .map_while(|i| self.stride.checked_mul(i).and_then(|d| head.checked_add(d)))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(steps: &[u64]) -> Vec<u64> {
        let mut p = Predictor::default();
        steps.iter().fold(Vec::new(), |_, s| p.opened(*s))
    }

    #[test]
    fn a_run_in_order_is_followed_ever_further() {
        assert_eq!(after(&[0]), [1]);
        assert_eq!(after(&[0, 1]), [2, 3]);
        assert_eq!(after(&[0, 1, 2]), [3, 4, 5, 6]);
        assert_eq!(after(&[0, 1, 2, 3, 4, 5]), [6, 7, 8, 9, 10, 11, 12, 13]);
    }

    #[test]
    fn workers_that_take_turns_are_one_run() {
        assert_eq!(after(&[0, 2, 1, 3, 5, 4])[0], 6);
    }

    #[test]
    fn a_stride_is_believed_the_second_time() {
        assert_eq!(after(&[0, 100]), Vec::<u64>::new());
        assert_eq!(after(&[0, 100, 200]), [300, 400]);
    }

    #[test]
    fn a_jump_starts_again_and_the_last_step_of_all_has_no_next() {
        assert_eq!(after(&[5, 6, 7, 1000]), Vec::<u64>::new());
        assert_eq!(after(&[1000, 1001, 3]), [4]);
        assert_eq!(after(&[u64::MAX]), Vec::<u64>::new());
        assert_eq!(after(&[u64::MAX - 2, u64::MAX - 1]), [u64::MAX]);
    }
}
