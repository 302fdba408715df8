//! NumPy arrays: their memory, and those of indices.

use std::ptr::NonNull;
use std::sync::Arc;

use batchfs_store::DType;
use numpy::{PyArray1, PyArrayDescrMethods, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;

use super::memory::Memory;
use crate::tensor::Tensor;

/// The memory of an array, of whatever dtype, also those that NumPy's own DLPack does not export.
///
/// # Errors
/// `TypeError` for dtypes that are none of ours, `ValueError` if it is not C-contiguous.
pub fn of_array(array: &Bound<'_, PyUntypedArray>) -> PyResult<Tensor> {
    let py = array.py();
    let descr = array.dtype();
    let name: String = descr.getattr(intern!(py, "name"))?.extract()?;
    let plain = !descr.has_fields() && !descr.has_subarray() && !descr.has_object();
    let dtype: DType = name
        .parse()
        .ok()
        .filter(|_| plain && descr.is_native_byteorder() != Some(false))
        .ok_or_else(|| PyTypeError::new_err(format!("dtype {descr} is none of batchfs.dtypes")))?;
    if !array.is_c_contiguous() {
        return Err(PyValueError::new_err("the array is not C-contiguous"));
    }
    let shape: Box<[i64]> = array.shape().iter().map(|n| *n as i64).collect();
    let bytes = array.len() * dtype.size();
    // SAFETY: a live array object.
    let (data, flags) = unsafe {
        let raw = array.as_array_ptr();
        ((*raw).fields.data.cast::<u8>(), (*raw).fields.flags)
    };
    let at = NonNull::new(data).unwrap_or(NonNull::dangling());
    let keep: Py<PyAny> = array.clone().into_any().unbind();
    // SAFETY: a C-contiguous array has its elements there, as long as it lives. NumPy frees no
    // memory that others refer to, but by `resize(refcheck=False)`.
    let memory = unsafe { Memory::new(at, bytes, Arc::new(keep)) };
    let readonly = flags & numpy::npyffi::NPY_ARRAY_WRITEABLE == 0;
    Ok(Tensor { memory, dtype, shape, readonly })
}

/// The numbers of a contiguous array, copied.
pub fn indices<T: numpy::Element + Copy>(array: &Bound<'_, PyArray1<T>>) -> Vec<T> {
    if !array.is_c_contiguous() {
        return array.to_owned_array().to_vec();
    }
    // SAFETY: contiguous, and nobody else runs Python code meanwhile but where there is no GIL;
    // there the caller must not write to indices while they are used.
    unsafe { array.as_slice() }.map(<[T]>::to_vec).unwrap_or_default()
}

/// Fills an array of our own making.
pub fn indices_mut(array: &Bound<'_, PyArray1<u64>>, fill: impl FnOnce(&mut [u64])) {
    // SAFETY: made by us, contiguous; lent out read-only by contract until the next call.
    if let Ok(slice) = unsafe { array.as_slice_mut() } {
        fill(slice);
    }
}
