use std::io::Write as _;
use std::process::ExitCode;

use anyhow::Context as _;
use batchfs_batch::{TokenRows, View};
use batchfs_sampler::Sampler;
use batchfs_store::Verify;

use super::{about, view};
use crate::args::{Ids, Order};
use crate::say;

pub fn run(args: &Ids) -> anyhow::Result<ExitCode> {
    let Order { spec, types, tokens } = &args.order;
    let view = view(&args.source, spec.as_ref(), types, tokens, Verify::First, 0)?;
    match (view.sampler(), view.rows()) {
        (Some(sampler), _) => records(sampler, args.step)?,
        (None, Some(rows)) => pieces(&view, rows, args.step)?,
        (None, None) => {}
    }
    Ok(ExitCode::SUCCESS)
}

fn records(sampler: &Sampler, step: u64) -> anyhow::Result<()> {
    let mut ids = Vec::new();
    let count = usize::try_from(sampler.local_batch())?;
    ids.try_reserve_exact(count).with_context(|| format!("a batch of {count} records"))?;
    ids.resize(count, 0);
    sampler.ids(step, &mut ids);
    let mut out = std::io::BufWriter::new(say::out());
    for id in ids {
        writeln!(out, "{id}")?;
    }
    out.flush()?;
    Ok(())
}

fn pieces(view: &View, rows: &TokenRows, step: u64) -> anyhow::Result<()> {
    let from = rows.provenance(step).map_err(|e| about(view.dataset().origin(), e))?;
    let sources = rows.mixed(step);
    let names: Vec<&str> = rows.tokens().mix().map_or(Vec::new(), |mix| mix.names().collect());
    let seq_len = rows.lanes().spec().seq_len;
    let mut out = std::io::BufWriter::new(say::out());
    for (i, ends) in from.cu_seqlens.windows(2).enumerate() {
        let row = ends[0] as u64 / seq_len;
        if let Some(sources) = &sources {
            write!(out, "{} ", names[sources[row as usize].source])?;
        }
        let (document, offset) = (from.document_ids[i], from.document_offsets[i]);
        writeln!(out, "{row} {document} {offset} {}", ends[1] - ends[0])?;
    }
    out.flush()?;
    Ok(())
}
