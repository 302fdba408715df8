use std::fs::File;
use std::io::{self, Read as _, Write};
use std::path::Path;
use std::time::Instant;

use batchfs_sampler::Sampler;

/// Batches that are read for a figure.
const STEPS: u64 = 2000;

/// Reads many steps in order and prints how fast that was.
pub fn speed(out: &mut impl Write, mount: &Path, sampler: &Sampler) -> anyhow::Result<()> {
    let mut bytes = Vec::new();
    let mut sum = 0u64;
    let mut first = Vec::with_capacity(STEPS as usize);
    let since = Instant::now();
    // From the second cycle on: nothing here was opened before.
    let start = sampler.steps_per_cycle();
    for step in start..start + STEPS {
        let opened = Instant::now();
        let mut file = File::open(mount.join(format!("images/batch/{step}")))?;
        first.push(opened.elapsed());
        bytes.clear();
        file.read_to_end(&mut bytes)?;
        sum += bytes.iter().map(|b| u64::from(*b)).sum::<u64>();
    }
    let all = since.elapsed();
    first.sort_unstable();
    let micros = first[first.len() / 2].as_secs_f64() * 1e6;
    let per_second = STEPS as f64 / all.as_secs_f64();
    writeln!(
        out,
        "   {STEPS} different steps opened, read and summed (to {sum}): {per_second:.0} batches/s"
    )?;
    writeln!(out, "   {micros:.0} us to open a batch that nobody opened before (median)")?;
    report(out, mount)?;
    Ok(())
}

/// What the mount itself says of it.
fn report(out: &mut impl Write, mount: &Path) -> io::Result<()> {
    let metrics = std::fs::read_to_string(mount.join(".batchfs/metrics"))?;
    let value = |name: &str| {
        let line = metrics.lines().find_map(|l| l.strip_prefix(&format!("batchfs_{name} ")));
        line.unwrap_or("?").to_owned()
    };
    writeln!(
        out,
        "   of {} opens in all, {} found the batch filled ahead and ready",
        value("opens_total"),
        value("hits_total")
    )
}
