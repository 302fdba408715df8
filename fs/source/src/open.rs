use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use batchfs_store::{
    DType, Error, OpenOptions, Result, Store, Stream, check_lengths, check_stream_name,
    is_unfinished,
};

use crate::{DTypes, NpyFile, RaggedNpy, Zrecord, bad, convert_npy, ragged, zrecord};

/// What a path can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Kind {
    /// A record store of ours.
    Store,
    /// A `.npy` file.
    Npy,
    /// A folder of `.npy` files that are ragged records.
    RaggedNpy,
    /// A zrecord container.
    Zrecord,
    /// A folder of any of these.
    Folder,
}

impl Kind {
    /// What is at `path`, by its name and the names in it.
    ///
    /// # Errors
    /// [`Error::Io`] if there is nothing; [`Error::BadStore`] for a file of another kind, and for
    /// the folder of a writer that has not finished.
    pub fn of(path: impl AsRef<Path>) -> Result<Kind> {
        let path = path.as_ref();
        let meta = path.metadata().map_err(Error::io(path, "cannot open"))?;
        if is_unfinished(path) {
            return Err(bad(path, "is the folder of a writer that has not finished".into()));
        }
        let has = |name: &str| path.join(name).exists();
        if !meta.is_dir() {
            return match path.extension().is_some_and(|e| e.eq_ignore_ascii_case("npy")) {
                true => Ok(Kind::Npy),
                false => Err(bad(
                    path,
                    "is neither a .npy file nor the folder of a store or container".into(),
                )),
            };
        }
        // A store's own shards are .npy files, and must not pass for streams when its header is gone.
        if ["batchfs.json", "seal", "index.bin"].into_iter().any(has) {
            return Ok(Kind::Store);
        }
        if has(zrecord::META) || has("data_0.zr") {
            return Ok(Kind::Zrecord);
        }
        if has(ragged::VALUES) && has(ragged::OFFSETS) {
            return Ok(Kind::RaggedNpy);
        }
        Ok(Kind::Folder)
    }
}

/// How to open what is found.
#[derive(Clone, Copy)]
enum How<'a> {
    InPlace(&'a OpenOptions),
    Convert,
}

/// Opens what is at `path`, a store, a container or a `.npy` file, as a stream that is read in
/// place. `options` are for stores.
///
/// # Errors
/// Those of [`Store::open`], [`Zrecord::open`], [`NpyFile::open`] and [`RaggedNpy::open`].
pub fn open_path(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Box<dyn Stream>> {
    open_path_as(path, options, None)
}

/// As [`open_path`]; `dtype` is what a file's elements are whose type it does not name.
///
/// # Errors
/// Those of [`open_path`], and if the file says that it holds something else.
pub fn open_path_as(
    path: impl AsRef<Path>,
    options: &OpenOptions,
    dtype: Option<DType>,
) -> Result<Box<dyn Stream>> {
    open(path.as_ref(), How::InPlace(options), dtype)
}

/// As [`open_path_as`], also for what can be read from front to back only, as fast as a conversion
/// wants it: `.npy` files in Fortran order or big-endian.
///
/// # Errors
/// Those of [`open_path_as`], but for the two orders.
pub fn convert_path(path: impl AsRef<Path>, dtype: Option<DType>) -> Result<Box<dyn Stream>> {
    open(path.as_ref(), How::Convert, dtype)
}

fn open(path: &Path, how: How<'_>, dtype: Option<DType>) -> Result<Box<dyn Stream>> {
    Ok(match (Kind::of(path)?, how) {
        (Kind::Npy, How::InPlace(_)) => Box::new(match dtype {
            Some(dtype) => NpyFile::open_as(path, dtype)?,
            None => NpyFile::open(path)?,
        }),
        (Kind::Npy, How::Convert) => convert_npy(path, dtype)?,
        (Kind::RaggedNpy, How::InPlace(_)) => Box::new(RaggedNpy::open(path, dtype)?.in_place()?),
        (Kind::RaggedNpy, How::Convert) => Box::new(RaggedNpy::open(path, dtype)?),
        (Kind::Zrecord, _) => Box::new(Zrecord::open(path)?),
        (Kind::Store | Kind::Folder, How::InPlace(options)) => {
            Box::new(Store::open(path, options.clone())?)
        }
        (Kind::Store | Kind::Folder, How::Convert) => {
            Box::new(Store::open(path, OpenOptions::default())?)
        }
    })
}

/// Streams of a dataset, each with its name, sorted by it.
pub type Streams = Vec<(String, Arc<dyn Stream>)>;

/// Opens a dataset, the streams that one mount shows: a folder of stores, containers and `.npy`
/// files, each a stream of its name, or a single one of these. Streams come sorted by name.
///
/// In a folder, names with a dot in front and files that are not `.npy` are passed over.
///
/// # Errors
/// Those of [`open_path`]; [`Error::BadStore`] if there is no stream, if streams differ in length,
/// or one has a name that the mount cannot have.
pub fn open_dataset(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Streams> {
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
) -> Result<Streams> {
    dataset(path.as_ref(), How::InPlace(options), dtypes)
}

/// As [`open_dataset_as`], for what [`convert_path`] opens.
///
/// # Errors
/// Those of [`open_dataset_as`], but for the two orders.
pub fn convert_dataset(path: impl AsRef<Path>, dtypes: &DTypes) -> Result<Streams> {
    dataset(path.as_ref(), How::Convert, dtypes)
}

fn dataset(path: &Path, how: How<'_>, dtypes: &DTypes) -> Result<Streams> {
    let places = match Kind::of(path)? {
        Kind::Folder => members(path)?,
        _ => vec![path.to_owned()],
    };
    let mut streams: Streams = Vec::new();
    for place in places {
        let name = stream_name(&place)?;
        if streams.iter().any(|(n, _)| *n == name) {
            return Err(bad(path, format!("has two streams named {name:?}; rename one")));
        }
        let stream = open(&place, how, dtypes.of(&name))?;
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

/// The stores, containers and `.npy` files of a folder.
fn members(folder: &Path) -> Result<Vec<PathBuf>> {
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
        return Err(bad(
            folder,
            format!("has neither stores nor containers nor .npy files in it{more}"),
        ));
    }
    found.sort();
    Ok(found)
}

/// The name that a stream at `place` has: its folder's, or a file's without its `.npy`.
///
/// # Errors
/// [`Error::BadStore`] if that cannot be the name of a stream, [`Error::Io`] if there is nothing.
pub fn stream_name(place: &Path) -> Result<String> {
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
