//! Record ids of steps.

use std::hint::black_box;
use std::path::Path;
use std::time::Instant;

use batchfs_sampler::Sampler;

/// Mean nanoseconds per batch, of each run over the steps `0..steps`.
pub fn time(spec: &str, records: u64, runs: usize, steps: u64) -> anyhow::Result<Vec<f64>> {
    let sampler = Sampler::new(spec.parse()?, records)?;
    let mut ids = vec![0; sampler.local_batch() as usize];
    let mut run = || {
        let start = Instant::now();
        for step in 0..steps {
            sampler.ids(step, black_box(&mut ids));
        }
        start.elapsed().as_nanos() as f64 / steps as f64
    };
    Ok((0..runs).map(|_| run()).collect())
}

/// Writes the ids of some steps to a file, as u64.
pub fn plan(spec: &str, records: u64, from: u64, count: u64, path: &Path) -> anyhow::Result<()> {
    let sampler = Sampler::new(spec.parse()?, records)?;
    let mut ids = vec![0; sampler.local_batch() as usize];
    let mut bytes = Vec::new();
    for step in from..from + count {
        sampler.ids(step, &mut ids);
        bytes.extend(ids.iter().flat_map(|id: &u64| id.to_le_bytes()));
    }
    Ok(std::fs::write(path, bytes)?)
}
