//! Which steps readers will open next.
//!
//! The opens of one view, item and face are sorted into a few runs: readers that go up or down in
//! order, or at a stride, several of them side by side, each perhaps by workers that take turns. A
//! run is followed when it has shown that it is one; and since random opens now and then look like
//! the start of a run, what is filled in vain is paid from a small credit.

/// How far from the head of a run in order an open may be and still belong to it: workers that take
/// turns are not exactly in order.
const NEAR: i128 = 16;

/// The same for a stride, in strides.
const NEAR_STRIDES: i128 = 4;

/// Most steps that are prepared ahead of the head of a run.
pub(crate) const MOST_AHEAD: u32 = 8;

/// Runs that are followed side by side; a new one takes the place of the one that was longest quiet.
const RUNS: usize = 4;

/// Opens in which a stride is looked for.
const REMEMBERED: usize = 8;

/// Fills that may turn out to be in vain before only proven runs are believed.
const CREDIT: u32 = 8;

/// Steps in order that make a run proven.
const PROVEN: u32 = 4;

/// One reader, or several that share the work.
#[derive(Clone, Debug)]
struct Run {
    /// The furthest step opened.
    head: u64,
    /// From one step to the next; negative downwards, never 0.
    stride: i64,
    /// Which of the places behind the head were opened: bit `i` is `i` strides behind.
    seen: u32,
    /// Places from the first open to the head, as far as `seen` goes.
    span: u32,
    /// Steps after the head that were already predicted.
    predicted: u32,
    /// Of the last open.
    time: u64,
}

/// Watches the steps of one view, item and face.
#[derive(Debug)]
pub(crate) struct Predictor {
    runs: Vec<Run>,
    /// The last opens, the latest last.
    recent: Vec<u64>,
    credit: u32,
    time: u64,
}

impl Default for Predictor {
    fn default() -> Self {
        Predictor { runs: Vec::new(), recent: Vec::new(), credit: CREDIT, time: 0 }
    }
}

impl Run {
    fn new(head: u64, stride: i64, opened: u32) -> Run {
        Run { head, stride, seen: (1 << opened) - 1, span: opened, predicted: 0, time: 0 }
    }

    /// How many strides `step` is ahead of the head, if it can belong to this run.
    fn place(&self, step: u64) -> Option<i128> {
        let (distance, stride) =
            (i128::from(step) - i128::from(self.head), i128::from(self.stride));
        let near = if stride.abs() == 1 { NEAR } else { NEAR_STRIDES };
        let place = distance / stride;
        (distance % stride == 0 && place.abs() <= near).then_some(place)
    }

    /// Whether most of the places so far were opened: random opens leave gaps.
    fn is_dense(&self) -> bool {
        2 * self.seen.count_ones() > self.span
    }

    fn is_proven(&self) -> bool {
        self.seen.count_ones() >= PROVEN && self.is_dense()
    }

    /// Takes in an open at `place`; true if it was predicted.
    fn take(&mut self, step: u64, place: i128) -> bool {
        if place > 0 {
            let place = place as u32;
            self.seen = self.seen << place | 1;
            self.span = (self.span + place).min(u32::BITS);
            self.head = step;
            let hit = place <= self.predicted;
            self.predicted = self.predicted.saturating_sub(place);
            return hit;
        }
        let behind = place.unsigned_abs() as u32;
        if behind >= self.span && self.seen.count_ones() < PROVEN {
            // Beyond the start of what is hardly a run yet: it goes the other way.
            let turned = self.seen.reverse_bits() >> (u32::BITS - self.span);
            let by = behind - (self.span - 1);
            let stride = self.stride.saturating_neg();
            let span = (self.span + by).min(u32::BITS);
            *self = Run { head: step, stride, seen: turned << by | 1, span, predicted: 0, ..*self };
        } else {
            self.seen |= 1 << behind;
            self.span = self.span.max(behind + 1);
        }
        false
    }

    /// The step `places` strides after the head.
    fn after(&self, places: u32) -> Option<u64> {
        self.stride.checked_mul(places.into()).and_then(|d| self.head.checked_add_signed(d))
    }
}

impl Predictor {
    /// Takes note of an open and returns the steps expected after it, nearest first.
    pub(crate) fn opened(&mut self, step: u64) -> Vec<u64> {
        self.time += 1;
        let first = self.runs.is_empty();
        // The run that it fits best: as the next one, else as near as can be.
        let fits = |run: &Run| run.place(step).map(|p| (p != 1, p.unsigned_abs()));
        let best = (0..self.runs.len())
            .filter_map(|i| fits(&self.runs[i]).map(|fit| (fit, i)))
            .min()
            .map(|(_, i)| i);
        let best = best.filter(|i| {
            let run = &self.runs[*i];
            // A stride seen twice says more than being near to what is no run.
            run.place(step).is_some_and(|p| p == 0 || p == 1)
                || run.is_proven()
                || self.stride_to(step).is_none_or(|s| s.abs() == 1)
        });
        let at = match best {
            Some(at) => at,
            None => self.begin(step),
        };
        if self.recent.len() == REMEMBERED {
            self.recent.remove(0);
        }
        self.recent.push(step);
        let run = &mut self.runs[at];
        run.time = self.time;
        let place = run.place(step).unwrap_or(0);
        if best.is_some() {
            if place == 0 {
                // Opened again by somebody else: it says nothing new.
                return Vec::new();
            }
            if run.take(step, place) {
                self.credit = (self.credit + 1).min(CREDIT);
            }
        }
        let opened = run.seen.count_ones();
        let ahead = match opened {
            // One open is no run, but most readers that open one step open the next.
            1 => u32::from(first),
            n if run.is_dense() => (2 * (n - 1)).min(MOST_AHEAD),
            _ => 0,
        };
        let proven = run.is_proven();
        let ahead = if proven { ahead } else { ahead.min(run.predicted + self.credit) };
        let new = ahead.saturating_sub(run.predicted);
        if !proven {
            self.credit -= new.min(self.credit);
        }
        run.predicted = run.predicted.max(ahead);
        (1..=ahead).map_while(|i| run.after(i)).collect()
    }

    /// Whether `step` may still be wanted by one of the runs that had one of the last `lately` opens.
    pub(crate) fn expects(&self, step: u64, lately: u64) -> bool {
        self.runs.iter().filter(|run| self.time - run.time <= lately).any(|run| {
            let (distance, stride) =
                (i128::from(step) - i128::from(run.head), i128::from(run.stride));
            let behind = if stride.abs() == 1 { NEAR } else { NEAR_STRIDES };
            let place = distance / stride;
            distance % stride == 0 && place >= -behind && place <= i128::from(MOST_AHEAD)
        })
    }

    /// A new run for an open that fits none; returns its place.
    fn begin(&mut self, step: u64) -> usize {
        let stride = self.stride_to(step);
        let run = match stride {
            Some(stride) => Run::new(step, stride, 3),
            None => Run::new(step, 1, 1),
        };
        if self.runs.len() < RUNS {
            self.runs.push(run);
            return self.runs.len() - 1;
        }
        // One that is only a beginning goes before one that went somewhere, unless that is long ago.
        let age = |run: &Run| self.time - run.time;
        let worth = |run: &Run| (run.is_proven() && age(run) < 64, std::cmp::Reverse(age(run)));
        let at = (0..RUNS).min_by_key(|i| worth(&self.runs[*i])).unwrap_or(0);
        self.runs[at] = run;
        at
    }

    /// A stride that came twice among the last opens, and now leads to `step`.
    fn stride_to(&self, step: u64) -> Option<i64> {
        let recent = &self.recent;
        (0..recent.len()).rev().find_map(|i| {
            let stride = i128::from(step) - i128::from(recent[i]);
            let before = u64::try_from(i128::from(recent[i]) - stride).ok()?;
            let stride = i64::try_from(stride).ok().filter(|s| *s != 0)?;
            recent[..i].contains(&before).then_some(stride)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn after(steps: &[u64]) -> Vec<u64> {
        let mut p = Predictor::default();
        steps.iter().fold(Vec::new(), |_, s| p.opened(*s))
    }

    /// Which opens had been predicted, and how many predictions there were.
    fn play(steps: &[u64]) -> (Vec<bool>, usize) {
        let mut p = Predictor::default();
        let mut made = HashSet::new();
        let mut hits = Vec::new();
        for step in steps {
            hits.push(made.contains(step));
            made.extend(p.opened(*step));
        }
        (hits, made.len())
    }

    fn hits(steps: &[u64]) -> usize {
        play(steps).0.iter().filter(|h| **h).count()
    }

    #[test]
    fn a_run_in_order_is_followed_ever_further() {
        assert_eq!(after(&[0]), [1]);
        assert_eq!(after(&[0, 1]), [2, 3]);
        assert_eq!(after(&[0, 1, 2]), [3, 4, 5, 6]);
        assert_eq!(after(&[0, 1, 2, 3, 4, 5]), [6, 7, 8, 9, 10, 11, 12, 13]);
        assert_eq!(hits(&(0..100).collect::<Vec<_>>()), 99);
    }

    #[test]
    fn a_run_downwards_too() {
        assert_eq!(after(&[90, 89]), [88, 87]);
        assert_eq!(hits(&(0..100).rev().collect::<Vec<_>>()), 98);
        assert_eq!(after(&[2, 1, 0]), Vec::<u64>::new());
    }

    #[test]
    fn workers_that_take_turns_are_one_run() {
        assert_eq!(after(&[0, 2, 1, 3, 5, 4])[0], 6);
        // The first two came the wrong way round.
        assert_eq!(after(&[5, 4, 6, 7, 8])[0], 9);
        for workers in [2, 3, 8, 16] {
            let steps: Vec<u64> = (0..320u64 / workers)
                .flat_map(|turn| (0..workers).rev().map(move |w| turn * workers + w))
                .collect();
            let found = hits(&steps);
            assert!(found * 10 >= steps.len() * 3, "{workers} workers: {found}");
        }
    }

    #[test]
    fn a_stride_is_believed_the_second_time() {
        assert_eq!(after(&[0, 100]), Vec::<u64>::new());
        assert_eq!(after(&[0, 100, 200]), [300, 400, 500, 600]);
        assert_eq!(after(&[900, 600, 300]), [0]);
    }

    #[test]
    fn a_jump_starts_again_and_the_last_step_of_all_has_no_next() {
        assert_eq!(after(&[5, 6, 7, 1000]), Vec::<u64>::new());
        assert_eq!(after(&[5, 6, 7, 1000, 1001]), [1002, 1003]);
        assert_eq!(after(&[u64::MAX]), Vec::<u64>::new());
        assert_eq!(after(&[u64::MAX - 2, u64::MAX - 1]), [u64::MAX]);
        assert_eq!(after(&[0, u64::MAX, 0, u64::MAX]), Vec::<u64>::new());
    }

    #[test]
    fn strides_are_followed_by_readers_that_take_turns() {
        let mut readers = [(1u64 << 41, 7i64), (1 << 42, -1000), (1 << 43, 1)];
        let mut steps = Vec::new();
        for turn in 0..300 {
            let (at, stride) = &mut readers[turn % 3];
            steps.push(*at);
            *at = at.checked_add_signed(*stride).unwrap();
        }
        let found = hits(&steps);
        assert!(found >= 280, "{found} of 300");
    }

    proptest! {
        #[test]
        fn readers_side_by_side_are_each_followed(
            starts in proptest::collection::vec((0u64..1 << 40, 0usize..2), 1..=4),
            turns in proptest::collection::vec(0usize..4, 400),
        ) {
            // Far from one another, or they are one run.
            let mut readers: Vec<(u64, i64)> = starts
                .iter()
                .enumerate()
                .map(|(i, (s, kind))| ((s + ((i as u64 + 1) << 41)), [1, -1][*kind]))
                .collect();
            let mut counts = vec![0; readers.len()];
            let mut steps = Vec::new();
            for turn in turns {
                let who = turn % readers.len();
                let (at, stride) = readers[who];
                steps.push(at);
                readers[who].0 = at.checked_add_signed(stride).unwrap();
                counts[who] += 1;
            }
            let found = hits(&steps);
            // Each has to begin, once.
            prop_assert!(found + 6 * readers.len() >= steps.len(), "{} of {}", found, steps.len());
        }

        #[test]
        fn random_opens_are_followed_little(
            steps in proptest::collection::vec(0u64..2000, 1000),
        ) {
            let (_, made) = play(&steps);
            prop_assert!(made <= 60, "{} fills ahead for 1000 random opens", made);
        }

        #[test]
        fn nothing_that_was_just_opened_is_predicted(
            steps in proptest::collection::vec(prop_oneof![0u64..50, any::<u64>()], 1..200),
        ) {
            let mut p = Predictor::default();
            for step in steps {
                let next = p.opened(step);
                prop_assert!(next.len() <= MOST_AHEAD as usize);
                prop_assert!(!next.contains(&step));
                prop_assert!(next.iter().all(|s| p.expects(*s, 1)), "{:?}", next);
            }
        }
    }
}
