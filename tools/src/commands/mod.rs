pub mod cat;
pub mod completions;
pub mod create;
pub mod export;
pub mod ids;
pub mod index;
pub mod info;
pub mod ls;
pub mod man;
pub mod mount;
pub mod plan;
pub mod tokens;
pub mod train_dict;
pub mod umount;
pub mod verify;

use std::path::Path;
use std::sync::Arc;

use anyhow::Context as _;
use batchfs_batch::{Dataset, NamedStream, Spec, View};
use batchfs_mount::Unmounted;
use batchfs_store::{OpenOptions, Verify, remove_leftovers};

use crate::args::{AnySpec, Order, TokenArgs, Types};
use crate::parents::Parents;
use crate::say;

/// Opens `path` as a dataset.
pub fn dataset(path: &Path, verify: Verify, types: &Types) -> anyhow::Result<Dataset> {
    let options = OpenOptions::verify(verify);
    let streams = batchfs_source::open_dataset_as(path, &options, &types.all())?;
    let streams = streams.into_iter().map(|(name, stream)| NamedStream { name, stream }).collect();
    let data = Dataset::new(path, streams)?;
    // Whoever reads records by themselves compares checksums the first time.
    Ok(if verify == Verify::First { data.stamped() } else { data })
}

/// What a mount shows: of record streams, or of Parquet with a column of tokens.
pub fn view(
    source: &Path,
    spec: Option<&AnySpec>,
    types: &Types,
    args: &TokenArgs,
    verify: Verify,
    threads: usize,
    resident: bool,
) -> anyhow::Result<View> {
    if let Some(mix) = args.sources.mix()? {
        let (data, spec) = tokens::dataset(source, Some(&mix), args, spec, threads)?;
        return View::new(0, "", data, spec).map_err(|e| about(source, e));
    }
    // The daemon changes its folder. Links stay: a stream's name is the one that was given.
    let address = source.to_str().is_some_and(|source| source.contains("://"));
    let source = if address { source.to_owned() } else { std::path::absolute(source)? };
    let view = if tokens::is_tokens(&source)? {
        if resident {
            anyhow::bail!("{}: --resident is for records, not for tokens", source.display());
        }
        let (data, spec) = tokens::dataset(&source, None, args, spec, threads)?;
        View::new(0, "", data, spec)
    } else {
        let spec = spec.map_or(Ok(Spec::default()), AnySpec::records)?;
        let mut data = dataset(&source, verify, types)?;
        if resident {
            data.make_resident(threads).map_err(|e| about(&source, e))?;
        }
        View::new(0, "", Arc::new(data), spec)
    };
    view.map_err(|e| about(&source, e))
}

/// The tree that a mount of `path` would be.
pub fn unmounted(path: &Path, order: &Order) -> anyhow::Result<Unmounted> {
    let Order { spec, types, tokens } = order;
    let view = view(path, spec.as_ref(), types, tokens, Verify::First, 0, false)?;
    Ok(Unmounted::new(Arc::new(view), 0)?)
}

/// Makes the folders that `dest` is to be in, and takes away what earlier runs have left beside it,
/// `what` they did not finish.
pub fn make_room(dest: &Path, what: &str) -> anyhow::Result<Parents> {
    let parents = Parents::of(dest)
        .with_context(|| format!("{}: the folders that it is in cannot be made", dest.display()))?;
    // What cannot be cleaned up is no reason not to write.
    for left in remove_leftovers(dest).unwrap_or_default() {
        say::note(format_args!("{}: removed, {what} of an earlier run", left.display()));
    }
    Ok(parents)
}

/// The file given with `--dict`.
pub fn dictionary(path: Option<&Path>) -> anyhow::Result<Option<Vec<u8>>> {
    path.map(|path| std::fs::read(path).with_context(|| path.display().to_string())).transpose()
}

/// An error that is about the data at `source` and does not say so.
pub fn about(source: &Path, error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("{}: {error}", source.display())
}
