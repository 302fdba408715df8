//! Rows of tokens straight from Parquet, in this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use batchfs_batch::{LaneSpec, TokenRows, Tokens};
use batchfs_parquet::{Options, ParquetTokens};
use nix::sys::resource::{UsageWho, getrusage};
use serde_json::{Value, json};

/// Nanoseconds of processor time that this process has used.
fn cpu() -> anyhow::Result<i64> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let ns = |time: nix::sys::time::TimeVal| time.tv_sec() * 1_000_000_000 + time.tv_usec() * 1000;
    Ok(ns(usage.user_time()) + ns(usage.system_time()))
}

/// Opens the tokens in `column` of `source`, fills the step `start`, and then all steps of the epochs from that step's on,
/// `passes` of them. Every batch is summed, as u64 words.
///
/// # Errors
/// What cannot be opened or read.
pub fn run(
    source: &Path,
    column: String,
    spec: &str,
    budget: Option<u64>,
    start: u64,
    passes: u64,
) -> anyhow::Result<Value> {
    let begin = Instant::now();
    let source = source.to_str().ok_or_else(|| anyhow::anyhow!("not UTF-8"))?;
    let source = Arc::new(ParquetTokens::open(source, &Options { column, ..Options::default() })?);
    let spec: LaneSpec = spec.parse()?;
    let tokens = Tokens::new(source, spec, budget, 0)?;
    let rows = TokenRows::new(tokens.clone(), spec)?;
    let count = (spec.rows() * spec.seq_len) as usize;
    let mut out = vec![0; 4 * count];
    rows.fill(start, &mut out)?;
    let first = begin.elapsed().as_nanos() as u64;
    let decoded = tokens.figures().decoded - tokens.figures().ahead;
    let epoch = rows.lanes().epoch_of(start);
    let mut all = Vec::new();
    let mut sum = 0u64;
    for epoch in epoch..epoch + passes {
        let step = |epoch| {
            let step = rows.lanes().first_step(epoch);
            step.ok_or_else(|| anyhow::anyhow!("there is no epoch {epoch}"))
        };
        let steps = step(epoch)?..step(epoch + 1)?;
        let (at, used) = (Instant::now(), cpu()?);
        for number in steps.clone() {
            rows.fill(number, &mut out)?;
            let words = out.chunks_exact(8).map(|b| {
                let mut word = [0; 8];
                word.copy_from_slice(b);
                u64::from_le_bytes(word)
            });
            sum = words.fold(sum, u64::wrapping_add);
        }
        all.push(json!({
            "ns": at.elapsed().as_nanos() as u64,
            "cpu": cpu()? - used,
            "tokens": (steps.end - steps.start) * count as u64,
        }));
    }
    let peak = getrusage(UsageWho::RUSAGE_SELF)?.max_rss() * 1024;
    Ok(json!({ "first": first, "decoded": decoded, "passes": all, "peak": peak, "sum": sum }))
}
