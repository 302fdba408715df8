//! The index of a step of tokens: the pieces of documents that it is made of.

use batchfs_store::DType;

use super::{Step, TokenRows};
use crate::gather::Failure;
use crate::layout::{Array, Fill};

/// Numbers of a piece: document, place in it, length.
const COLUMNS: u64 = 3;

impl TokenRows {
    /// The arrays of a step's index, without places. There is room for as many pieces as the spec
    /// says, so that its size is known before the step is read.
    pub(crate) fn index_arrays(&self) -> Result<Vec<Array>, String> {
        let spec = self.lanes().spec();
        let room = spec.rows().saturating_mul(spec.pieces);
        Ok(vec![Array::new("pieces", DType::Int64, vec![room, COLUMNS], Fill::PieceTable)?])
    }
}

impl Step<'_> {
    /// Fills the index; what is left of it is -1.
    ///
    /// # Errors
    /// [`Failure::Pieces`] if the spec leaves no room for so many.
    pub(crate) fn table(&self, out: &mut [u8]) -> Result<(), Failure> {
        let from = self.provenance();
        let room = (out.len() / (8 * COLUMNS as usize)) as u64;
        let needed = from.document_ids.len() as u64;
        if needed > room {
            return Err(Failure::Pieces { needed, room });
        }
        let pieces = from.cu_seqlens.windows(2).zip(&from.document_ids).zip(&from.document_offsets);
        let numbers = pieces.flat_map(|((ends, &document), &offset)| {
            [document, offset, i64::from(ends[1]) - i64::from(ends[0])]
        });
        for (out, number) in out.chunks_exact_mut(8).zip(numbers.chain(std::iter::repeat(-1))) {
            out.copy_from_slice(&number.to_le_bytes());
        }
        Ok(())
    }
}
