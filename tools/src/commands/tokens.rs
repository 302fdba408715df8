//! Token sources on the command line.

use std::fs::ReadDir;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, bail};
use batchfs_batch::{Dataset, Tokens};
use batchfs_parquet::{Options, ParquetTokens, is_parquet};
use batchfs_sampler::lanes::{LaneSpec, Mix};
use batchfs_store::TokenSource;

use crate::args::{AnySpec, TokenArgs, TokenSources};

/// Whether `source` is one of tokens.
///
/// # Errors
/// If it has record stores beside them.
pub fn is_tokens(source: &Path) -> anyhow::Result<bool> {
    let Some(text) = source.to_str() else {
        let parquet =
            |path: &Path| path.extension().is_some_and(|e| e.eq_ignore_ascii_case("parquet"));
        let inside = |mut dir: ReadDir| dir.any(|e| e.is_ok_and(|e| parquet(&e.path())));
        if parquet(source) || source.read_dir().is_ok_and(inside) {
            return Err(not_text(source));
        }
        return Ok(false);
    };
    if !is_parquet(text) {
        return Ok(false);
    }
    if source.is_dir() {
        for entry in std::fs::read_dir(source)? {
            let path = entry?.path();
            let npy = path.extension().is_some_and(|e| e.eq_ignore_ascii_case("npy"));
            if npy || path.join("batchfs.json").exists() {
                bail!(
                    "{}: holds Parquet files, and {} beside them; tokens are mounted alone, so move either to a folder of its own",
                    source.display(),
                    path.display()
                );
            }
        }
    }
    Ok(true)
}

/// Names of files are text in the index of a token source, and so are the paths to them.
fn not_text(source: &Path) -> anyhow::Error {
    super::about(
        source,
        "the path of a token source has to be UTF-8; rename it, or name it by a link",
    )
}

/// Opens the Parquet files at `source`.
fn open(source: &Path, args: &TokenSources) -> anyhow::Result<ParquetTokens> {
    let source = source.to_str().ok_or_else(|| not_text(source))?;
    let options = Options {
        column: args.column.clone(),
        storage: args.storage_option.iter().cloned().collect(),
        ..Options::default()
    };
    Ok(ParquetTokens::open(source, &options)?)
}

/// What a command reads: one source without a name, or those of a mixture.
pub type Opened = Vec<(Option<String>, Arc<ParquetTokens>)>;

/// Opens the Parquet files at `source`, or at each place that it names if there is a mixture.
pub fn open_all(source: &Path, args: &TokenSources, mix: Option<&Mix>) -> anyhow::Result<Opened> {
    let Some(mix) = mix else { return Ok(vec![(None, Arc::new(open(source, args)?))]) };
    let open = |(name, place): (String, PathBuf)| {
        let opened = open(&place, args).with_context(|| format!("source {name}"))?;
        Ok((Some(name), Arc::new(opened)))
    };
    places(source, mix)?.into_iter().map(open).collect()
}

/// Takes `NAME=PLACE,NAME=PLACE` apart. A comma separates only where one of the names and `=` follow
/// it, since paths have commas, too.
fn places(source: &Path, mix: &Mix) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let text = source.to_str().ok_or_else(|| not_text(source))?;
    let wanted: Vec<String> = mix.names().map(|name| format!("{name}=PLACE")).collect();
    let wanted = wanted.join(",");
    let starts = |rest: &str| {
        mix.names().find(|name| rest.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')))
    };
    let mut found: Vec<(String, String)> = Vec::new();
    for part in text.split(',') {
        match (starts(part), found.last_mut()) {
            (Some(name), _) => {
                let place = part[name.len() + 1..].to_owned();
                if place.is_empty() {
                    bail!("{text}: says no place for {name}; with this --mix it is {wanted}");
                }
                if found.iter().any(|(known, _)| known == name) {
                    bail!("{text}: names {name} twice; with this --mix it is {wanted}");
                }
                found.push((name.to_owned(), place));
            }
            (None, Some((_, place))) => {
                place.push(',');
                place.push_str(part);
            }
            (None, None) => bail!("{text}: with this --mix the source is {wanted}"),
        }
    }
    if let Some(name) = mix.names().find(|name| found.iter().all(|(known, _)| known != name)) {
        bail!("{text}: does not say where {name} is; with this --mix it is {wanted}");
    }
    // In the order of the mix, whatever order they were named in.
    found.sort();
    found
        .into_iter()
        .map(|(name, place)| {
            // The daemon changes its folder.
            let address = place.contains("://");
            let place = if address { place.into() } else { std::path::absolute(place)? };
            Ok((name, place))
        })
        .collect()
}

/// The row groups of what was opened, with the memory for them.
pub fn tokens(
    opened: &Opened,
    mix: Option<&Mix>,
    spec: LaneSpec,
    budget: Option<u64>,
    threads: usize,
) -> batchfs_batch::Result<Arc<Tokens>> {
    let all = opened.iter().map(|(name, source)| {
        let source: Arc<dyn TokenSource> = source.clone();
        (name.clone().unwrap_or_default(), source)
    });
    Tokens::of(all.collect(), mix.cloned(), spec, budget, threads)
}

/// Opens the Parquet files at `source`, or at each place that it names if there is a mixture, as a dataset.
pub fn dataset(
    source: &Path,
    mix: Option<&Mix>,
    args: &TokenArgs,
    order: Option<&AnySpec>,
    threads: usize,
) -> anyhow::Result<(Arc<Dataset>, LaneSpec)> {
    batchfs_store::keep_freed_memory();
    let spec = order.map_or(Ok(LaneSpec::default()), AnySpec::tokens)?;
    let opened = open_all(source, &args.sources, mix)?;
    let budget = args.budget.map(|size| size.as_u64());
    let tokens = tokens(&opened, mix, spec, budget, threads);
    Ok((Arc::new(Dataset::of_tokens(tokens.map_err(|e| super::about(source, e))?)), spec))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_told_apart() {
        let mix: Mix = "web=0.7,code=0.3".parse().unwrap();
        let said = |text: &str| places(Path::new(text), &mix);
        let own = |places: &[(&str, &str)]| -> Vec<(String, PathBuf)> {
            places.iter().map(|(name, place)| ((*name).to_owned(), place.into())).collect()
        };
        let good = [
            ("web=/a,code=/b", [("code", "/b"), ("web", "/a")]),
            ("code=s3://b/x,web=/a", [("code", "s3://b/x"), ("web", "/a")]),
            ("web=/a,b=1,/c,code=/x=y", [("code", "/x=y"), ("web", "/a,b=1,/c")]),
        ];
        for (text, want) in good {
            assert_eq!(said(text).unwrap(), own(&want), "{text}");
        }
        let here = std::path::absolute("data").unwrap();
        assert_eq!(said("web=data,code=/b").unwrap()[1].1, here);
        for (text, part) in [
            ("/a", "code=PLACE,web=PLACE"),
            ("web=/a", "where code is"),
            ("web=/a,web=/b", "web twice"),
            ("web=/a,code=", "no place for code"),
            ("", "PLACE"),
        ] {
            let error = said(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
