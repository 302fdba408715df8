use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use batchfs_sampler::Sampler;
use batchfs_store::Verify;

use super::{about, dataset};
use crate::args::Ids;
use crate::say;

pub fn run(args: &Ids) -> anyhow::Result<ExitCode> {
    let data = dataset(&args.source, Verify::First, &args.types)?;
    let sampler = Sampler::new(args.spec, data.len()).map_err(|e| about(&args.source, e))?;
    let mut ids = Vec::new();
    let count = usize::try_from(sampler.local_batch())?;
    ids.try_reserve_exact(count).with_context(|| format!("a batch of {count} records"))?;
    ids.resize(count, 0);
    sampler.ids(args.step, &mut ids);
    let mut out = std::io::BufWriter::new(say::out());
    for id in ids {
        writeln!(out, "{id}")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
