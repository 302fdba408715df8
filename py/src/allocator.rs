//! `Allocator` and `Allocation`: where the bytes of batches are put.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use batchfs_region::Pool;
use pyo3::exceptions::{
    PyMemoryError, PyNotImplementedError, PyRuntimeError, PyTypeError, PyValueError,
};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};

use crate::dtypes;
use crate::sys::{self, Device, Memory};
use crate::tensor::{DLTensor, Tensor, elements};

const POOL_SIZE: u64 = 256 << 20;
const MINIMUM: usize = 64;

/// What views of an allocator share.
pub struct Source {
    pub pool: Pool,
    minimum: usize,
    closed: AtomicBool,
}

impl Source {
    /// The pool, unless the allocator is closed.
    ///
    /// # Errors
    /// `RuntimeError` then.
    pub fn open(&self) -> PyResult<&Pool> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(PyRuntimeError::new_err("the allocator is closed"));
        }
        Ok(&self.pool)
    }
}

/// Memory for batches, in one pool for all views that are bound to it.
///
/// `device_type` is `"cpu"`. Memory that comes back, when the last tensor in it is gone, is kept for
/// batches of its size class (a power of two), up to `pool_size` bytes (256 MiB) in all; what is in
/// use is not counted.
#[pyclass(frozen, subclass, weakref, module = "batchfs")]
pub struct Allocator {
    source: Arc<Source>,
    given: (Option<u64>, Option<u64>),
}

impl Allocator {
    pub fn source(&self) -> &Arc<Source> {
        &self.source
    }
}

fn size(value: Option<&Bound<'_, PyAny>>, name: &str) -> PyResult<Option<u64>> {
    let Some(value) = value else { return Ok(None) };
    if value.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!("{name} is an integer")));
    }
    let n: i128 = value.extract()?;
    u64::try_from(n)
        .map(Some)
        .map_err(|_| PyValueError::new_err(format!("{name}={n} is no size: it is not negative")))
}

#[pymethods]
impl Allocator {
    #[new]
    #[pyo3(signature = (device_type, device_id=0, *, minimum_size=None, pool_size=None))]
    fn new(
        device_type: &str,
        device_id: i64,
        minimum_size: Option<&Bound<'_, PyAny>>,
        pool_size: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Allocator> {
        match device_type.to_lowercase().as_str() {
            "cpu" if device_id == 0 => {}
            "cpu" => return Err(PyValueError::new_err("the device_id of \"cpu\" is 0")),
            "amdgpu" => {
                return Err(PyNotImplementedError::new_err(
                    "\"amdgpu\" is not there yet; take \"cpu\" and copy the batch",
                ));
            }
            other => {
                let why = format!("there is no device_type {other:?}; there is \"cpu\"");
                return Err(PyValueError::new_err(why));
            }
        }
        let given = (size(minimum_size, "minimum_size")?, size(pool_size, "pool_size")?);
        let minimum = usize::try_from(given.0.unwrap_or(0)).unwrap_or(usize::MAX).max(MINIMUM);
        let pool = Pool::new(given.1.unwrap_or(POOL_SIZE));
        let source = Source { pool, minimum, closed: AtomicBool::new(false) };
        Ok(Allocator { source: source.into(), given })
    }

    #[getter]
    fn device_type(&self) -> &'static str {
        "cpu"
    }

    #[getter]
    fn device_id(&self) -> i32 {
        Device::CPU.id
    }

    /// DLPack's `(device type, device id)`.
    #[getter]
    fn device(&self) -> (i32, i32) {
        (Device::CPU.kind, Device::CPU.id)
    }

    /// The most bytes that are kept for later batches.
    #[getter]
    fn pool_size(&self) -> u64 {
        self.source.pool.keeps()
    }

    /// The smallest allocation, in bytes.
    #[getter]
    fn minimum_size(&self) -> usize {
        self.source.minimum
    }

    /// Bytes that are kept for later batches now.
    #[getter]
    fn cached_bytes(&self) -> u64 {
        self.source.pool.cached()
    }

    /// The bytes that an allocation of `size` bytes takes: the next power of two.
    fn size_class(&self, size: &Bound<'_, PyAny>) -> PyResult<usize> {
        let size = crate::allocator::size(Some(size), "size")?.unwrap_or(0);
        class(size, self.source.minimum)
    }

    /// Memory for whoever asks: at least `size` bytes at a multiple of `alignment`, a power of two up
    /// to 4096.
    #[pyo3(signature = (size, alignment=16))]
    fn acquire(&self, size: &Bound<'_, PyAny>, alignment: usize) -> PyResult<Allocation> {
        let size = crate::allocator::size(Some(size), "size")?.unwrap_or(0);
        if !alignment.is_power_of_two() || alignment > 4096 {
            return Err(PyValueError::new_err("alignment is a power of two up to 4096"));
        }
        let pool = self.source.open()?;
        // The heap aligns to 64 bytes, mappings to a page.
        let least = if alignment > MINIMUM { 128 << 10 } else { self.source.minimum };
        let class = class(size, self.source.minimum.max(least))?;
        let block = pool.take(class).map_err(|e| PyMemoryError::new_err(e.to_string()))?;
        let (size, alignment) = (block.len(), block.alignment());
        let memory = sys::of_block(block, size);
        Ok(Allocation { memory: Mutex::new(Some(memory)), size, alignment })
    }

    /// Frees what is kept, and gives nothing from now on. Tensors in use stay valid.
    fn close(&self) {
        self.source.closed.store(true, Ordering::Relaxed);
        self.source.pool.close();
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, _exc: &Bound<'_, PyTuple>) {
        self.close();
    }

    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let make = py.import("batchfs._pickle")?.getattr("allocator")?;
        let (minimum, pool) = slf.get().given;
        let args = ("cpu", 0, minimum, pool);
        Ok((make, args).into_pyobject(py)?.into_any())
    }

    fn __repr__(&self) -> String {
        format!("Allocator('cpu', 0, pool_size={})", self.pool_size())
    }
}

fn class(size: u64, minimum: usize) -> PyResult<usize> {
    usize::try_from(size)
        .ok()
        .and_then(|size| Pool::class(size.max(minimum)))
        .ok_or_else(|| PyValueError::new_err(format!("{size} bytes are more than there can be")))
}

/// Memory of an [`Allocator`] that its holder alone has.
///
/// It goes back when it is closed or forgotten, and no tensor of it is left.
#[pyclass(frozen, weakref, module = "batchfs")]
pub struct Allocation {
    memory: Mutex<Option<Memory>>,
    size: usize,
    alignment: usize,
}

impl Allocation {
    fn memory(&self) -> PyResult<Memory> {
        let memory = self.memory.lock().unwrap_or_else(PoisonError::into_inner).clone();
        memory.ok_or_else(|| PyRuntimeError::new_err("the allocation is closed"))
    }
}

#[pymethods]
impl Allocation {
    /// Bytes.
    #[getter]
    fn size(&self) -> usize {
        self.size
    }

    /// What its address is a multiple of.
    #[getter]
    fn alignment(&self) -> usize {
        self.alignment
    }

    /// DLPack's `(device type, device id)`.
    #[getter]
    fn device(&self) -> (i32, i32) {
        (Device::CPU.kind, Device::CPU.id)
    }

    /// Its address for the device; 0, as the processor has no other.
    #[getter]
    fn device_pointer(&self) -> usize {
        0
    }

    /// Its address in this process.
    #[getter]
    fn owner_base_ptr(&self) -> PyResult<usize> {
        Ok(self.memory()?.at() as usize)
    }

    /// A tensor in it, `offset` bytes from its start.
    #[pyo3(signature = (dtype, shape, offset=0))]
    fn view(
        &self,
        py: Python<'_>,
        dtype: &Bound<'_, PyAny>,
        shape: Vec<i64>,
        offset: usize,
    ) -> PyResult<DLTensor> {
        let memory = self.memory()?;
        let normal = py.import("batchfs.dtypes")?.call_method1("_name", (dtype,))?;
        let dtype = dtypes::named(&normal.extract::<String>()?)?;
        let bytes = elements(&shape).and_then(|n| n.checked_mul(dtype.size()));
        let part = bytes.and_then(|n| memory.part(offset, n)).ok_or_else(|| {
            PyValueError::new_err(format!(
                "{dtype} {shape:?} at byte {offset} is more than the allocation's {} bytes",
                self.size
            ))
        })?;
        if !offset.is_multiple_of(dtype.size().min(8)) {
            return Err(PyValueError::new_err(format!("byte {offset} is not aligned for {dtype}")));
        }
        Ok(DLTensor(Tensor { memory: part, dtype, shape: shape.into(), readonly: false }))
    }

    /// Lets the memory go; tensors of it keep it.
    fn close(&self) {
        let closed = self.memory.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(closed);
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_exc))]
    fn __exit__(&self, _exc: &Bound<'_, PyTuple>) {
        self.close();
    }
}
