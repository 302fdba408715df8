use std::fs;
use std::path::Path;
use std::sync::Arc;

use batchfs_store::{
    DType, Error, OpenOptions, Result, Store, Stream, check_lengths, check_stream_name,
    is_unfinished,
};

use crate::{DTypes, NpyFile};

/// Opens what is at `path`, a store's folder or a `.npy` file, as a stream. `options` are for
/// stores.
///
/// # Errors
/// Those of [`Store::open`] and [`NpyFile::open`].
pub fn open_path(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Box<dyn Stream>> {
    open_path_as(path, options, None)
}

/// As [`open_path`]; `dtype` is what a file's elements are known to be.
///
/// # Errors
/// Those of [`open_path`], and if the file says that it holds something else.
pub fn open_path_as(
    path: impl AsRef<Path>,
    options: &OpenOptions,
    dtype: Option<DType>,
) -> Result<Box<dyn Stream>> {
    let path = path.as_ref();
    let meta = path.metadata().map_err(Error::io(path, "cannot open"))?;
    if meta.is_dir() {
        Ok(Box::new(Store::open(path, options.clone())?))
    } else if path.extension().is_some_and(|e| e.eq_ignore_ascii_case("npy")) {
        Ok(Box::new(match dtype {
            Some(dtype) => NpyFile::open_as(path, dtype)?,
            None => NpyFile::open(path)?,
        }))
    } else {
        Err(bad(path, "is neither a store's folder nor a .npy file".into()))
    }
}

/// Opens a dataset, the streams that one mount shows: a folder of stores and `.npy` files, each a
/// stream of its name, or a single one of these. Streams come sorted by name.
///
/// In a folder, names with a dot in front and files that are not `.npy` are passed over.
///
/// # Errors
/// Those of [`open_path`]; [`Error::BadStore`] if there is no stream, if streams differ in length,
/// or one has a name that the mount cannot have.
pub fn open_dataset(
    path: impl AsRef<Path>,
    options: &OpenOptions,
) -> Result<Vec<(String, Arc<dyn Stream>)>> {
    open_dataset_as(path, options, &DTypes::default())
}

/// As [`open_dataset`]; `dtypes` are what the elements of files are that do not say so. Stores say
/// it themselves.
///
/// # Errors
/// Those of [`open_dataset`], and if a file or store that is named holds something else, or there is
/// no such stream.
pub fn open_dataset_as(
    path: impl AsRef<Path>,
    options: &OpenOptions,
    dtypes: &DTypes,
) -> Result<Vec<(String, Arc<dyn Stream>)>> {
    let path = path.as_ref();
    let meta = path.metadata().map_err(Error::io(path, "cannot open"))?;
    if is_unfinished(path) {
        return Err(bad(path, "is the folder of a writer that has not finished".into()));
    }
    // A store's own shards are .npy files, and must not pass for streams when its header is gone.
    let is_store =
        |dir: &Path| ["batchfs.json", "seal", "index.bin"].iter().any(|f| dir.join(f).exists());
    let places =
        if meta.is_dir() && !is_store(path) { members(path)? } else { vec![path.to_owned()] };

    let mut streams: Vec<(String, Arc<dyn Stream>)> = Vec::new();
    for place in places {
        let name = stream_name(&place)?;
        if streams.iter().any(|(n, _)| *n == name) {
            return Err(bad(path, format!("has two streams named {name:?}; rename one")));
        }
        let stream = open_path_as(&place, options, dtypes.of(&name))?;
        streams.push((name, stream.into()));
    }
    for name in dtypes.names() {
        let Some((_, stream)) = streams.iter().find(|(n, _)| n == name) else {
            return Err(bad(path, format!("has no stream named {name:?} to have a dtype")));
        };
        let (found, said) = (stream.schema().dtype, dtypes.of(name));
        if said != Some(found) {
            return Err(bad(stream.origin(), format!("holds {found}, not what was said")));
        }
    }
    streams.sort_by(|(a, _), (b, _)| a.cmp(b));
    let lengths: Vec<_> = streams.iter().map(|(name, s)| (name.as_str(), s.len())).collect();
    check_lengths(&lengths).map_err(|why| bad(path, why))?;
    Ok(streams)
}

/// The stores and `.npy` files of a folder.
fn members(folder: &Path) -> Result<Vec<std::path::PathBuf>> {
    let io = |e| Error::io(folder, "cannot list")(e);
    let (mut found, mut unfinished) = (Vec::new(), 0);
    for entry in fs::read_dir(folder).map_err(io)? {
        let place = entry.map_err(io)?.path();
        unfinished += u32::from(is_unfinished(&place));
        if place.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b".")) {
            continue;
        }
        if place.is_dir() || place.extension().is_some_and(|e| e.eq_ignore_ascii_case("npy")) {
            found.push(place);
        }
    }
    if found.is_empty() {
        let more = match unfinished {
            0 => "",
            _ => "; writers that have not finished, or were killed, have folders there",
        };
        return Err(bad(folder, format!("has neither stores nor .npy files in it{more}")));
    }
    found.sort();
    Ok(found)
}

/// A store's folder name, or a file's without its `.npy`.
fn stream_name(place: &Path) -> Result<String> {
    // A path such as `.` or `..` has a name only once resolved.
    let full = place.canonicalize().map_err(Error::io(place, "cannot open"))?;
    let named = if place.file_name().is_some() { place } else { &full };
    let name = if named.is_dir() { named.file_name() } else { named.file_stem() };
    let name = name
        .and_then(|n| n.to_str())
        .ok_or_else(|| bad(place, "has a name that is not UTF-8; rename it".into()))?;
    check_stream_name(name).map_err(|why| bad(place, why))?;
    Ok(name.to_owned())
}

fn bad(path: &Path, why: String) -> Error {
    Error::BadStore { path: path.into(), why }
}
