//! Reads epochs of rows as fast as it can: `rows SOURCE SPEC BUDGET EPOCHS`.

use std::sync::Arc;
use std::time::Instant;

use batchfs_batch::{LaneSpec, TokenRows, Tokens};
use batchfs_parquet::{Options, ParquetTokens};

/// The sum of some fields of /proc/self/stat, counted behind the name.
fn stat(which: &[usize]) -> f64 {
    let text = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = text.rsplit(')').next().unwrap_or("").split_whitespace().collect();
    which.iter().filter_map(|&i| fields.get(i)?.parse::<f64>().ok()).sum()
}

fn cpu() -> f64 {
    stat(&[11, 12]) / 100.0
}

fn faults() -> f64 {
    stat(&[7])
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let start = Instant::now();
    let source = Arc::new(ParquetTokens::open(&args[0], &Options::default())?);
    println!("open {:.3} s", start.elapsed().as_secs_f64());
    let spec: LaneSpec = args[1].parse()?;
    let budget = args[2].parse().ok().filter(|&bytes: &u64| bytes > 0);
    let tokens = Tokens::new(source, spec, budget, 0)?;
    let rows = TokenRows::new(tokens.clone(), spec)?;
    let size = (spec.rows() * spec.seq_len) as usize;
    let mut out = vec![0; 4 * size];
    rows.fill(0, &mut out)?;
    println!("first batch {:.3} s", start.elapsed().as_secs_f64());
    let at = Instant::now();
    rows.fill(10_000_000, &mut out)?;
    println!("user {} sys {}", stat(&[11]) / 100.0, stat(&[12]) / 100.0);
    println!("a far one {:.3} s", at.elapsed().as_secs_f64());
    for epoch in 0..args[3].parse()? {
        let (at, used, faulted) = (Instant::now(), cpu(), faults());
        let (from, until) = (rows.lanes().first_step(epoch), rows.lanes().first_step(epoch + 1));
        let (from, until) = (from.unwrap_or(0), until.unwrap_or(0));
        for step in from..until {
            rows.fill(step, &mut out)?;
        }
        let count = (until - from) as f64 * size as f64;
        let seconds = at.elapsed().as_secs_f64();
        println!(
            "epoch {epoch}: {:.0} M tokens/s, {:.2} ns of cpu a token, {:.0} faults a M, {:?}",
            count / seconds / 1e6,
            (cpu() - used) / count * 1e9,
            (faults() - faulted) / count * 1e6,
            tokens.figures()
        );
    }
    Ok(())
}
