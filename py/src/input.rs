//! Tensors of others that are taken in: what is appended, and ragged batches.

use batchfs_store::DType;
use numpy::PyUntypedArray;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyMemoryView;

use crate::sys;
use crate::tensor::{DLTensor, Tensor};

/// The memory of an append's input.
///
/// DLPack, also of a GPU of AMD's, or an array, or a buffer that is read-only.
pub fn input(value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    if let Ok(tensor) = value.cast::<DLTensor>() {
        return tensor.get().0.on_host(value.py());
    }
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return sys::of_array(array);
    }
    let py = value.py();
    let buffer = || -> PyResult<Tensor> {
        let view = PyMemoryView::from(value)?;
        if !view.getattr(intern!(py, "readonly"))?.is_truthy()? {
            return Err(PyTypeError::new_err(
                "a writable buffer is no input; pass a DLPack tensor, such as numpy.frombuffer(…)",
            ));
        }
        let array = py.import(intern!(py, "numpy"))?.call_method1("asarray", (view,))?;
        sys::of_array(array.cast::<PyUntypedArray>()?)
    };
    if value.hasattr(intern!(py, "__dlpack__"))? {
        return match sys::import(value) {
            Err(e) if e.is_instance_of::<PyBufferError>(py) => buffer().map_err(|_| e),
            made => made,
        };
    }
    buffer().map_err(|e| {
        if e.value(py).to_string().contains("writable") {
            return e;
        }
        PyTypeError::new_err(format!(
            "{} is no input: it has neither DLPack nor a read-only buffer",
            value.get_type()
        ))
    })
}

/// Numbers of a C-ordered tensor of 4 or 8 bytes each, as u64.
pub fn numbers(tensor: &Tensor, name: &str, want: DType) -> Result<Vec<u64>, String> {
    // Shapes of 32 bits are what loaderx 2.8.19 gives.
    let fits = tensor.dtype == want || want == DType::UInt64 && tensor.dtype == DType::UInt32;
    if !fits {
        return Err(format!("{name} are {want}, not {}", tensor.dtype));
    }
    let bytes = tensor.memory.bytes();
    Ok(match tensor.dtype.size() {
        4 => bytes
            .chunks_exact(4)
            .map(|b| i64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])) as u64)
            .map(|n| if tensor.dtype == DType::UInt32 { n & 0xffff_ffff } else { n })
            .collect(),
        _ => bytes
            .chunks_exact(8)
            .map(|b| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
            .collect(),
    })
}

/// Whether the offsets begin at 0, span all values and agree with each record's shape.
pub fn check_offsets(
    cu: &[u64],
    shapes: &[u64],
    rows: usize,
    ndim: usize,
    values: i64,
) -> Result<(), String> {
    if cu.len() != rows + 1 {
        return Err(format!("{rows} records have {} cu_seqlens, not {}", rows + 1, cu.len()));
    }
    if cu[0] != 0 {
        return Err(format!("cu_seqlens begin with 0, not {}", cu[0] as i64));
    }
    for (i, (ends, shape)) in cu.windows(2).zip(shapes.chunks_exact(ndim)).enumerate() {
        let len = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
        if ends[1] as i64 >= ends[0] as i64 && len == Some(ends[1] - ends[0]) {
            continue;
        }
        return Err(format!(
            "record {i} goes from {} to {}, which is not its shape {shape:?}",
            ends[0] as i64, ends[1] as i64
        ));
    }
    if cu[rows] as i64 != values {
        return Err(format!(
            "cu_seqlens end at {}, but there are {values} values",
            cu[rows] as i64
        ));
    }
    Ok(())
}

/// A tensor of any maker, in C order, as a `DLTensor` for the processor: it shares the memory, but where
/// a GPU's has to be copied.
#[pyfunction]
pub fn as_tensor(value: &Bound<'_, PyAny>) -> PyResult<DLTensor> {
    input(value).map(DLTensor)
}

/// The records of a ragged batch, each in its shape.
#[pyfunction]
pub fn split(
    values: &Bound<'_, PyAny>,
    cu_seqlens: &Bound<'_, PyAny>,
    shapes: &Bound<'_, PyAny>,
) -> PyResult<Vec<DLTensor>> {
    let (cu, shapes) = (input(cu_seqlens)?, input(shapes)?);
    // Tensors of ours stay where they are; only offsets and shapes are read.
    let ours = values.cast::<DLTensor>().ok();
    let other = if ours.is_none() { Some(input(values)?) } else { None };
    let Some(values) = ours.map(|t| &t.get().0).or(other.as_ref()) else {
        return Err(PyTypeError::new_err("values are a tensor"));
    };
    let wrong = |why: String| PyValueError::new_err(why);
    let (rows, ndim) = match &*shapes.shape {
        [rows, ndim] if *ndim > 0 => (*rows as usize, *ndim as usize),
        other => return Err(wrong(format!("shapes are (records, axes), not {other:?}"))),
    };
    let cu = numbers(&cu, "cu_seqlens", DType::Int32).map_err(wrong)?;
    let shapes = numbers(&shapes, "shapes", DType::UInt64).map_err(wrong)?;
    check_offsets(&cu, &shapes, rows, ndim, values.shape.first().copied().unwrap_or(0))
        .map_err(wrong)?;
    let each = cu.iter().zip(shapes.chunks_exact(ndim)).map(|(from, shape)| {
        let shape = shape.iter().map(|n| *n as i64).collect();
        values.part(*from as usize, shape).map(DLTensor)
    });
    each.collect::<Option<_>>().ok_or_else(|| wrong("the records do not lie within values".into()))
}
