//! Steps of token rows in memory, without the interpreter.

use std::sync::Arc;

use batchfs_batch::{Provenance, TokenRows};
use batchfs_region::Pool;

use crate::sys::{generation, of_block};
use crate::tensor::Tensor;
use crate::{gather, room};

/// Bytes of batches that came back which are kept for others.
const KEEP: u64 = 256 << 20;
/// The rows of a source, and memory for batches.
pub struct Rows {
    pub(super) rows: Arc<TokenRows>,
    pool: Pool,
    born: u64,
}

impl Drop for Rows {
    fn drop(&mut self) {
        // In a child the threads do not exist, and their locks may be held for ever: it is leaked.
        if self.is_left() {
            std::mem::forget(self.rows.clone());
        }
    }
}

/// A step whose tokens are in memory, not yet Python's.
pub struct Step {
    pub(super) number: u64,
    pub(super) epoch: u64,
    pub(super) tokens: Tensor,
    pub(super) from: Provenance,
    pub(super) pool: Pool,
}

impl Rows {
    pub(super) fn new(rows: TokenRows) -> Rows {
        Rows { rows: Arc::new(rows), pool: Pool::new(KEEP), born: generation() }
    }

    /// Whether some of the source lies in object storage.
    pub fn is_far(&self) -> bool {
        self.rows.tokens().origins().iter().any(|origin| origin.contains("://"))
    }

    /// Whether its threads are in a parent of this process.
    pub fn is_left(&self) -> bool {
        self.born != generation()
    }

    /// Makes a step, without the interpreter.
    ///
    /// # Errors
    /// Those of the source.
    pub fn read(&self, number: u64) -> Result<Step, gather::Failure> {
        let spec = self.rows.lanes().spec();
        let bytes = (spec.rows() * spec.seq_len) as usize * size_of::<i32>();
        let mut block = self.pool.take(bytes)?;
        let from = self.rows.read(number, &mut block.bytes_mut()[..bytes])?;
        let shape = Box::new([spec.rows() as i64, spec.seq_len as i64]);
        let memory = of_block(room::Block::Host(block), bytes);
        let tokens = Tensor { memory, dtype: self.rows.dtype(), shape, readonly: false };
        let epoch = self.rows.lanes().epoch_of(number);
        Ok(Step { number, epoch, tokens, from, pool: self.pool.clone() })
    }
}
