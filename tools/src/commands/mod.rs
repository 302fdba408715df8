pub mod create;
pub mod export;
pub mod ids;
pub mod info;
pub mod mount;
pub mod train_dict;
pub mod umount;
pub mod verify;

use std::path::Path;
use std::sync::Arc;

use batchfs_batch::{Dataset, NamedStream};
use batchfs_store::{OpenOptions, Verify};

/// Opens `path` as a dataset.
pub fn dataset(path: &Path, verify: Verify) -> anyhow::Result<Arc<Dataset>> {
    let streams = batchfs_source::open_dataset(path, &OpenOptions::verify(verify))?;
    let streams = streams.into_iter().map(|(name, stream)| NamedStream { name, stream }).collect();
    Ok(Arc::new(Dataset::new(path, streams)?))
}
