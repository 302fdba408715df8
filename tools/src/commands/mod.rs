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
pub mod tokens;
pub mod train_dict;
pub mod umount;
pub mod verify;

use std::path::Path;
use std::sync::Arc;

use batchfs_batch::{Dataset, NamedStream, View};
use batchfs_mount::Unmounted;
use batchfs_store::{OpenOptions, Verify};

use crate::args::{Order, Types};

/// Opens `path` as a dataset.
pub fn dataset(path: &Path, verify: Verify, types: &Types) -> anyhow::Result<Arc<Dataset>> {
    let options = OpenOptions::verify(verify);
    let streams = batchfs_source::open_dataset_as(path, &options, &types.all())?;
    let streams = streams.into_iter().map(|(name, stream)| NamedStream { name, stream }).collect();
    Ok(Arc::new(Dataset::new(path, streams)?))
}

/// The tree that a mount of `path` would be.
pub fn unmounted(path: &Path, order: &Order) -> anyhow::Result<Unmounted> {
    // As `mount` has it.
    let data = dataset(&std::path::absolute(path)?, Verify::First, &order.types)?;
    let view = View::new(0, "", data, order.spec).map_err(|e| about(path, e))?;
    Ok(Unmounted::new(Arc::new(view), 0)?)
}

/// An error that is about the data at `source` and does not say so.
pub fn about(source: &Path, error: impl std::fmt::Display) -> anyhow::Error {
    anyhow::anyhow!("{}: {error}", source.display())
}
