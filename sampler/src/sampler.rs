//! From a step to the ids of its batch.

use crate::error::SpecError;
use crate::iid::Iid;
use crate::permutation::Permutation;
use crate::spec::{Mode, Remainder, Spec};

/// The order of a number of records under a spec. It has no state: any step at any time, from any thread.
#[derive(Debug, Clone)]
pub struct Sampler {
    spec: Spec,
    len: u64,
    order: Order,
}

#[derive(Debug, Clone)]
enum Order {
    Sequential,
    Iid(Iid),
    Drop(Permutation),
    Carry(Permutation),
}

impl Sampler {
    /// The order of `len` records, `1..=u64::MAX`.
    ///
    /// # Errors
    /// What [`Spec::validate`] refuses; no records; outside iid a batch larger than `len`, which would repeat
    /// records within a batch.
    pub fn new(mut spec: Spec, len: u64) -> Result<Self, SpecError> {
        spec.validate()?;
        if len == 0 {
            return Err(SpecError::EmptyData);
        }
        if spec.batch > len && spec.mode != Mode::Iid {
            return Err(SpecError::BatchLargerThanData { batch: spec.batch, len, mode: spec.mode });
        }
        let order = match (spec.mode, spec.remainder) {
            (Mode::Sequential, _) => Order::Sequential,
            (Mode::Iid, _) => Order::Iid(Iid::new(len)),
            (Mode::Cyclic, Remainder::Drop) => Order::Drop(Permutation::new(len)),
            (Mode::Cyclic, Remainder::Carry) => Order::Carry(Permutation::new(len)),
        };
        if spec.mode == Mode::Sequential {
            spec.seed = 0;
        }
        Ok(Self { spec, len, order })
    }

    /// The spec; of a sequential one the seed is 0.
    pub fn spec(&self) -> &Spec {
        &self.spec
    }

    /// The number of records.
    pub fn records(&self) -> u64 {
        self.len
    }

    /// The ids in this rank's part of a batch: `batch / world`, at least 1.
    pub fn local_batch(&self) -> u64 {
        self.spec.batch / self.spec.world
    }

    /// The steps of one cycle, at least 1. With cyclic and drop exactly `len / batch` rounded down. With sequential
    /// and carry `len / batch` rounded up: that many steps, from 0, have every record; the last of them may go on into
    /// the next cycle. Iid has no cycles; it counts as cyclic does.
    pub fn steps_per_cycle(&self) -> u64 {
        match self.order {
            Order::Drop(_) | Order::Iid(_) => (self.len / self.spec.batch).max(1),
            Order::Sequential | Order::Carry(_) => self.len.div_ceil(self.spec.batch),
        }
    }

    /// The cycle, from 0, that the first record of the step's global batch belongs to. For iid the step divided by
    /// [`steps_per_cycle`](Self::steps_per_cycle).
    pub fn cycle_of(&self, step: u64) -> u64 {
        match self.order {
            Order::Drop(_) | Order::Iid(_) => step / self.steps_per_cycle(),
            // No more than the step, since batch <= len.
            Order::Sequential | Order::Carry(_) => {
                (self.position(step, 0) / u128::from(self.len)) as u64
            }
        }
    }

    /// Writes the ids, `0..len`, of this rank's part of the batch of `step`: the contiguous part number `rank` of the
    /// `world` equal parts of the global batch.
    ///
    /// # Panics
    /// If `out` does not have [`local_batch`](Self::local_batch) places.
    pub fn ids(&self, step: u64, out: &mut [u64]) {
        assert_eq!(out.len() as u64, self.local_batch(), "out must have local_batch() places");
        let seed = self.spec.seed;
        let first = self.spec.rank * self.local_batch();
        let len = u128::from(self.len);
        match &self.order {
            Order::Iid(iid) => iid.ids(seed, step, first, out),
            Order::Drop(permutation) => {
                let steps = self.steps_per_cycle();
                permutation.ids(seed, step / steps, step % steps * self.spec.batch + first, out);
            }
            Order::Carry(permutation) => {
                let position = self.position(step, first);
                let (cycle, from) = ((position / len) as u64, (position % len) as u64);
                // At most two cycles, since batch <= len.
                let here = (self.len - from).min(out.len() as u64) as usize;
                let (here, next) = out.split_at_mut(here);
                permutation.ids(seed, cycle, from, here);
                if !next.is_empty() {
                    permutation.ids(seed, cycle + 1, 0, next);
                }
            }
            Order::Sequential => {
                let from = (self.position(step, first) % len) as u64;
                let here = (self.len - from).min(out.len() as u64) as usize;
                let (here, next) = out.split_at_mut(here);
                here.iter_mut().zip(from..).for_each(|(id, at)| *id = at);
                next.iter_mut().zip(0..).for_each(|(id, at)| *id = at);
            }
        }
    }

    /// The place of a record of the step's global batch in the endless sequence of cycles.
    fn position(&self, step: u64, place: u64) -> u128 {
        u128::from(step) * u128::from(self.spec.batch) + u128::from(place)
    }
}
