//! Records into tensors.

use batchfs_batch::gather_records;
use batchfs_store::{DType, Layout, Stream};
use pyo3::exceptions::{PyMemoryError, PyOverflowError};
use pyo3::prelude::*;

use crate::errors;
use crate::room::{Block, Room};
use crate::sys::{self, Memory};
use crate::tensor::Tensor;

/// Arrays start at multiples of this many bytes, as in the files of a mount.
const ALIGN: usize = 64;
/// Less than this is gathered by the calling thread without asking whether others would help.
const WORTH_A_POOL: usize = 512 << 10;

/// Why records cannot be had. Turned into an exception where the interpreter is.
#[derive(Debug)]
pub enum Failure {
    /// Reading failed.
    Store(batchfs_store::Error),
    /// There is no memory, or no thread.
    System(std::io::Error),
    /// The GPU, or its memory, refuses.
    Gpu(batchfs_dmabuf::Error),
    /// More values than cu_seqlens can count.
    Overflow(u64),
}

impl From<batchfs_dmabuf::Error> for Failure {
    fn from(e: batchfs_dmabuf::Error) -> Failure {
        Failure::Gpu(e)
    }
}

impl From<batchfs_store::Error> for Failure {
    fn from(e: batchfs_store::Error) -> Failure {
        Failure::Store(e)
    }
}

impl From<std::io::Error> for Failure {
    fn from(e: std::io::Error) -> Failure {
        Failure::System(e)
    }
}

impl Failure {
    /// The exception that it is in Python.
    pub fn raised(&self, py: Python<'_>) -> PyErr {
        match self {
            Failure::Store(e) => errors::store(py, e),
            Failure::System(e) if e.kind() == std::io::ErrorKind::OutOfMemory => {
                PyMemoryError::new_err(e.to_string())
            }
            Failure::System(e) => PyErr::from(std::io::Error::new(e.kind(), e.to_string())),
            Failure::Gpu(e) => errors::gpu(e),
            Failure::Overflow(values) => PyOverflowError::new_err(format!(
                "the records have {values} values together, more than cu_seqlens (int32) can count; take fewer at a time"
            )),
        }
    }
}

/// Records of one stream.
pub enum Part {
    /// One array, `(records, *item_shape)`.
    Dense(Tensor),
    /// `values`, `cu_seqlens` and `shapes`.
    Ragged(Box<[Tensor; 3]>),
}

/// The records `ids`, which are in range, in memory of `pool`. With `split` large ones are copied by
/// several threads.
///
/// # Errors
/// See [`Failure`].
pub fn gather(stream: &dyn Stream, ids: &[u64], pool: &Room, split: bool) -> Result<Part, Failure> {
    let schema = stream.schema();
    let count = ids.len() as i64;
    match &schema.layout {
        Layout::Dense { item_shape } => {
            let bytes = schema
                .item_bytes()
                .and_then(|n| usize::try_from(n).ok())
                .and_then(|n| n.checked_mul(ids.len()))
                .ok_or(std::io::ErrorKind::OutOfMemory)
                .map_err(std::io::Error::from)?;
            let mut block = pool.take(bytes)?;
            fill(stream, ids, &mut block.bytes_mut()[..bytes], split)?;
            let shape = std::iter::once(count).chain(item_shape.iter().map(|n| *n as i64));
            let memory = sys::of_block(block, bytes);
            let shape = shape.collect();
            Ok(Part::Dense(Tensor { memory, dtype: schema.dtype, shape, readonly: false }))
        }
        Layout::Ragged { ndim } => {
            let mut elements = vec![0; ids.len()];
            stream.elements(ids, &mut elements)?;
            let values = elements.iter().fold(0u64, |n, e| n.saturating_add(*e));
            if i32::try_from(values).is_err() {
                return Err(Failure::Overflow(values));
            }
            ragged(stream, ids, &elements, values as usize, *ndim as usize, pool, split)
        }
    }
}

fn ragged(
    stream: &dyn Stream,
    ids: &[u64],
    elements: &[u64],
    count: usize,
    ndim: usize,
    pool: &Room,
    split: bool,
) -> Result<Part, Failure> {
    let dtype = stream.schema().dtype;
    let values = count * dtype.size();
    let cu = (ids.len() + 1) * size_of::<i32>();
    let shapes = ids.len() * ndim * size_of::<u64>();
    let cu_at = values.next_multiple_of(ALIGN);
    let shapes_at = (cu_at + cu).next_multiple_of(ALIGN);
    let mut block = pool.take(shapes_at + shapes)?;
    fill(stream, ids, part(&mut block, 0, values), split)?;

    let mut end = 0i32;
    let (first, others) = part(&mut block, cu_at, cu).split_at_mut(size_of::<i32>());
    first.copy_from_slice(&end.to_le_bytes());
    for (bytes, n) in others.chunks_exact_mut(size_of::<i32>()).zip(elements) {
        end = end.wrapping_add(*n as i32);
        bytes.copy_from_slice(&end.to_le_bytes());
    }
    let out = part(&mut block, shapes_at, shapes);
    if ndim == 1 {
        put(out, elements);
    } else {
        let mut numbers = vec![0; ids.len() * ndim];
        stream.shapes(ids, &mut numbers)?;
        put(out, &numbers);
    }

    let whole = sys::of_block(block, shapes_at + shapes);
    let tensor = |at, bytes, dtype, shape: &[i64]| -> std::io::Result<Tensor> {
        let memory: Memory = whole.part(at, bytes).ok_or(std::io::ErrorKind::Other)?;
        Ok(Tensor { memory, dtype, shape: shape.into(), readonly: false })
    };
    let rows = ids.len() as i64;
    let made: std::io::Result<_> = (|| {
        Ok(Box::new([
            tensor(0, values, dtype, &[count as i64])?,
            tensor(cu_at, cu, DType::Int32, &[rows + 1])?,
            tensor(shapes_at, shapes, DType::UInt64, &[rows, ndim as i64])?,
        ]))
    })();
    Ok(Part::Ragged(made?))
}

fn part(block: &mut Block, at: usize, len: usize) -> &mut [u8] {
    &mut block.bytes_mut()[at..at + len]
}

fn put(out: &mut [u8], numbers: &[u64]) {
    for (bytes, n) in out.chunks_exact_mut(size_of::<u64>()).zip(numbers) {
        bytes.copy_from_slice(&n.to_le_bytes());
    }
}

fn fill(stream: &dyn Stream, ids: &[u64], out: &mut [u8], split: bool) -> Result<(), Failure> {
    if split && out.len() >= WORTH_A_POOL {
        gather_records(stream, ids, out, sys::pool()?)?;
    } else {
        stream.gather(ids, out)?;
    }
    Ok(())
}
