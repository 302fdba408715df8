//! A step as Python has it.

use batchfs_store::DType;
use pyo3::prelude::*;

use super::rows::Step;
use crate::room;
use crate::sys::of_block;
use crate::tensor::{DLTensor, Tensor};

impl Step {
    /// As Python has it.
    ///
    /// # Errors
    /// `MemoryError`.
    pub fn batch(self, py: Python<'_>) -> PyResult<TokenBatch> {
        let Step { number, epoch, tokens, from, pool } = self;
        let numbers = |bytes: &[u8], dtype: DType| -> PyResult<Py<DLTensor>> {
            let mut block = pool.take(bytes.len())?;
            block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
            let shape = Box::new([(bytes.len() / dtype.size()) as i64]);
            let memory = of_block(room::Block::Host(block), bytes.len());
            Py::new(py, DLTensor(Tensor { memory, dtype, shape, readonly: false }))
        };
        // Little-endian, as the host is: the store builds on no other.
        Ok(TokenBatch {
            step: number,
            epoch,
            tokens: Py::new(py, DLTensor(tokens))?,
            cu_seqlens: numbers(bytemuck::cast_slice(&from.cu_seqlens), DType::Int32)?,
            document_ids: numbers(bytemuck::cast_slice(&from.document_ids), DType::Int64)?,
            document_offsets: numbers(bytemuck::cast_slice(&from.document_offsets), DType::Int64)?,
        })
    }
}

/// The rows of a step, and where their tokens come from.
///
/// A *piece* is a run of tokens of a row that follow each other in one document; each row begins a
/// piece.
#[pyclass(frozen, get_all, weakref, module = "batchfs")]
pub struct TokenBatch {
    /// The step.
    step: u64,
    /// The epoch that the step's first token is in.
    epoch: u64,
    /// The tokens, `(lanes / world, seq_len)`, int32, or uint32 if the data are.
    tokens: Py<DLTensor>,
    /// Where each piece begins in the rows put one behind the other, and the end: int32 `(n + 1,)`.
    cu_seqlens: Py<DLTensor>,
    /// The document of each piece, counted through the dataset: int64 `(n,)`.
    document_ids: Py<DLTensor>,
    /// Where each piece begins in its document, in tokens: int64 `(n,)`.
    document_offsets: Py<DLTensor>,
}

#[pymethods]
impl TokenBatch {
    fn __repr__(&self) -> String {
        let shape = &self.tokens.get().0.shape;
        format!(
            "TokenBatch(step={}, epoch={}, tokens=({}, {}))",
            self.step, self.epoch, shape[0], shape[1]
        )
    }
}
