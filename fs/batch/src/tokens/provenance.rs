//! Where the tokens of a step come from, and the arrays that say so in its files.

use batchfs_store::DType;
use bytemuck::Pod;

use super::{Step, TokenRows};
use crate::Face;
use crate::gather::{self, Failure};
use crate::layout::{Array, Fill, Pieces};

/// Where the tokens of a step come from: one entry for each run of tokens of a row that follow
/// each other in a document. Each row begins a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Provenance {
    /// Where each run begins, in tokens from the begin of the rows of this rank put one behind the
    /// other; then one more, how many tokens they are.
    pub cu_seqlens: Vec<i32>,
    /// The document of each run, counted through the dataset.
    pub document_ids: Vec<i64>,
    /// The run's place in its document, in tokens.
    pub document_offsets: Vec<i64>,
    /// For each row of this rank how many runs there are in the rows before it; then one more, how
    /// many there are in all. So the runs of row `r` are the entries `rows[r]..rows[r + 1]` of the others.
    pub rows: Vec<i32>,
}

impl Provenance {
    pub(super) fn of(step: &Step<'_>) -> Provenance {
        let mut out = Provenance::default();
        let mut at = 0;
        // A rank has at most 2^31 - 1 tokens in a step, and no more runs than tokens.
        step.each_piece(|row, document, offset, len| {
            while out.rows.len() as u64 <= row {
                out.rows.push(out.document_ids.len() as i32);
            }
            out.cu_seqlens.push(at);
            out.document_ids.push(document as i64);
            out.document_offsets.push(offset as i64);
            at += len as i32;
        });
        out.cu_seqlens.push(at);
        out.rows.push(out.document_ids.len() as i32);
        out
    }

    /// For each row where its runs begin in it, and the length of a row, one row behind the other.
    fn row_bounds(&self, seq_len: i32) -> Vec<i32> {
        let mut bounds = Vec::with_capacity(self.cu_seqlens.len() + self.rows.len());
        for (row, runs) in (0..).zip(self.rows.windows(2)) {
            let starts = self.cu_seqlens.get(runs[0] as usize..runs[1] as usize);
            bounds.extend(starts.unwrap_or_default().iter().map(|start| start - row * seq_len));
            bounds.push(seq_len);
        }
        bounds
    }
}

impl Step<'_> {
    /// Fills an array about the step's pieces; what is left of it says that there are no more.
    ///
    /// # Errors
    /// [`Failure::Pieces`] if the spec leaves no room for so many.
    pub(crate) fn pieces(&self, what: Pieces, out: &mut [u8]) -> Result<(), Failure> {
        let from = self.provenance();
        let count = from.document_ids.len() as u64;
        let spec = self.spec();
        let room = spec.pieces * spec.rows();
        if count > room {
            return Err(Failure::Pieces { needed: count, room });
        }
        let end = from.cu_seqlens.last().copied().unwrap_or(0);
        match what {
            Pieces::Offsets => put(out, &from.cu_seqlens, end),
            Pieces::Documents => put(out, &from.document_ids, -1),
            Pieces::Places => put(out, &from.document_offsets, -1),
            Pieces::Count => put(out, &[count as i32], 0),
            Pieces::RowBounds => {
                let length = spec.seq_len as i32;
                put(out, &from.row_bounds(length), length);
            }
            Pieces::RowBoundOffsets => {
                let bounds: Vec<i32> = (0..).zip(&from.rows).map(|(row, n)| row + n).collect();
                put(out, &bounds, 0);
            }
            Pieces::RowOffsets => put(out, &from.rows, 0),
        }
        Ok(())
    }
}

/// Numbers, and `rest` up to the end of `out`.
fn put<T: Pod>(out: &mut [u8], from: &[T], rest: T) {
    let left = gather::put(out, from);
    for place in left.chunks_exact_mut(size_of::<T>()) {
        gather::put(place, &[rest]);
    }
}

impl TokenRows {
    /// The arrays of a step's file, without places.
    ///
    /// # Errors
    /// Why there is no such file.
    pub(crate) fn arrays(&self, face: Face) -> Result<Vec<Array>, String> {
        let spec = self.lanes().spec();
        let (rows, room) = (spec.rows(), spec.rows().saturating_mul(spec.pieces));
        let shape = vec![rows, spec.seq_len];
        let name = if face == Face::Safetensors { "tokens" } else { "data" };
        let mut all = vec![Array::new(name, self.dtype(), shape, Fill::Tokens)?];
        let mut add = |name, dtype, count, what| {
            all.push(Array::new(name, dtype, vec![count], Fill::Pieces(what))?);
            Ok::<_, String>(())
        };
        match face {
            Face::Safetensors => {
                add("cu_seqlens", DType::Int32, room.saturating_add(1), Pieces::Offsets)?;
                add("document_ids", DType::Int64, room, Pieces::Documents)?;
                add("document_offsets", DType::Int64, room, Pieces::Places)?;
                add("pieces", DType::Int32, 1, Pieces::Count)?;
            }
            // Lists, each an array of values and one of offsets.
            Face::Arrow => {
                let bounds = room.saturating_add(rows);
                if i32::try_from(bounds).is_err() {
                    return Err(format!(
                        "Arrow's lists have at most 2147483647 values together, and there is room for {bounds}; take a smaller pieces= in the spec"
                    ));
                }
                let offsets = rows.saturating_add(1);
                add("cu_seqlens", DType::Int32, bounds, Pieces::RowBounds)?;
                add("cu_seqlens.offsets", DType::Int32, offsets, Pieces::RowBoundOffsets)?;
                for (name, what) in
                    [("document_ids", Pieces::Documents), ("document_offsets", Pieces::Places)]
                {
                    add(name, DType::Int64, room, what)?;
                    add("pieces", DType::Int32, offsets, Pieces::RowOffsets)?;
                }
            }
            _ => {}
        }
        Ok(all)
    }
}
