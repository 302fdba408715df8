//! Token sources on the command line.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context as _, bail};
use batchfs_batch::{Dataset, Tokens};
use batchfs_parquet::{Options, ParquetTokens, is_parquet};
use batchfs_sampler::lanes::LaneSpec;

use crate::args::{AnySpec, TokenArgs};

/// Whether `source` is one of tokens.
///
/// # Errors
/// If it has record stores beside them.
pub fn is_tokens(source: &Path) -> anyhow::Result<bool> {
    if !source.to_str().is_some_and(is_parquet) {
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

/// Opens the Parquet files at `source`.
pub fn open(source: &Path, args: &TokenArgs) -> anyhow::Result<ParquetTokens> {
    let source = source.to_str().context("the path of a token source has to be UTF-8")?;
    let options = Options {
        column: args.column.clone(),
        cache: None,
        storage: args.storage_option.iter().cloned().collect(),
    };
    Ok(ParquetTokens::open(source, &options)?)
}

/// Opens the Parquet files at `source` as a dataset.
pub fn dataset(
    source: &Path,
    args: &TokenArgs,
    order: Option<&AnySpec>,
    threads: usize,
) -> anyhow::Result<(Arc<Dataset>, LaneSpec)> {
    let spec = order.map_or(Ok(LaneSpec::default()), AnySpec::tokens)?;
    let parquet = Arc::new(open(source, args)?);
    let budget = args.budget.map(|size| size.as_u64());
    let tokens =
        Tokens::new(parquet, spec, budget, threads).map_err(|e| super::about(source, e))?;
    Ok((Arc::new(Dataset::of_tokens(tokens)), spec))
}
