//! Streams as files of other programs: whole or not at all.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use batchfs_store::{
    DType, Error, Layout, Output, Result, Stream, TempFolder, check_lengths, check_stream_name,
    chunks, npy,
};

use crate::Streams;
use crate::ragged::{OFFSETS, SHAPES, VALUES};
use crate::zrecord::write::{self, ZrecordOptions};

/// What streams are exported as.
#[derive(Clone, Debug)]
pub enum Format {
    /// Containers that loaderx reads.
    Zrecord(ZrecordOptions),
    /// `.npy` files: one for a dense stream; for a ragged one a folder of `values.npy`,
    /// `cu_seqlens.npy` and `shapes.npy`.
    Npy,
}

/// What is exported.
#[derive(Clone, Copy)]
pub enum What<'a> {
    /// A single stream, which becomes `dest` itself.
    Stream(&'a dyn Stream),
    /// Named streams of equal length, which become a folder `dest` with one member for each.
    Dataset(&'a Streams),
}

/// Bytes that are copied at a time.
const STEP: u64 = 16 << 20;

/// Writes all records to `dest`, which must not exist, and is there whole or not at all. `progress`
/// is told the bytes that were just done.
///
/// # Errors
/// [`Error::Invalid`] for what the format cannot hold, by its name or the record's number, before
/// anything is written; [`Error::Exists`], [`Error::Io`], and those of the streams.
pub fn export(
    what: What<'_>,
    dest: impl AsRef<Path>,
    format: &Format,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let dest = dest.as_ref();
    let streams: Vec<(Option<&str>, &dyn Stream)> = match what {
        What::Stream(stream) => vec![(None, stream)],
        What::Dataset(all) => {
            all.iter().map(|(name, stream)| (Some(name.as_str()), &**stream)).collect()
        }
    };
    let invalid = |why| Error::Invalid { path: dest.into(), why };
    let lengths: Vec<_> = streams.iter().map(|(n, s)| (n.unwrap_or_default(), s.len())).collect();
    check_lengths(&lengths).map_err(invalid)?;
    for (name, stream) in &streams {
        name.map_or(Ok(()), check_stream_name).map_err(invalid)?;
        match format {
            Format::Zrecord(options) => write::check(*stream, options)?,
            Format::Npy => check_npy(*stream)?,
        }
    }

    let mut temp = TempFolder::create(dest)?;
    for (name, stream) in streams {
        let place = match name {
            None => temp.path().to_owned(),
            Some(name) => temp.path().join(name),
        };
        let told = name.map_or(dest.into(), |name| dest.join(name));
        let dense = matches!(stream.schema().layout, Layout::Dense { .. });
        match format {
            Format::Npy if dense && name.is_none() => {
                write_dense(stream, &place.join(ALONE), &told, progress)?;
                return temp.publish_file(ALONE);
            }
            Format::Npy if dense => {
                let mut file = place.into_os_string();
                file.push(".npy");
                write_dense(stream, &PathBuf::from(file), &told, progress)?;
                continue;
            }
            _ => {}
        }
        if name.is_some() {
            fs::create_dir(&place).map_err(Error::io(&told, "cannot create"))?;
        }
        match format {
            Format::Zrecord(options) => write::write(stream, &place, &told, options, progress)?,
            Format::Npy => write_ragged(stream, &place, &told, progress)?,
        }
        File::open(&place).and_then(|f| f.sync_all()).map_err(Error::io(&told, "cannot flush"))?;
    }
    temp.publish()
}

/// What a file is called that is published by itself.
const ALONE: &str = "array.npy";

fn check_npy(stream: &dyn Stream) -> Result<()> {
    let dtype = stream.schema().dtype;
    if dtype.npy_descr().is_some() {
        return Ok(());
    }
    let why = format!(
        "NumPy has no {dtype}, and a .npy file would not say what it holds; export it as zrecord"
    );
    Err(Error::Invalid { path: stream.origin().to_owned(), why })
}

/// The values of all records, of `elements` in all, behind a header of `shape`.
fn write_values(
    stream: &dyn Stream,
    shape: &[u64],
    file: &Path,
    told: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let mut out = begin(stream.schema().dtype, shape, file, told)?;
    let mut buffer = Vec::new();
    for chunk in chunks(stream, STEP) {
        let chunk = chunk?;
        chunk.read(stream, &mut buffer)?;
        out.append(&buffer)?;
        progress(chunk.bytes);
    }
    out.sync()
}

fn begin(dtype: DType, shape: &[u64], file: &Path, told: &Path) -> Result<Output> {
    let header = npy::header(dtype, shape, 64).ok_or_else(|| {
        let why = format!("NumPy has no {dtype}");
        Error::Invalid { path: told.into(), why }
    })?;
    let mut out = Output::create(file, told)?;
    out.append(&header)?;
    Ok(out)
}

fn write_dense(
    stream: &dyn Stream,
    file: &Path,
    told: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let mut shape = vec![stream.len()];
    if let Layout::Dense { item_shape } = &stream.schema().layout {
        shape.extend_from_slice(item_shape);
    }
    write_values(stream, &shape, file, told, progress)
}

fn write_ragged(
    stream: &dyn Stream,
    folder: &Path,
    told: &Path,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let (len, ndim) = (stream.len(), stream.schema().ndim());
    let mut offsets = begin(DType::Int64, &[len + 1], &folder.join(OFFSETS), told)?;
    let mut shapes = begin(DType::UInt64, &[len, ndim as u64], &folder.join(SHAPES), told)?;
    let mut end = 0u64;
    offsets.append(&end.to_le_bytes())?;
    for chunk in chunks(stream, u64::MAX) {
        let ids: Vec<u64> = chunk?.ids.collect();
        let mut numbers = vec![0; ids.len() * ndim];
        stream.shapes(&ids, &mut numbers)?;
        shapes.append(&bytes_of(&numbers))?;
        let mut elements = vec![0; ids.len()];
        stream.elements(&ids, &mut elements)?;
        for elements in &mut elements {
            end += *elements;
            *elements = end;
        }
        offsets.append(&bytes_of(&elements))?;
    }
    offsets.sync()?;
    shapes.sync()?;
    write_values(stream, &[end], &folder.join(VALUES), told, progress)
}

fn bytes_of(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_le_bytes()).collect()
}
