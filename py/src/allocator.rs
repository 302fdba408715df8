//! `Allocator` and `Allocation`: where the bytes of batches are put.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use batchfs_region::Pool;
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyTuple};

use crate::gather::Failure;
use crate::room::Room;
use crate::sys::{self, Device, Memory};
use crate::tensor::{DLTensor, Tensor, elements};
use crate::{dtypes, gpu};

const POOL_SIZE: u64 = 256 << 20;
const MINIMUM: usize = 64;

/// What views of an allocator share.
pub struct Source {
    pub pool: Room,
    minimum: usize,
    closed: AtomicBool,
}

impl Source {
    /// The pool, unless the allocator is closed.
    ///
    /// # Errors
    /// `RuntimeError` then.
    pub fn open(&self) -> PyResult<&Room> {
        if self.closed.load(Ordering::Relaxed) {
            return Err(PyRuntimeError::new_err("the allocator is closed"));
        }
        Ok(&self.pool)
    }
}

/// Memory for batches, in one pool for all views that are bound to it.
///
/// `device_type` is `"cpu"`, or `"amdgpu"` with HIP's number of the GPU as `device_id`: then tensors are in
/// memory of the system that the GPU reads, too, and are on DLPack's device `(10, device_id)`. Memory that
/// comes back, when the last tensor in it is gone, is kept for batches of its size class (a power of
/// two), up to `pool_size` bytes (256 MiB) in all; what is in use is not counted.
///
/// Raises `RuntimeError` if `"amdgpu"` cannot be had; `batchfs doctor` says more.
#[pyclass(frozen, subclass, weakref, module = "batchfs")]
pub struct Allocator {
    source: Arc<Source>,
    given: (Option<u64>, Option<u64>),
}

impl Allocator {
    pub fn source(&self) -> &Arc<Source> {
        &self.source
    }

    fn class(&self, size: u64, minimum: usize) -> PyResult<usize> {
        usize::try_from(size)
            .ok()
            .and_then(|size| self.source.pool.class(size.max(minimum)))
            .ok_or_else(|| {
                PyValueError::new_err(format!("{size} bytes are more than there can be"))
            })
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

fn number(value: &Bound<'_, PyAny>) -> PyResult<i32> {
    if value.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err("device_id is an integer"));
    }
    value.extract()
}

#[pymethods]
impl Allocator {
    #[new]
    #[pyo3(signature = (device_type, device_id=0, *, minimum_size=None, pool_size=None))]
    fn new(
        py: Python<'_>,
        device_type: &str,
        #[pyo3(from_py_with = number)] device_id: i32,
        minimum_size: Option<&Bound<'_, PyAny>>,
        pool_size: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Allocator> {
        let given = (size(minimum_size, "minimum_size")?, size(pool_size, "pool_size")?);
        let minimum = usize::try_from(given.0.unwrap_or(0)).unwrap_or(usize::MAX).max(MINIMUM);
        let keep = given.1.unwrap_or(POOL_SIZE);
        let pool = match (device_type.to_lowercase().as_str(), device_id) {
            ("cpu", 0) => Room::Host(Pool::new(keep)),
            ("cpu", _) => return Err(PyValueError::new_err("the device_id of \"cpu\" is 0")),
            ("amdgpu", 0..) => Room::Gpu(gpu::pool(py, device_id, keep)?),
            ("amdgpu", _) => {
                let why = format!("device_id={device_id} is no number of a GPU");
                return Err(PyValueError::new_err(why));
            }
            (other, _) => {
                let why =
                    format!("there is no device_type {other:?}; there are \"cpu\" and \"amdgpu\"");
                return Err(PyValueError::new_err(why));
            }
        };
        let source = Source { pool, minimum, closed: AtomicBool::new(false) };
        Ok(Allocator { source: source.into(), given })
    }

    #[getter]
    fn device_type(&self) -> &'static str {
        match &self.source.pool {
            Room::Host(_) => "cpu",
            Room::Gpu(_) => "amdgpu",
        }
    }

    #[getter]
    fn device_id(&self) -> i32 {
        self.source.pool.device().id
    }

    /// DLPack's `(device type, device id)`.
    #[getter]
    fn device(&self) -> (i32, i32) {
        let Device { kind, id } = self.source.pool.device();
        (kind, id)
    }

    /// What makes the memory of a GPU: its render node. `None` for the processor's.
    #[getter]
    fn node(&self) -> Option<String> {
        match &self.source.pool {
            Room::Host(_) => None,
            Room::Gpu(pool) => Some(pool.node()),
        }
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
        self.class(size, self.source.minimum)
    }

    /// Memory for whoever asks: at least `size` bytes at a multiple of `alignment`, a power of two up
    /// to 4096.
    #[pyo3(signature = (size, alignment=16))]
    fn acquire(
        &self,
        py: Python<'_>,
        size: &Bound<'_, PyAny>,
        alignment: usize,
    ) -> PyResult<Allocation> {
        let size = crate::allocator::size(Some(size), "size")?.unwrap_or(0);
        if !alignment.is_power_of_two() || alignment > 4096 {
            return Err(PyValueError::new_err("alignment is a power of two up to 4096"));
        }
        let pool = self.source.open()?;
        // The heap aligns to 64 bytes, mappings to a page.
        let heap = matches!(pool, Room::Host(_));
        let least = if heap && alignment > MINIMUM { 128 << 10 } else { self.source.minimum };
        let class = self.class(size, self.source.minimum.max(least))?;
        let block = py.detach(|| pool.take(class)).map_err(|e| match e {
            Failure::System(e) => PyMemoryError::new_err(e.to_string()),
            e => e.raised(py),
        })?;
        let (size, alignment) = (block.len(), block.alignment());
        let memory = sys::of_block(block, size);
        let device = memory.device();
        Ok(Allocation { memory: Mutex::new(Some(memory)), device, size, alignment })
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
        let own = slf.get();
        let args = (own.device_type(), own.device_id(), minimum, pool);
        Ok((make, args).into_pyobject(py)?.into_any())
    }

    fn __repr__(&self) -> String {
        let (kind, id) = (self.device_type(), self.device_id());
        format!("Allocator('{kind}', {id}, pool_size={})", self.pool_size())
    }
}

/// Memory of an [`Allocator`] that its holder alone has.
///
/// It goes back when it is closed or forgotten, and no tensor of it is left.
#[pyclass(frozen, weakref, module = "batchfs")]
pub struct Allocation {
    memory: Mutex<Option<Memory>>,
    device: Device,
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
        (self.device.kind, self.device.id)
    }

    /// Its address for a GPU; 0 in the processor's memory, as that has no other.
    #[getter]
    fn device_pointer(&self) -> PyResult<usize> {
        if self.device == Device::CPU {
            return Ok(0);
        }
        Ok(self.memory()?.device_at() as usize)
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
