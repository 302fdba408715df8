//! The order of row groups in an epoch, its windows, and the lanes' stretches of them.

use std::ops::Range;
use std::sync::Arc;

use rand_chacha::rand_core::Rng;

use super::{LaneSpec, Lanes};
use crate::draw::chacha;
use crate::permutation::Permutation;

const WINDOW_KEY: &str = "order-1 windows";

/// The order of the row groups in one epoch.
#[derive(Debug, Clone)]
pub struct Epoch {
    number: u64,
    spec: LaneSpec,
    /// Row groups by place.
    order: Vec<u32>,
    /// Tokens of the epoch up to the end of each window.
    ends: Vec<u64>,
    /// Tokens of all epochs before.
    before: u128,
    /// Tokens of each row group.
    tokens: Arc<[u64]>,
}

/// Some row groups that follow each other in an epoch, and whose documents are shuffled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The epoch.
    pub epoch: u64,
    /// Its number in the epoch.
    pub index: u64,
    /// Tokens of the endless run of epochs before it.
    pub before: u128,
    /// Its tokens.
    pub tokens: u64,
    pub(super) lanes: u64,
}

/// The part of a window that a lane gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// Where it begins in the window's row groups, put one behind the other, in tokens.
    pub begin: u64,
    /// Its tokens.
    pub len: u64,
    /// Tokens that the lane has had before.
    pub had: u128,
}

impl Epoch {
    pub(super) fn new(lanes: &Lanes, number: u64) -> Self {
        let count = lanes.tokens.len() as u64;
        let mut order = vec![0; lanes.tokens.len()];
        Permutation::new(count).ids(lanes.spec.seed, number, 0, &mut order);
        let order: Vec<u32> = order.into_iter().map(|group| group as u32).collect();
        let window = usize::try_from(lanes.spec.window).unwrap_or(usize::MAX);
        let mut end = 0;
        let ends = order
            .chunks(window)
            .map(|groups| {
                end += groups.iter().map(|&group| lanes.tokens[group as usize]).sum::<u64>();
                end
            })
            .collect();
        let before = u128::from(number) * u128::from(lanes.total);
        Self { number, spec: lanes.spec, order, ends, before, tokens: lanes.tokens.clone() }
    }

    /// Its number, from 0.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The window with this number.
    pub fn window(&self, index: u64) -> Option<Window> {
        let at = usize::try_from(index).ok()?;
        let end = *self.ends.get(at)?;
        let begin = if at == 0 { 0 } else { self.ends[at - 1] };
        Some(Window {
            epoch: self.number,
            index,
            before: self.before + u128::from(begin),
            tokens: end - begin,
            lanes: self.spec.lanes,
        })
    }

    /// The row groups of a window of this epoch, in order.
    pub fn groups(&self, window: &Window) -> &[u32] {
        let size = usize::try_from(self.spec.window).unwrap_or(usize::MAX);
        self.order.chunks(size).nth(window.index as usize).unwrap_or(&[])
    }

    /// The places in a window of this epoch whose row groups this rank has tokens of.
    pub fn needed(&self, window: &Window) -> Range<usize> {
        self.needed_by(self.spec.rank, window)
    }

    /// As [`needed`](Self::needed), for any rank: the order of an epoch is the same for all.
    pub fn needed_by(&self, rank: u64, window: &Window) -> Range<usize> {
        let own = LaneSpec { rank, ..self.spec }.own_lanes();
        let begin = window.stretch(own.start).begin;
        let last = window.stretch(own.end - 1);
        let end = last.begin + last.len;
        let mut places: Option<Range<usize>> = None;
        let mut at = 0;
        for (place, &group) in self.groups(window).iter().enumerate() {
            let next = at + self.tokens[group as usize];
            if at < end && begin < next && at < next {
                places = Some(places.map_or(place, |found| found.start)..place + 1);
            }
            at = next;
        }
        places.unwrap_or(0..0)
    }

    /// The windows that have tokens in `begin..end` of the endless run.
    pub(super) fn meeting(&self, begin: u128, end: u128) -> impl Iterator<Item = Window> + use<'_> {
        let first = self.ends.partition_point(|&e| self.before + u128::from(e) <= begin);
        (first as u64..)
            .map_while(|index| self.window(index))
            .take_while(move |window| window.before < end)
            .filter(|window| window.tokens > 0)
    }
}

impl Window {
    /// The stretch of a lane. Lane b has had floor((C + b) / lanes) tokens when C tokens of the run
    /// are dealt.
    pub fn stretch(&self, lane: u64) -> Stretch {
        let dealt = |tokens: u128| (tokens + u128::from(lane)) / u128::from(self.lanes);
        let (had, has) = (dealt(self.before), dealt(self.before + u128::from(self.tokens)));
        let begin = self.dealt_below(lane, self.before + u128::from(self.tokens))
            - self.dealt_below(lane, self.before);
        Stretch { begin: begin as u64, len: (has - had) as u64, had }
    }

    /// The tokens of all lanes below `lane` together, when `tokens` are dealt.
    fn dealt_below(&self, lane: u64, tokens: u128) -> u128 {
        let (each, rest) = (tokens / u128::from(self.lanes), tokens % u128::from(self.lanes));
        // The last `rest` lanes have one more.
        let more = (u128::from(lane) + rest).saturating_sub(u128::from(self.lanes));
        u128::from(lane) * each + more
    }

    /// The seed of the orders of pieces in this window.
    pub(super) fn seed(&self, seed: u64) -> u64 {
        chacha(seed, WINDOW_KEY, self.epoch, u128::from(self.index) * 2).next_u64()
    }
}
