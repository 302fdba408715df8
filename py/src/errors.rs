//! From the crates' errors to Python's exceptions, with path and record.

use std::io;
use std::path::Path;

use batchfs_store::Error;
use pyo3::exceptions::{PyFileExistsError, PyIndexError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

static STORE_ERROR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The exception that a store's error is in Python.
pub fn store(py: Python<'_>, error: &Error) -> PyErr {
    match error {
        Error::Io { path, action, source } => os(path, action, source),
        Error::Exists { path } => {
            let why =
                "exists already; stores are never overwritten, remove it or choose another name";
            PyFileExistsError::new_err((libc::EEXIST, why, path.clone().into_os_string()))
        }
        Error::NoSuchRecord { .. } => PyIndexError::new_err(error.to_string()),
        Error::Invalid { .. } => PyValueError::new_err(error.to_string()),
        Error::Damaged { path, record, .. } | Error::DamagedFile { path, record, .. } => {
            broken(py, error, path, Some(*record))
        }
        Error::RowGroup { file, .. } => broken(py, error, Path::new(file), None),
        Error::BadStore { path, .. } | Error::UnknownVersion { path, .. } => {
            broken(py, error, path, None)
        }
        _ => PyRuntimeError::new_err(error.to_string()),
    }
}

/// An `OSError`; Python makes `FileNotFoundError` and so on of it.
pub fn os(path: &Path, action: &str, source: &io::Error) -> PyErr {
    match source.raw_os_error() {
        Some(code) => {
            let text = source.to_string();
            let text = text.split(" (os error").next().unwrap_or_default();
            PyOSError::new_err((code, format!("{action}: {text}"), path.as_os_str().to_owned()))
        }
        None => {
            let text = format!("{}: {action}: {source}", path.display());
            PyErr::from(io::Error::new(source.kind(), text))
        }
    }
}

fn broken(py: Python<'_>, error: &Error, path: &Path, record: Option<u64>) -> PyErr {
    let class = match STORE_ERROR.import(py, "batchfs._errors", "StoreError") {
        Ok(class) => class,
        Err(e) => return e,
    };
    match class.call1((error.to_string(), path, record)) {
        Ok(value) => PyErr::from_value(value),
        Err(e) => e,
    }
}

/// The exception for what a GPU, its runtime or its render node refuses.
pub fn gpu(error: &batchfs_dmabuf::Error) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// The exception for a spec that does not fit.
pub fn sample(error: &batchfs_sampler::SpecError) -> PyErr {
    PyValueError::new_err(error.to_string())
}
