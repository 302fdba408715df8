/// Where a record lies: its shard, and its row there.
///
/// Records go to shards in stripes: `shard = (id / stripe) % shards` and
/// `row = id / stripe / shards * stripe + id % stripe`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) records: u64,
    pub(crate) shards: u32,
    /// log2 of the records per stripe.
    pub(crate) stripe_log2: u32,
}

impl Geometry {
    #[inline]
    pub(crate) fn locate(&self, id: u64) -> (u32, u64) {
        let s = u64::from(self.shards);
        let block = id >> self.stripe_log2;
        let within = id & ((1 << self.stripe_log2) - 1);
        ((block % s) as u32, ((block / s) << self.stripe_log2) + within)
    }

    /// The record at a place; the reverse of [`locate`](Self::locate).
    pub(crate) fn id(&self, shard: u32, row: u64) -> u64 {
        let block = (row >> self.stripe_log2) * u64::from(self.shards) + u64::from(shard);
        (block << self.stripe_log2) + (row & ((1 << self.stripe_log2) - 1))
    }

    /// Rows of a shard.
    pub(crate) fn rows(&self, shard: u32) -> u64 {
        let stripe = 1u64 << self.stripe_log2;
        let round = stripe * u64::from(self.shards);
        let rest = self.records % round;
        let mine = rest.saturating_sub(stripe * u64::from(shard)).min(stripe);
        self.records / round * stripe + mine
    }

    /// The runs of `count` records from `first` on, for each shard in the order of its rows.
    pub(crate) fn runs(&self, first: u64, count: usize) -> Vec<Vec<Run>> {
        let mut runs: Vec<Vec<Run>> = (0..self.shards).map(|_| Vec::new()).collect();
        let stripe = 1u64 << self.stripe_log2;
        let mut at = 0;
        while at < count {
            let id = first + at as u64;
            let room = stripe - id % stripe;
            let n = (count - at).min(usize::try_from(room).unwrap_or(usize::MAX));
            runs[self.locate(id).0 as usize].push(Run { first: at, count: n });
            at += n;
        }
        runs
    }
}

/// Records that are appended at once and lie side by side in memory and on disk.
pub(crate) struct Run {
    pub(crate) first: usize,
    pub(crate) count: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_has_a_place_of_its_own_and_shards_are_dense() {
        for (records, shards, stripe_log2) in
            [(0, 4, 0), (1, 255, 3), (100, 1, 2), (1000, 7, 3), (64, 4, 4), (65, 4, 4), (17, 4, 5)]
        {
            let g = Geometry { records, shards, stripe_log2 };
            let mut rows = vec![0; shards as usize];
            for id in 0..records {
                let (shard, row) = g.locate(id);
                assert_eq!(row, rows[shard as usize], "{g:?} {id}");
                rows[shard as usize] += 1;
                assert_eq!(g.id(shard, row), id);
            }
            assert_eq!(rows, (0..shards).map(|s| g.rows(s)).collect::<Vec<_>>(), "{g:?}");
        }
    }
}
