//! Arrow's C data interface: arrays over a tensor's memory.

use std::panic::AssertUnwindSafe;
use std::ptr::NonNull;
use std::sync::Arc;

use arrow_buffer::{Buffer, MutableBuffer};
use arrow_data::ArrayData;
use arrow_data::ffi::FFI_ArrowArray;
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{DataType, Field};
use batchfs_batch::arrow_type;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::tensor::Tensor;

/// The tensor as an array of its first axis; further axes are lists of fixed size. The same memory.
fn data(tensor: &Tensor) -> Result<ArrayData, PyErr> {
    let invalid = |e: arrow_schema::ArrowError| PyValueError::new_err(e.to_string());
    let Some(item) = arrow_type(tensor.dtype) else {
        let why = format!("Arrow has no {}; take .numpy() or DLPack", tensor.dtype);
        return Err(PyTypeError::new_err(why));
    };
    let Some((rows, axes)) = tensor.shape.split_first() else {
        return Err(PyTypeError::new_err("a 0-d tensor is no Arrow array"));
    };
    let memory = tensor.memory.clone();
    let bytes = memory.len();
    let buffer = match NonNull::new(memory.at()) {
        // SAFETY: so many bytes lie there as long as the owner lives, which the buffer keeps.
        Some(at) if bytes > 0 => unsafe {
            Buffer::from_custom_allocation(at, bytes, Arc::new(AssertUnwindSafe(memory)))
        },
        _ => MutableBuffer::new(0).into(),
    };
    let elements = bytes / tensor.dtype.size();
    let mut made =
        ArrayData::builder(item).len(elements).add_buffer(buffer).build().map_err(invalid)?;
    let mut count = elements;
    for &size in axes.iter().rev() {
        let too_long = || PyValueError::new_err(format!("{size} is too long for an Arrow list"));
        let size = i32::try_from(size).map_err(|_| too_long())?;
        count = count.checked_div(size as usize).unwrap_or(*rows as usize);
        let field = Field::new("item", made.data_type().clone(), false);
        let list = DataType::FixedSizeList(Arc::new(field), size);
        made = ArrayData::builder(list).len(count).add_child_data(made).build().map_err(invalid)?;
    }
    Ok(made)
}

/// What `__arrow_c_array__` gives: capsules of a schema and of an array.
///
/// # Errors
/// `TypeError` for dtypes that Arrow does not have.
pub fn arrow_capsules<'py>(
    py: Python<'py>,
    tensor: &Tensor,
) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
    let data = data(tensor)?;
    let schema = FFI_ArrowSchema::try_from(data.data_type());
    let schema = schema.map_err(|e| PyValueError::new_err(e.to_string()))?;
    // Both release what they hold when dropped, unless a consumer has taken it out.
    let array = FFI_ArrowArray::new(&data);
    Ok((
        PyCapsule::new_with_value(py, schema, c"arrow_schema")?,
        PyCapsule::new_with_value(py, array, c"arrow_array")?,
    ))
}
