use std::io::Write as _;
use std::process::ExitCode;

use batchfs_parquet::{FileCounts, ParquetTokens};
use batchfs_sampler::lanes::Lanes;
use batchfs_store::TokenSource as _;
use serde_json::{Value, json};

use super::tokens;
use crate::args::{AnySpec, Index};
use crate::say;

/// Row groups, tokens and documents.
fn counts(source: &ParquetTokens) -> (u64, u64, u64) {
    let sum = |of: fn(&batchfs_store::GroupCounts) -> u64| source.groups().iter().map(of).sum();
    (source.groups().len() as u64, sum(|g| g.tokens), sum(|g| g.documents))
}

pub fn run(args: &Index) -> anyhow::Result<ExitCode> {
    let mix = args.tokens.mix()?;
    let opened = tokens::open_all(&args.source, &args.tokens, mix.as_ref())?;
    let spec = args.spec.as_ref().map(AnySpec::tokens).transpose()?;
    let groups = opened.iter().flat_map(|(_, source)| source.groups().iter().map(|g| g.tokens));
    let lanes = spec
        .map(|spec| Lanes::new(spec, groups.collect()))
        .transpose()
        .map_err(|e| super::about(&args.source, e))?;
    let mut out = std::io::BufWriter::new(say::out());
    if args.json {
        let mut all = match (&mix, opened.first()) {
            (None, Some((_, source))) => describe(source, &args.tokens.column),
            _ => json!({}),
        };
        if let Some(mix) = &mix {
            let sources = opened.iter().map(|(name, source)| {
                let mut one = describe(source, &args.tokens.column);
                one["name"] = name.as_deref().into();
                one
            });
            all["sources"] = sources.collect();
            all["mix"] = mix.to_string().into();
        }
        all["format"] = "batchfs-index".into();
        all["version"] = 1.into();
        if let Some(lanes) = &lanes {
            all["spec"] = lanes.spec().to_string().into();
            if mix.is_none() {
                all["windows_per_epoch"] = lanes.windows_per_epoch().into();
            }
            all["first_steps_of_epochs"] = (0..4).map(|e| lanes.first_step(e)).collect();
        }
        writeln!(out, "{all:#}")?;
        out.flush()?;
        return Ok(ExitCode::SUCCESS);
    }
    for (name, source) in &opened {
        let shown = name.as_ref().map_or(String::new(), |name| format!("{name}: "));
        for FileCounts { name, row_groups, tokens, documents } in source.files() {
            writeln!(
                out,
                "{shown}{name}: {row_groups} row groups, {tokens} tokens, {documents} documents"
            )?;
        }
        let (groups, tokens, documents) = counts(source);
        writeln!(
            out,
            "{shown}{}: {groups} row groups, {tokens} tokens, {documents} documents, {:.1} tokens each",
            source.origin(),
            tokens as f64 / documents.max(1) as f64
        )?;
    }
    if let Some(mix) = &mix {
        let (block, shares) = mix.shares();
        let shares: Vec<String> =
            mix.names().zip(shares).map(|(name, share)| format!("{share} of {name}")).collect();
        writeln!(out, "of each {block} rows in order: {}", shares.join(", "))?;
    }
    if let Some(lanes) = &lanes {
        let steps: Vec<String> =
            (0..4).filter_map(|e| lanes.first_step(e)).map(|s| s.to_string()).collect();
        let windows = match mix {
            None => format!("{} windows an epoch; ", lanes.windows_per_epoch()),
            Some(_) => String::new(),
        };
        let (spec, steps) = (lanes.spec(), steps.join(", "));
        writeln!(out, "{spec}: {windows}epochs begin at the steps {steps}, ...")?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn describe(source: &ParquetTokens, column: &str) -> Value {
    let files: Vec<_> = source
        .files()
        .map(|FileCounts { name, row_groups, tokens, documents }| {
            json!({"file": name, "row_groups": row_groups, "tokens": tokens, "documents": documents})
        })
        .collect();
    let (groups, tokens, documents) = counts(source);
    json!({
        "source": source.origin(),
        "column": column,
        "dtype": source.dtype(),
        "fingerprint": format!("{:032x}", source.fingerprint()),
        "files": files,
        "row_groups": groups,
        "tokens": tokens,
        "documents": documents,
    })
}
