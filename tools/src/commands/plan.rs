use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::ExitCode;

use batchfs_batch::{StepPart, TokenRows, Tokens};
use batchfs_sampler::lanes::LaneSpec;
use bytesize::ByteSize;
use serde_json::json;

use super::tokens;
use crate::args::{AnySpec, Plan};
use crate::say;

/// What a step would read. Nothing but the index is read for it.
pub fn run(args: &Plan) -> anyhow::Result<ExitCode> {
    let spec = args.spec.as_ref().map_or(Ok(LaneSpec::default()), AnySpec::tokens)?;
    let mix = args.tokens.sources.mix()?;
    let opened = tokens::open_all(&args.source, &args.tokens.sources, mix.as_ref())?;
    let budget = args.tokens.budget.map(|size| size.as_u64());
    let wrong = |e| super::about(&args.source, e);
    let tokens = tokens::tokens(&opened, mix.as_ref(), spec, budget, 1).map_err(wrong)?;
    let rows = TokenRows::new(tokens.clone(), spec).map_err(wrong)?;
    let parts = rows.parts(args.step);
    let source = tokens.source();
    let place = |part: &StepPart| source.place(part.group);
    // One that is in the last window of an epoch and in the first of the next is read once.
    let groups: BTreeSet<usize> = parts.iter().map(|part| part.group).collect();
    let size = |group: &usize| source.place(*group).bytes;
    let bytes: u64 = groups.iter().map(size).map(|bytes| bytes.end - bytes.start).sum();
    let epoch = rows.lanes().epoch_of(args.step);
    let amplification = match mix {
        None => amplification(&tokens, &rows, epoch),
        // Each rank has rows of all lanes of a source sooner or later.
        Some(_) => spec.world as f64,
    };
    let mut out = std::io::BufWriter::new(say::out());
    if args.json {
        let parts: Vec<_> = parts
            .iter()
            .map(|part| {
                let at = place(part);
                let source = tokens.source_of(part.group);
                // The file's name begins with that of the source, if there are several.
                let file = source.and_then(|name| at.file.strip_prefix(name)?.strip_prefix('/'));
                json!({
                    "source": source, "epoch": part.epoch, "window": part.window,
                    "file": file.unwrap_or(&at.file),
                    "row_group": at.group, "begin": at.bytes.start, "end": at.bytes.end,
                })
            })
            .collect();
        let all = json!({
            "format": "batchfs-plan",
            "version": 1,
            "spec": spec.to_string(),
            "mix": mix.map(|mix| mix.to_string()),
            "step": args.step,
            "epoch": epoch,
            "reads": parts,
            "bytes": bytes,
            "budget": tokens.figures().budget,
            "read_amplification": amplification,
        });
        writeln!(out, "{all:#}")?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{spec}: step {} is in epoch {epoch}", args.step)?;
    for part in &parts {
        let at = place(part);
        writeln!(
            out,
            "  epoch {} window {}: {} row group {}, bytes {} to {}",
            part.epoch, part.window, at.file, at.group, at.bytes.start, at.bytes.end
        )?;
    }
    writeln!(
        out,
        "{} row groups, {} if none is in memory; all ranks together read {amplification:.4} times the data in an epoch",
        groups.len(),
        ByteSize(bytes)
    )?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Of an epoch: what all ranks read together, over what there is.
fn amplification(tokens: &Tokens, rows: &TokenRows, epoch: u64) -> f64 {
    let epoch = rows.lanes().epoch(epoch);
    let (mut once, mut read) = (0u64, 0u64);
    for window in (0..).map_while(|index| epoch.window(index)) {
        let groups = epoch.groups(&window);
        let size = |place: usize| {
            let bytes = tokens.source().place(groups[place] as usize).bytes;
            bytes.end - bytes.start
        };
        once += (0..groups.len()).map(size).sum::<u64>();
        for rank in 0..rows.lanes().spec().world {
            read += epoch.needed_by(rank, &window).map(size).sum::<u64>();
        }
    }
    read as f64 / once.max(1) as f64
}
