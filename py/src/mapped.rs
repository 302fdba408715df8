//! Files of a mount, mapped.

use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use batchfs_store::DType;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::sys::{Memory, of_file, open};
use crate::tensor::{DLTensor, Tensor, elements};
use crate::{dtypes, errors};

const ALIGN: usize = 64;

fn map(path: &Path, write: bool) -> io::Result<Option<Memory>> {
    let file = open(path)?;
    match file.metadata()?.size() as usize {
        0 => Ok(None),
        len => of_file(&file, len, write).map(Some),
    }
}

fn mapped(py: Python<'_>, path: &Path, write: bool) -> PyResult<Memory> {
    let done = loop {
        match py.detach(|| map(path, write)) {
            // Ctrl-C, for one, while the batch is being made.
            Err(e) if e.kind() == io::ErrorKind::Interrupted => py.check_signals()?,
            done => break done,
        }
    };
    let memory = done.map_err(|e| errors::os(path, "cannot map", &e))?;
    memory.ok_or_else(|| PyValueError::new_err(format!("{}: is empty", path.display())))
}

fn part(whole: &Memory, at: usize, dtype: DType, shape: Vec<i64>, write: bool) -> Option<Tensor> {
    let memory = whole.part(at, elements(&shape)?.checked_mul(dtype.size())?)?;
    Some(Tensor { memory, dtype, shape: shape.into(), readonly: !write })
}

/// A file that is one array. With `write` it is writable, and nobody else sees what is written.
///
/// Raises `OSError` as the file does, `ValueError` if it has another size.
#[pyfunction]
pub fn map_dense(
    py: Python<'_>,
    path: PathBuf,
    dtype: &str,
    shape: Vec<i64>,
    write: bool,
) -> PyResult<DLTensor> {
    let dtype = dtypes::named(dtype)?;
    let memory = mapped(py, &path, write)?;
    let found = memory.len();
    part(&memory, 0, dtype, shape.clone(), write)
        .filter(|t| t.memory.len() == found)
        .map(DLTensor)
        .ok_or_else(|| {
            let path = path.display();
            PyValueError::new_err(format!(
                "{path}: has {found} bytes, which is not {dtype} {shape:?}"
            ))
        })
}

/// Arrays within a file: dtype, shape and offset of each.
///
/// Raises `OSError` as the file does, `ValueError` if it is too short for one of them.
#[pyfunction]
pub fn map_parts(
    py: Python<'_>,
    path: PathBuf,
    parts: Vec<(String, Vec<i64>, usize)>,
    write: bool,
) -> PyResult<Vec<DLTensor>> {
    let whole = mapped(py, &path, write)?;
    let one = |(dtype, shape, at): (String, Vec<i64>, usize)| {
        let dtype = dtypes::named(&dtype)?;
        part(&whole, at, dtype, shape, write).map(DLTensor).ok_or_else(|| {
            PyValueError::new_err(format!("{}: is too short for what it says", path.display()))
        })
    };
    parts.into_iter().map(one).collect()
}

/// A file that is a ragged batch: values, cu_seqlens and shapes, at multiples of 64 bytes.
///
/// Raises what `map_dense` does.
#[pyfunction]
pub fn map_ragged(
    py: Python<'_>,
    path: PathBuf,
    dtype: &str,
    records: usize,
    ndim: usize,
    write: bool,
) -> PyResult<(DLTensor, DLTensor, DLTensor)> {
    let dtype = dtypes::named(dtype)?;
    let whole = mapped(py, &path, write)?;
    let made = (|| {
        // The last two arrays have known lengths, so that their places follow from the file's.
        let shapes_at = whole.len().checked_sub(records.checked_mul(ndim)?.checked_mul(8)?)?;
        let cu = records.checked_add(1)?.checked_mul(4)?;
        let cu_at = shapes_at.checked_sub(cu.next_multiple_of(ALIGN))?;
        let rows = records as i64;
        let shapes = part(&whole, shapes_at, DType::UInt64, vec![rows, ndim as i64], write)?;
        let cu = part(&whole, cu_at, DType::Int32, vec![rows + 1], write)?;
        let last = cu.memory.bytes().last_chunk::<4>().map(|b| i32::from_le_bytes(*b))?;
        let bytes = usize::try_from(last).ok()?.checked_mul(dtype.size())?;
        if bytes.next_multiple_of(ALIGN) != cu_at {
            return None;
        }
        let values = part(&whole, 0, dtype, vec![i64::from(last)], write)?;
        Some((DLTensor(values), DLTensor(cu), DLTensor(shapes)))
    })();
    made.ok_or_else(|| {
        let (path, len) = (path.display(), whole.len());
        PyValueError::new_err(format!(
            "{path}: has {len} bytes, which is no batch of {records} ragged records of {dtype}"
        ))
    })
}
