use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use batchfs_batch::Tokens;
use batchfs_sampler::lanes::Lanes;
use batchfs_store::TokenSource as _;
use bytesize::ByteSize;
use serde_json::json;

use super::tokens;
use crate::args::{AnySpec, Index, Plan};
use crate::say;

pub fn index(args: &Index) -> anyhow::Result<ExitCode> {
    let source = tokens::open(&args.source, &args.tokens)?;
    let sum = |of: fn(&batchfs_store::GroupCounts) -> u64| source.groups().iter().map(of).sum();
    let (total, documents): (u64, u64) = (sum(|g| g.tokens), sum(|g| g.documents));
    let spec = args.spec.as_ref().map(AnySpec::tokens).transpose()?;
    let lanes = spec
        .map(|spec| Lanes::new(spec, source.groups().iter().map(|g| g.tokens).collect()))
        .transpose()
        .map_err(|e| super::about(&args.source, e))?;
    let mut out = std::io::BufWriter::new(say::out());
    if args.json {
        let files: Vec<_> = source
            .files()
            .map(|(file, groups, tokens, documents)| {
                json!({"file": file, "row_groups": groups, "tokens": tokens, "documents": documents})
            })
            .collect();
        let mut all = json!({
            "format": "batchfs-index",
            "version": 1,
            "source": source.origin(),
            "column": args.tokens.column,
            "dtype": source.dtype(),
            "fingerprint": format!("{:032x}", source.fingerprint()),
            "files": files,
            "row_groups": source.groups().len(),
            "tokens": total,
            "documents": documents,
        });
        if let Some(lanes) = &lanes {
            all["spec"] = lanes.spec().to_string().into();
            all["windows_per_epoch"] = lanes.windows_per_epoch().into();
            all["first_steps_of_epochs"] = (0..4).map(|e| lanes.first_step(e)).collect();
        }
        writeln!(out, "{all:#}")?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    for (file, groups, tokens, documents) in source.files() {
        writeln!(out, "{file}: {groups} row groups, {tokens} tokens, {documents} documents")?;
    }
    writeln!(
        out,
        "{}: {} row groups, {total} tokens, {documents} documents, {:.1} tokens each",
        source.origin(),
        source.groups().len(),
        total as f64 / documents.max(1) as f64
    )?;
    if let Some(lanes) = &lanes {
        let steps: Vec<String> =
            (0..4).filter_map(|e| lanes.first_step(e)).map(|s| s.to_string()).collect();
        writeln!(
            out,
            "{}: {} windows an epoch; epochs begin at the steps {}, ...",
            lanes.spec(),
            lanes.windows_per_epoch(),
            steps.join(", ")
        )?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// What a step would read. Nothing but the index is read for it.
pub fn plan(args: &Plan) -> anyhow::Result<ExitCode> {
    let spec = args.spec.as_ref().map_or(Ok(Default::default()), AnySpec::tokens)?;
    let source = Arc::new(tokens::open(&args.source, &args.tokens)?);
    let budget = args.tokens.budget.map(|size| size.as_u64());
    let tokens =
        Tokens::new(source.clone(), spec, budget, 1).map_err(|e| super::about(&args.source, e))?;
    let rows = batchfs_batch::TokenRows::new(tokens.clone(), spec)?;
    let parts = rows.parts(args.step);
    let place = |part: &batchfs_batch::StepPart| source.place(part.group);
    let bytes: u64 = parts.iter().map(place).map(|p| p.bytes.end - p.bytes.start).sum();
    // Of an epoch: what all ranks read together, over what there is.
    let lanes = rows.lanes();
    let epoch = lanes.epoch(lanes.epoch_of(args.step));
    let (mut once, mut read) = (0u64, 0u64);
    for rank in 0..spec.world {
        let rank = batchfs_sampler::lanes::LaneSpec { rank, ..spec };
        let epoch = Lanes::new(rank, lanes.group_tokens().into())?.epoch(epoch.number());
        for window in (0..).map_while(|index| epoch.window(index)) {
            let groups = epoch.groups(&window);
            let size = |place: usize| {
                let bytes = source.place(groups[place] as usize).bytes;
                bytes.end - bytes.start
            };
            read += epoch.needed(&window).map(size).sum::<u64>();
            once += if rank.rank == 0 { (0..groups.len()).map(size).sum() } else { 0 };
        }
    }
    let amplification = read as f64 / once.max(1) as f64;
    let mut out = std::io::BufWriter::new(say::out());
    if args.json {
        let parts: Vec<_> = parts
            .iter()
            .map(|part| {
                let at = place(part);
                json!({
                    "epoch": part.epoch, "window": part.window, "file": at.file,
                    "row_group": at.group, "begin": at.bytes.start, "end": at.bytes.end,
                })
            })
            .collect();
        let all = json!({
            "format": "batchfs-plan",
            "version": 1,
            "spec": spec.to_string(),
            "step": args.step,
            "epoch": lanes.epoch_of(args.step),
            "reads": parts,
            "bytes": bytes,
            "budget": tokens.figures().budget,
            "read_amplification": amplification,
        });
        writeln!(out, "{all:#}")?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(out, "{spec}: step {} is in epoch {}", args.step, lanes.epoch_of(args.step))?;
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
        parts.len(),
        ByteSize(bytes)
    )?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}
