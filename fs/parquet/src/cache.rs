//! The index on disk, so that a dataset is indexed once.
//!
//! A file per dataset and column. Its first line is a hash of the rest; what does not match, or is of
//! another version, counts as not there.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

use crate::index::Indexed;

const VERSION: u32 = 1;

#[derive(Serialize, Deserialize)]
struct Cached {
    version: u32,
    origin: String,
    column: String,
    files: Vec<Indexed>,
}

/// Where indexes are kept: `BATCHFS_CACHE_DIR`, or the user's folder for such things.
pub(crate) fn folder() -> Option<PathBuf> {
    let set = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    set("BATCHFS_CACHE_DIR")
        .or_else(|| set("XDG_CACHE_HOME").map(|dir| dir.join("batchfs")))
        .or_else(|| set("HOME").map(|dir| dir.join(".cache/batchfs")))
}

fn path(folder: &Path, origin: &str, column: &str) -> PathBuf {
    let hash = XxHash3_128::oneshot(format!("{origin}\n{column}").as_bytes());
    folder.join(format!("{hash:032x}.index"))
}

/// What is known of a dataset; nothing if that cannot be read.
pub(crate) fn load(folder: &Path, origin: &str, column: &str) -> Vec<Indexed> {
    let read = || {
        let text = fs::read_to_string(path(folder, origin, column)).ok()?;
        let (hash, body) = text.split_once('\n')?;
        (hash == sum(body)).then_some(())?;
        let cached: Cached = serde_json::from_str(body).ok()?;
        let same = cached.version == VERSION && cached.origin == origin && cached.column == column;
        same.then_some(cached.files)
    };
    read().unwrap_or_default()
}

/// Keeps `files`. That it cannot is no failure: the next start takes longer.
pub(crate) fn store(folder: &Path, origin: &str, column: &str, files: &[Indexed]) {
    let cached = Cached {
        version: VERSION,
        origin: origin.to_owned(),
        column: column.to_owned(),
        files: files.to_vec(),
    };
    let write = || -> std::io::Result<()> {
        let body = serde_json::to_string(&cached)?;
        fs::create_dir_all(folder)?;
        let target = path(folder, origin, column);
        let temp = target.with_extension(format!("tmp-{}", std::process::id()));
        let written = fs::File::create(&temp)
            .and_then(|mut file| file.write_all(format!("{}\n{body}", sum(&body)).as_bytes()))
            .and_then(|()| fs::rename(&temp, &target));
        // A full disk is not to be filled with what nobody reads.
        written.inspect_err(|_| drop(fs::remove_file(&temp)))
    };
    if let Err(error) = write() {
        tracing::warn!("{}: the index cannot be kept: {error}", folder.display());
    }
}

fn sum(body: &str) -> String {
    format!("{:032x}", XxHash3_128::oneshot(body.as_bytes()))
}
