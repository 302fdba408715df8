//! `DLTensor`: memory with a dtype and a shape, for DLPack.

use batchfs_region::Pool;
use batchfs_store::DType;
use pyo3::exceptions::{PyBufferError, PyIndexError, PyOverflowError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PySlice, PyTuple};

use crate::dtypes;
use crate::sys::{self, Device, Memory};

/// Elements in memory, in C order.
pub struct Tensor {
    pub memory: Memory,
    pub dtype: DType,
    pub shape: Box<[i64]>,
    pub readonly: bool,
}

/// The product of a shape, if there is one.
pub fn elements(shape: &[i64]) -> Option<usize> {
    shape.iter().try_fold(1usize, |n, d| n.checked_mul(usize::try_from(*d).ok()?))
}

impl Tensor {
    /// Strides in elements, C order.
    pub fn strides(&self) -> Box<[i64]> {
        let mut strides: Box<[i64]> = self.shape.iter().map(|_| 1).collect();
        for i in (1..strides.len()).rev() {
            strides[i - 1] = strides[i].saturating_mul(self.shape[i].max(1));
        }
        strides
    }

    /// Elements `from..from + shape.product()` as a tensor of that shape; the same memory.
    pub fn part(&self, from: usize, shape: Box<[i64]>) -> Option<Tensor> {
        let size = self.dtype.size();
        let bytes = elements(&shape)?.checked_mul(size)?;
        let memory = self.memory.part(from.checked_mul(size)?, bytes)?;
        Some(Tensor { memory, dtype: self.dtype, shape, readonly: self.readonly })
    }

    /// A copy in memory of its own.
    fn copy(&self) -> std::io::Result<Tensor> {
        let bytes = self.memory.bytes();
        // Of a pool that keeps nothing.
        let mut block = Pool::new(0).take(bytes.len())?;
        block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let memory = sys::of_block(block.into(), bytes.len());
        Ok(Tensor { memory, dtype: self.dtype, shape: self.shape.clone(), readonly: false })
    }

    /// The same for the processor, when devices are done with it.
    ///
    /// # Errors
    /// `RuntimeError` if a device tells of an error.
    pub fn on_host(&self, py: Python<'_>) -> PyResult<Tensor> {
        let memory = if self.memory.device() == Device::CPU {
            Ok(self.memory.clone())
        } else {
            py.detach(|| self.memory.on_host())
        };
        let memory = memory.map_err(|e| crate::errors::gpu(&e.into()))?;
        let (dtype, shape) = (self.dtype, self.shape.clone());
        Ok(Tensor { memory, dtype, shape, readonly: self.readonly })
    }

    fn rows(&self) -> PyResult<i64> {
        self.shape.first().copied().ok_or_else(|| PyTypeError::new_err("a 0-d tensor has no len()"))
    }
}

/// A tensor in this process's memory, or in memory that a GPU sees, too, that any DLPack consumer takes without a copy:
/// `numpy.from_dlpack(t)`, `torch.from_dlpack(t)`, `jax.dlpack.from_dlpack(t)`.
///
/// It has no arithmetic and no conversions of its own. `t[i]` and `t[a:b]` share its memory, which
/// lives as long as any tensor or array that was made from it.
#[pyclass(frozen, weakref, name = "DLTensor", module = "batchfs.store")]
pub struct DLTensor(pub Tensor);

#[pymethods]
impl DLTensor {
    /// The shape, a tuple.
    #[getter]
    fn shape<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        PyTuple::new(py, &self.0.shape)
    }

    /// The dtype, one of `batchfs.dtypes`.
    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtypes::object(py, self.0.dtype)
    }

    /// Axes.
    #[getter]
    fn ndim(&self) -> usize {
        self.0.shape.len()
    }

    /// Elements.
    #[getter]
    fn size(&self) -> usize {
        self.0.memory.len() / self.0.dtype.size()
    }

    /// Bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.0.memory.len()
    }

    /// DLPack's `(device type, device id)`.
    #[getter]
    fn device(&self) -> (i32, i32) {
        let device = self.0.memory.device();
        (device.kind, device.id)
    }

    /// Whether consumers are told not to write to it.
    #[getter]
    fn readonly(&self) -> bool {
        self.0.readonly
    }

    fn __len__(&self) -> PyResult<usize> {
        self.0.rows().map(|n| n as usize)
    }

    fn __getitem__(&self, index: &Bound<'_, PyAny>) -> PyResult<DLTensor> {
        let rows = self.0.rows()?;
        let each = elements(&self.0.shape[1..]).unwrap_or(0);
        let (from, shape) = if let Ok(slice) = index.cast::<PySlice>() {
            let cut = slice.indices(rows as isize)?;
            if cut.step != 1 {
                return Err(PyValueError::new_err(
                    "a slice of a DLTensor has step 1; take numpy.from_dlpack(t) for others",
                ));
            }
            let mut shape = self.0.shape.clone();
            shape[0] = cut.slicelength as i64;
            (cut.start.max(0) as usize, shape)
        } else {
            let outside =
                || PyIndexError::new_err(format!("index {index} is out of range, of {rows}"));
            let i: i64 = index.extract().map_err(|e: PyErr| {
                if e.is_instance_of::<PyOverflowError>(index.py()) { outside() } else { e }
            })?;
            let at = if i < 0 { i + rows } else { i };
            if !(0..rows).contains(&at) {
                return Err(outside());
            }
            (at as usize, self.0.shape[1..].into())
        };
        let part = self.0.part(from * each, shape);
        part.map(DLTensor).ok_or_else(|| PyIndexError::new_err("out of range"))
    }

    /// DLPack's own method, for consumers. `max_version` (1, x) gives a versioned capsule, `None` and
    /// (0, x) one of the old kind, which cannot say that memory is read-only: such a tensor is then
    /// `BufferError`, unless `copy=True`.
    ///
    /// A tensor on a GPU may be asked for as the processor's (`dl_device=(1, 0)`), which waits for the
    /// GPU. It was filled before it was there, so that no `stream` has to wait for it.
    #[pyo3(signature = (*, stream=None, max_version=None, dl_device=None, copy=None))]
    fn __dlpack__<'py>(
        &self,
        py: Python<'py>,
        stream: Option<i64>,
        max_version: Option<(u32, u32)>,
        dl_device: Option<(i32, i32)>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let own = self.device();
        let cpu = (Device::CPU.kind, Device::CPU.id);
        let wanted = dl_device.unwrap_or(own);
        if wanted != own && wanted != cpu {
            return Err(PyBufferError::new_err(format!(
                "this tensor is on DLPack device {own:?} and cannot be exported to {wanted:?}"
            )));
        }
        if wanted != cpu && matches!(stream, Some(1 | 2)) {
            return Err(PyBufferError::new_err(
                "ROCm has no streams 1 and 2; 0 is the default stream, -1 asks for no wait",
            ));
        }
        let minor = match max_version {
            None | Some((0, _)) => None,
            Some((1, minor)) => Some(minor.min(1)),
            Some(_) => Some(1),
        };
        if copy == Some(true) {
            if wanted != cpu {
                return Err(PyBufferError::new_err(
                    "a copy on the GPU is the consumer's to make; a copy for the processor is dl_device=(1, 0)",
                ));
            }
            let host = self.0.on_host(py)?;
            let copied = py.detach(|| host.copy())?;
            return sys::export(py, &copied, minor, true);
        }
        if self.0.readonly && minor.is_none() {
            return Err(PyBufferError::new_err(
                "this tensor is read-only, which the consumer's old DLPack cannot say; ask with copy=True or max_version=(1, 0)",
            ));
        }
        if wanted != own {
            return sys::export(py, &self.0.on_host(py)?, minor, false);
        }
        sys::export(py, &self.0, minor, false)
    }

    /// Arrow's own method, for consumers such as `pyarrow.array(t)`: an array of the first axis, in
    /// which further ones are lists of fixed size. Without a copy, and read-only there.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // Casts are the consumer's to do.
        let _ = requested_schema;
        sys::arrow_capsules(py, &self.0)
    }

    fn __dlpack_device__(&self) -> (i32, i32) {
        self.device()
    }

    /// The tensor as a NumPy array, without a copy, of every dtype and with every NumPy.
    fn numpy<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let made = py.import(intern!(py, "batchfs._convert"))?;
        made.call_method1(intern!(py, "to_numpy"), (slf,))
    }

    /// The tensor as a PyTorch tensor, without a copy, of every dtype that PyTorch has.
    fn torch<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let py = slf.py();
        let made = py.import(intern!(py, "batchfs._convert"))?;
        made.call_method1(intern!(py, "to_torch"), (slf,))
    }

    #[getter]
    fn _address(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.0.on_host(py)?.memory.at() as usize)
    }

    /// The same bytes as another dtype of that size, for consumers that lack this one.
    fn _as(&self, name: &str) -> PyResult<DLTensor> {
        let dtype = dtypes::named(name)?;
        if dtype.size() != self.0.dtype.size() {
            return Err(PyTypeError::new_err(format!(
                "{name} has another size than {}",
                self.0.dtype
            )));
        }
        let Tensor { memory, shape, readonly, .. } = &self.0;
        let (memory, shape) = (memory.clone(), shape.clone());
        Ok(DLTensor(Tensor { memory, dtype, shape, readonly: *readonly }))
    }

    fn __repr__(&self) -> String {
        let shape: Vec<_> = self.0.shape.iter().map(ToString::to_string).collect();
        let comma = if shape.len() == 1 { "," } else { "" };
        format!("DLTensor(shape=({}{comma}), dtype={})", shape.join(", "), self.0.dtype)
    }
}
