use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($name:ident $help:literal;)*) => {
        /// What an engine has done since it started.
        #[derive(Debug, Default)]
        pub struct Metrics { $(#[doc = $help] pub $name: AtomicU64,)* }

        impl Metrics {
            /// Name, explanation and value of each counter, in a fixed order.
            pub fn all(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((stringify!($name), $help, self.$name.load(Ordering::Relaxed))),*]
            }
        }
    };
}

counters! {
    opens "Batches, records and indices asked for";
    hits "Opens that found the region ready";
    joined "Opens that found it being filled";
    misses "Opens that had to have it filled";
    prefetches "Regions filled ahead of an open";
    prefetches_unused "Regions filled ahead and dropped unopened";
    gathered_bytes "Bytes copied into regions";
    waits "Fills that had to wait for room";
    failures "Opens that ended in an error";
}

impl Metrics {
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}
