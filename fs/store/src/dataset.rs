use std::path::Path;
use std::sync::{Arc, OnceLock};

use crate::publish::TempFolder;
use crate::{Error, Result, Schema, StoreWriter, WriteOptions};

/// Writes a dataset, a folder with one store per stream, which is there whole or not at all.
///
/// ```
/// use batchfs_store::{DType, DatasetWriter, Schema, WriteOptions};
/// # let tmp = tempfile::tempdir().unwrap();
/// # let dest = tmp.path().join("digits");
/// let mut dataset = DatasetWriter::create(&dest)?;
/// let image = Schema::dense(DType::UInt8, [28, 28]);
/// let mut images = dataset.stream("images", image, WriteOptions::default())?;
/// let label = Schema::dense(DType::Int64, []);
/// let mut labels = dataset.stream("labels", label, WriteOptions::default())?;
/// images.append(&[0; 2 * 28 * 28])?;
/// labels.append(&[0; 2 * 8])?;
/// images.finish()?;
/// labels.finish()?;
/// assert!(!dest.exists());
/// dataset.publish()?;
/// assert!(dest.join("labels").exists());
/// # Ok::<(), batchfs_store::Error>(())
/// ```
pub struct DatasetWriter {
    temp: Arc<TempFolder>,
    streams: Vec<(String, Arc<OnceLock<u64>>)>,
}

impl DatasetWriter {
    /// Starts a dataset that will be the folder `dest`.
    ///
    /// # Errors
    /// [`Error::Exists`] if there is a `dest`, [`Error::Io`] if nothing can be written beside it.
    pub fn create(dest: impl AsRef<Path>) -> Result<Self> {
        let temp = Arc::new(TempFolder::create(dest.as_ref())?);
        Ok(Self { temp, streams: Vec::new() })
    }

    /// Starts a stream. Streams may be written at the same time, from any thread.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a name that [`check_stream_name`] refuses, [`Error::Exists`] for one
    /// that is taken, and those of [`StoreWriter::create`].
    pub fn stream(
        &mut self,
        name: &str,
        schema: Schema,
        options: WriteOptions,
    ) -> Result<StoreWriter> {
        let path = self.temp.dest().join(name);
        check_stream_name(name).map_err(|why| Error::Invalid { path: path.clone(), why })?;
        if self.streams.iter().any(|(n, _)| n == name) {
            return Err(Error::Exists { path });
        }
        let records = Arc::new(OnceLock::new());
        let writer =
            StoreWriter::within(self.temp.clone(), name, schema, options, records.clone())?;
        self.streams.push((name.into(), records));
        Ok(writer)
    }

    /// Gives the dataset its name. Every stream must have been finished.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a stream was not finished, if streams differ in length, or if there
    /// are none; [`Error::Exists`] if `dest` has come into being meanwhile; [`Error::Io`]. Nothing
    /// is published then.
    pub fn publish(self) -> Result<()> {
        let dest = self.temp.dest().to_owned();
        let invalid = |why: String| Error::Invalid { path: dest.clone(), why };
        let mut lengths = Vec::new();
        for (name, records) in &self.streams {
            let n = records.get().ok_or_else(|| {
                invalid(format!("stream {name:?} was not finished; nothing was published"))
            })?;
            lengths.push((name.as_str(), *n));
        }
        check_lengths(&lengths).map_err(invalid)?;
        let mut temp = Arc::into_inner(self.temp)
            .ok_or_else(|| invalid("a stream of it is still being written".into()))?;
        temp.publish()
    }
}

/// Whether a stream may have this name: it becomes a folder of the mount, beside others.
///
/// # Errors
/// What is wrong with it, in words.
pub fn check_stream_name(name: &str) -> Result<(), String> {
    const TAKEN: [&str; 4] = ["view", "all", "index", "README.txt"];
    if TAKEN.contains(&name) {
        return Err(format!(
            "a stream cannot be named {name:?}, which the mount has for itself; rename it"
        ));
    }
    if name.is_empty() || name.starts_with('.') {
        return Err(format!("a stream cannot be named {name:?}, with a dot in front; rename it"));
    }
    if name.len() > 255 || name.contains(|c: char| c == '/' || c.is_control()) {
        return Err(format!(
            "a stream cannot be named {name:?}: no slashes, no control characters, at most 255 bytes"
        ));
    }
    Ok(())
}

/// Whether streams make a dataset: there is one, and all have as many records.
///
/// # Errors
/// What is wrong, in words, with the streams that differ.
pub fn check_lengths(streams: &[(&str, u64)]) -> Result<(), String> {
    let Some((first, n)) = streams.first() else {
        return Err("a dataset needs at least one stream".into());
    };
    match streams.iter().find(|(_, m)| m != n) {
        Some((other, m)) => Err(format!(
            "streams of a dataset have as many records as one another, but {first:?} has {n} and {other:?} has {m}"
        )),
        None => Ok(()),
    }
}
