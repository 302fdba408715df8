//! Nanoseconds for the ids of a batch of 256: `cargo run --release -p batchfs-sampler --example speed`.
//!
//! Medians and minima over runs of steps in order. `sequential` shows what the call itself takes.

use batchfs_sampler::{Sampler, Spec, SpecError};
use std::hint::black_box;
use std::time::Instant;

const RUNS: usize = 15;
const STEPS: u64 = 4000;

fn main() -> Result<(), SpecError> {
    println!("{:<12}{:>14}{:>10}{:>10}", "mode", "records", "median", "least");
    for mode in ["sequential", "iid", "cyclic"] {
        for len in [300, 1024, 1025, 2500, 200_000, 1 << 30, 1 << 33, 1 << 62, u64::MAX] {
            let spec: Spec = format!("mode={mode},batch=256,seed=42").parse()?;
            let sampler = Sampler::new(spec, len)?;
            let mut ids = [0; 256];
            let mut step = 0;
            let mut run = || {
                let start = Instant::now();
                for _ in 0..STEPS {
                    sampler.ids(step, black_box(&mut ids));
                    step += 1;
                }
                start.elapsed().as_nanos() / u128::from(STEPS)
            };
            run();
            let mut times: Vec<u128> = (0..RUNS).map(|_| run()).collect();
            times.sort_unstable();
            println!("{mode:<12}{len:>14}{:>10}{:>10}", times[RUNS / 2], times[0]);
        }
    }
    Ok(())
}
