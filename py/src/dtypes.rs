//! Dtypes between Rust and Python: there they are NumPy's and those of ml_dtypes.

use batchfs_store::DType;
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

static OBJECTS: PyOnceLock<Vec<Py<PyAny>>> = PyOnceLock::new();

/// The object for a dtype in `batchfs.dtypes`.
pub fn object(py: Python<'_>, dtype: DType) -> PyResult<Bound<'_, PyAny>> {
    let objects = OBJECTS.get_or_try_init(py, || {
        let module = py.import("batchfs.dtypes")?;
        DType::ALL.iter().map(|d| module.getattr(d.name()).map(Bound::unbind)).collect()
    })?;
    let found = DType::ALL.iter().position(|d| *d == dtype).and_then(|i| objects.get(i));
    found.map(|o| o.bind(py).clone()).ok_or_else(|| PyTypeError::new_err(dtype.name()))
}

/// A dtype by its name in `batchfs.dtypes`.
pub fn named(name: &str) -> PyResult<DType> {
    name.parse().map_err(|e: batchfs_store::UnknownDType| PyTypeError::new_err(e.to_string()))
}
