//! Stores that are read.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use arc_swap::ArcSwapOption;
use batchfs_source::{Kind, Zrecord};
use batchfs_store::{Layout, OpenOptions, Schema, Store as RecordStore, Stream, Verify};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::allocator::Allocator;
use crate::view::{Bind, DenseView, RaggedView};
use crate::{dtypes, errors};

/// A stream that views read, until its store is closed.
pub struct Opened {
    pub path: PathBuf,
    pub schema: Schema,
    pub len: u64,
    /// Bytes of all records.
    pub payload: u64,
    pub codec: &'static str,
    pub shards: u32,
    pub verify: String,
    stream: ArcSwapOption<Box<dyn Stream>>,
}

impl Opened {
    /// The records.
    ///
    /// # Errors
    /// `RuntimeError` after the store was closed.
    pub fn stream(&self) -> PyResult<Arc<Box<dyn Stream>>> {
        self.stream.load_full().ok_or_else(|| {
            PyRuntimeError::new_err(format!("{}: the store is closed", self.path.display()))
        })
    }

    /// The shape of a dense record, or the axes of ragged ones.
    pub fn geometry<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.schema.layout {
            Layout::Dense { item_shape } => {
                Ok(pyo3::types::PyTuple::new(py, item_shape)?.into_any())
            }
            Layout::Ragged { ndim } => Ok(ndim.into_pyobject(py)?.into_any()),
        }
    }
}

/// Opens what is at `path`: a store, or another source that is read as it is.
///
/// # Errors
/// Those of the store; `ValueError` if its records are not of the layout that is asked for.
fn open(path: &Path, verify: &str) -> Result<(Box<dyn Stream>, &'static str, u32), Failed> {
    let verify = match verify {
        "first" => Verify::First,
        "always" => Verify::Always,
        "never" => Verify::Never,
        other => {
            let why = format!("verify={other:?} is not valid; it is first, always or never");
            return Err(Failed::Value(why));
        }
    };
    let options = OpenOptions::verify(verify);
    match Kind::of(path)? {
        Kind::Store | Kind::Folder => {
            let store = RecordStore::open(path, options)?;
            let (codec, shards) = (store.codec().name(), store.shards());
            Ok((Box::new(store), codec, shards))
        }
        Kind::Zrecord => {
            let container = Zrecord::open(path)?;
            let (codec, shards) = (container.codec().name(), container.shards());
            Ok((Box::new(container), codec, shards))
        }
        _ => Ok((batchfs_source::open_path(path, &options)?, "raw", 1)),
    }
}

enum Failed {
    Store(batchfs_store::Error),
    Value(String),
}

impl From<batchfs_store::Error> for Failed {
    fn from(e: batchfs_store::Error) -> Failed {
        Failed::Store(e)
    }
}

/// An open store, for `DenseStore` and `RaggedStore`.
#[pyclass(frozen, module = "batchfs._native")]
pub struct Store(Arc<Opened>);

#[pymethods]
impl Store {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, dense: bool, verify: String) -> PyResult<Store> {
        let opened = py.detach(|| open(&path, &verify));
        let (stream, codec, shards) = opened.map_err(|e| match e {
            Failed::Store(e) => errors::store(py, &e),
            Failed::Value(why) => PyValueError::new_err(why),
        })?;
        let schema = stream.schema().clone();
        if dense != matches!(schema.layout, Layout::Dense { .. }) {
            let (is, other) = if dense { ("ragged", "Ragged") } else { ("dense", "Dense") };
            return Err(PyValueError::new_err(format!(
                "{}: its records are {is}; open it with {other}Store",
                path.display()
            )));
        }
        let (len, payload) = (stream.len(), stream.payload_bytes());
        let stream = ArcSwapOption::from_pointee(stream);
        Ok(Store(Arc::new(Opened { path, schema, len, payload, codec, shards, verify, stream })))
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtypes::object(py, self.0.schema.dtype)
    }

    #[getter]
    fn geometry<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.geometry(py)
    }

    #[getter]
    fn codec(&self) -> &'static str {
        self.0.codec
    }

    #[getter]
    fn data_shards(&self) -> u32 {
        self.0.shards
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.stream.load().is_none()
    }

    fn __len__(&self) -> usize {
        self.0.len as usize
    }

    fn bind(&self, py: Python<'_>, allocator: &Bound<'_, Allocator>) -> PyResult<Py<PyAny>> {
        self.0.stream()?;
        let bind = Bind::new(self.0.clone(), allocator.clone().unbind());
        match self.0.schema.layout {
            Layout::Dense { .. } => Ok(Py::new(py, DenseView(bind))?.into_any()),
            Layout::Ragged { .. } => Ok(Py::new(py, RaggedView(bind))?.into_any()),
        }
    }

    fn close(&self, py: Python<'_>) {
        let closed = self.0.stream.swap(None);
        py.detach(|| drop(closed));
    }
}

/// Trains a dictionary on a view: its bytes, and why it does not pay if so.
#[pyfunction]
pub fn train_dict<'py>(
    view: &Bound<'py, PyAny>,
    size: usize,
) -> PyResult<(Bound<'py, PyBytes>, Option<String>)> {
    let py = view.py();
    let bind = crate::view::bind_of(view)
        .ok_or_else(|| PyTypeError::new_err("train_dict takes a DenseView or RaggedView"))?;
    let stream = bind.store.stream()?;
    let trained = py.detach(|| batchfs_store::train_dict(&**stream, size));
    let trained = trained.map_err(|e| errors::store(py, &e))?;
    let warning = trained.warning();
    Ok((PyBytes::new(py, &trained.bytes), warning))
}
