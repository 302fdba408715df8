//! Records of different shapes, copied into the three arrays of a ragged batch.

use batchfs_region::{Block, Pool};
use batchfs_store::DType;
use numpy::PyUntypedArray;
use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::sys;
use crate::tensor::{DLTensor, Tensor};

fn block(bytes: usize) -> PyResult<Block> {
    Ok(Pool::new(0).take(bytes)?)
}

/// Packs NumPy arrays of one dtype and number of axes: values, cu_seqlens and shapes.
///
/// Raises `TypeError` for what is no array, `ValueError` if they do not go together or are 0-d,
/// `OverflowError` for more values than int32 can count.
#[pyfunction]
pub fn pack(records: Vec<Bound<'_, PyAny>>) -> PyResult<(DLTensor, DLTensor, DLTensor)> {
    let tensors: Vec<Tensor> = records.iter().map(record).collect::<PyResult<_>>()?;
    let Some(first) = tensors.first() else {
        return Err(PyValueError::new_err("a ragged batch has at least one record"));
    };
    let (dtype, ndim) = (first.dtype, first.shape.len());
    if ndim == 0 {
        return Err(PyValueError::new_err("a ragged record has at least one axis"));
    }
    for (i, tensor) in tensors.iter().enumerate() {
        if tensor.dtype != dtype || tensor.shape.len() != ndim {
            return Err(PyValueError::new_err(format!(
                "record {i} is {} with {} axes, the first one {dtype} with {ndim}",
                tensor.dtype,
                tensor.shape.len()
            )));
        }
    }
    let bytes: usize = tensors.iter().map(|t| t.memory.len()).sum();
    if i32::try_from(bytes / dtype.size()).is_err() {
        return Err(PyOverflowError::new_err(format!(
            "{} values are more than cu_seqlens (int32) can count",
            bytes / dtype.size()
        )));
    }

    let rows = tensors.len();
    let (mut values, mut cu, mut shapes) =
        (block(bytes)?, block((rows + 1) * 4)?, block(rows * ndim * 8)?);
    let (mut at, mut end) = (0, 0i32);
    cu.bytes_mut()[..4].copy_from_slice(&end.to_le_bytes());
    for (i, tensor) in tensors.iter().enumerate() {
        let from = tensor.memory.bytes();
        values.bytes_mut()[at..at + from.len()].copy_from_slice(from);
        at += from.len();
        end += (from.len() / dtype.size()) as i32;
        cu.bytes_mut()[4 * (i + 1)..4 * (i + 2)].copy_from_slice(&end.to_le_bytes());
        for (j, n) in tensor.shape.iter().enumerate() {
            let place = 8 * (i * ndim + j);
            shapes.bytes_mut()[place..place + 8].copy_from_slice(&n.to_le_bytes());
        }
    }
    let tensor = |block: Block, bytes, dtype, shape: Vec<i64>| {
        let memory = sys::of_block(block.into(), bytes);
        DLTensor(Tensor { memory, dtype, shape: shape.into(), readonly: false })
    };
    let (n, d) = (rows as i64, ndim as i64);
    Ok((
        tensor(values, bytes, dtype, vec![i64::from(end)]),
        tensor(cu, (rows + 1) * 4, DType::Int32, vec![n + 1]),
        tensor(shapes, rows * ndim * 8, DType::UInt64, vec![n, d]),
    ))
}

fn record(value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let array = value.cast::<PyUntypedArray>().map_err(|_| {
        PyTypeError::new_err(format!("a ragged record is a NumPy array, not {}", value.get_type()))
    })?;
    match sys::of_array(array) {
        Err(e) if e.is_instance_of::<PyValueError>(value.py()) => {
            let made = value.py().import("numpy")?.call_method1("ascontiguousarray", (array,))?;
            sys::of_array(made.cast::<PyUntypedArray>()?)
        }
        made => made,
    }
}
