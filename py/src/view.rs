//! `DenseView` and `RaggedView`: what is indexed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use batchfs_store::Stream;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyTuple, PyType};

use crate::allocator::{Allocator, Source};
use crate::dtypes;
use crate::gather::{Failure, Part, gather};
use crate::index::{Records, Wanted};
use crate::room::Room;
use crate::store::Opened;
use crate::tensor::{DLTensor, Tensor};

/// A store and where its batches are put.
pub struct Bind {
    pub store: Arc<Opened>,
    pub source: Arc<Source>,
    allocator: Py<Allocator>,
    class: AtomicUsize,
}

impl Bind {
    pub fn new(store: Arc<Opened>, allocator: Py<Allocator>) -> Arc<Bind> {
        let source = allocator.get().source().clone();
        Arc::new(Bind { store, source, allocator, class: AtomicUsize::new(0) })
    }

    pub fn records(&self) -> Records<'_> {
        Records { path: &self.store.path, len: self.store.len }
    }

    /// What reads need.
    ///
    /// # Errors
    /// `RuntimeError` if store or allocator are closed.
    pub fn open(&self) -> PyResult<(Arc<Box<dyn Stream>>, &Room)> {
        Ok((self.store.stream()?, self.source.open()?))
    }

    pub fn gather(
        &self,
        stream: &dyn Stream,
        pool: &Room,
        ids: &[u64],
        split: bool,
    ) -> Result<Part, Failure> {
        let part = gather(stream, ids, pool, split)?;
        let bytes = match &part {
            Part::Dense(tensor) => tensor.memory.len(),
            Part::Ragged(tensors) => tensors.iter().map(|t| t.memory.len()).sum(),
        };
        self.class.store(self.source.pool.class(bytes).unwrap_or(0), Ordering::Relaxed);
        Ok(part)
    }

    fn read(&self, py: Python<'_>, ids: &[u64]) -> PyResult<Part> {
        let (stream, pool) = self.open()?;
        py.detach(|| self.gather(&**stream, pool, ids, true)).map_err(|e| e.raised(py))
    }
}

static RAGGED: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// The Python object for a part of a batch.
pub fn object(py: Python<'_>, part: Part) -> PyResult<Py<PyAny>> {
    let tensor = |tensor: Tensor| Py::new(py, DLTensor(tensor));
    match part {
        Part::Dense(one) => Ok(tensor(one)?.into_any()),
        Part::Ragged(three) => {
            let [values, cu, shapes] = *three;
            let class = RAGGED.import(py, "batchfs.store", "RaggedBatch")?;
            Ok(class.call1((tensor(values)?, tensor(cu)?, tensor(shapes)?))?.unbind())
        }
    }
}

/// The view behind a Python object, if it is one of ours.
pub fn bind_of<'a>(view: &'a Bound<'_, PyAny>) -> Option<&'a Arc<Bind>> {
    if let Ok(view) = view.cast::<DenseView>() {
        return Some(&view.get().0);
    }
    view.cast::<RaggedView>().ok().map(|view| &view.get().0)
}

macro_rules! view {
    ($name:ident, $geometry:ident, $doc:literal, $unwrap:expr) => {
        #[doc = $doc]
        #[pyclass(frozen, weakref, module = "batchfs.store")]
        pub struct $name(pub Arc<Bind>);

        #[pymethods]
        impl $name {
            /// The store's folder.
            #[getter]
            fn path<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.0.store.path.as_path().into_pyobject(py).map(Bound::into_any)
            }

            /// The dtype of the elements, one of `batchfs.dtypes`.
            #[getter]
            fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                dtypes::object(py, self.0.store.schema.dtype)
            }

            /// `item_shape` of dense records, `ndim` of ragged ones.
            #[getter]
            fn $geometry<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
                self.0.store.geometry(py)
            }

            /// `raw`, `zstd` or `zstd_dict`.
            #[getter]
            fn codec(&self) -> &'static str {
                self.0.store.codec
            }

            /// Files that the records are spread over.
            #[getter]
            fn data_shards(&self) -> u32 {
                self.0.store.shards
            }

            /// DLPack's `(device type, device id)` of what is read.
            #[getter]
            fn device(&self) -> (i32, i32) {
                let device = self.0.source.pool.device();
                (device.kind, device.id)
            }

            /// The size class of the last read, in bytes; `None` before the first.
            #[getter]
            fn size_class(&self) -> Option<usize> {
                Some(self.0.class.load(Ordering::Relaxed)).filter(|n| *n > 0)
            }

            fn __len__(&self) -> usize {
                self.0.store.len as usize
            }

            fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
                let py = index.py();
                match self.0.records().of(index)? {
                    Wanted::One(id) => {
                        let unwrap: fn(Part) -> Part = $unwrap;
                        object(py, unwrap(self.0.read(py, &[id])?))
                    }
                    Wanted::Many(ids) => object(py, self.0.read(py, &ids)?),
                }
            }

            /// The records of an array or sequence of integers as one batch, in that order.
            fn __getitems__(&self, indices: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
                let ids = self.0.records().many(indices)?;
                object(indices.py(), self.0.read(indices.py(), &ids)?)
            }

            fn __iter__(slf: Bound<'_, Self>) -> Walk {
                let len = slf.get().0.store.len;
                Walk { view: slf.into_any().unbind(), next: 0.into(), len: len as usize }
            }

            fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
                let py = slf.py();
                let bind = &slf.get().0;
                let path = std::path::absolute(&bind.store.path)?;
                let make = py.import(intern!(py, "batchfs._pickle"))?.getattr("view")?;
                let dense = stringify!($name) == "DenseView";
                let args = (path, dense, &bind.store.verify, bind.allocator.clone_ref(py));
                (make, args).into_pyobject(py)
            }

            fn __repr__(&self) -> String {
                let store = &self.0.store;
                format!(
                    "<{} of {} records, {}>",
                    stringify!($name),
                    store.len,
                    store.path.display()
                )
            }
        }
    };
}

view!(
    DenseView,
    item_shape,
    "The records of a `DenseStore`, to be read into an allocator's memory.

`view[i]` is one record, a `DLTensor` of shape `item_shape`. `view[2:5]`, `view[0, 5, 2]`,
`view[[0, 5]]`, `view[array]` and `view[mask]` are batches, `DLTensor`s of shape
`(records, *item_shape)` in the order asked for; a record may come more than once. Negative indices
count from the end. Each read has memory of its own.

Raises `IndexError` out of range, `TypeError` for what is no index, `RuntimeError` when store or
allocator are closed, `StoreError` if a record is damaged, `OSError` if it cannot be read.",
    |part| match part {
        Part::Dense(tensor) => {
            let Tensor { memory, dtype, shape, readonly } = tensor;
            Part::Dense(Tensor { memory, dtype, shape: shape[1..].into(), readonly })
        }
        other => other,
    }
);

view!(
    RaggedView,
    ndim,
    "The records of a `RaggedStore`, to be read into an allocator's memory.

Indexed as a `DenseView` is. Every read is a `RaggedBatch`, one of a single record for an integer.
Raises `OverflowError` if the records have more than 2,147,483,647 values together.",
    |part| part
);

/// Records one after the other.
#[pyclass(frozen, module = "batchfs._native")]
pub struct Walk {
    view: Py<PyAny>,
    next: AtomicUsize,
    len: usize,
}

#[pymethods]
impl Walk {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let at = self.next.fetch_add(1, Ordering::Relaxed);
        if at >= self.len {
            self.next.store(self.len, Ordering::Relaxed);
            return Ok(None);
        }
        self.view.bind(py).get_item(at).map(Some)
    }

    fn __length_hint__(&self) -> usize {
        self.len.saturating_sub(self.next.load(Ordering::Relaxed))
    }
}

/// What `RaggedBatch` has in fast code: its three fields.
#[pyclass(frozen, subclass, weakref, module = "batchfs._native")]
pub struct RaggedFields {
    #[pyo3(get)]
    values: Py<PyAny>,
    #[pyo3(get)]
    cu_seqlens: Py<PyAny>,
    #[pyo3(get)]
    shapes: Py<PyAny>,
}

#[pymethods]
impl RaggedFields {
    #[new]
    fn new(
        values: Bound<'_, PyAny>,
        cu_seqlens: Bound<'_, PyAny>,
        shapes: Bound<'_, PyAny>,
    ) -> PyResult<RaggedFields> {
        let fields = [("values", &values), ("cu_seqlens", &cu_seqlens), ("shapes", &shapes)];
        if !fields.iter().all(|(_, field)| field.is_exact_instance_of::<DLTensor>()) {
            check_fields(&fields)?;
        }
        Ok(RaggedFields {
            values: values.unbind(),
            cu_seqlens: cu_seqlens.unbind(),
            shapes: shapes.unbind(),
        })
    }
}

fn check_fields(fields: &[(&str, &Bound<'_, PyAny>)]) -> PyResult<()> {
    let mut first: Option<Bound<'_, PyAny>> = None;
    for (name, field) in fields {
        let py = field.py();
        let missing = !field.hasattr(intern!(py, "__dlpack__"))?
            || !field.hasattr(intern!(py, "__dlpack_device__"))?;
        if missing {
            return Err(PyTypeError::new_err(format!("ragged {name} must support DLPack")));
        }
        let device = field.call_method0(intern!(py, "__dlpack_device__"))?;
        match &first {
            Some(other) if !other.eq(&device)? => {
                return Err(pyo3::exceptions::PyValueError::new_err(
                    "the three fields of a ragged batch are on one device",
                ));
            }
            Some(_) => {}
            None => first = Some(device),
        }
    }
    Ok(())
}
