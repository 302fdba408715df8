use serde::{Deserialize, Serialize};

use crate::DType;

/// How the records of a stream are shaped.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase", tag = "layout")]
pub enum Layout {
    /// Every record has the same shape; a batch is one array `(B, *item_shape)`.
    Dense {
        /// Shape of one record; empty for scalars.
        item_shape: Vec<u64>,
    },
    /// Every record has a shape of its own, of as many axes as all others.
    Ragged {
        /// Number of axes, 1 to [`Layout::MAX_NDIM`].
        ndim: u32,
    },
}

impl Layout {
    /// The most axes that a ragged record can have: as many as a NumPy array.
    pub const MAX_NDIM: u32 = 64;
}

/// What a record of a stream is: element type and layout.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Schema {
    /// Type of one element.
    pub dtype: DType,
    /// Shape of the records.
    #[serde(flatten)]
    pub layout: Layout,
}

impl Schema {
    /// A dense schema.
    pub fn dense(dtype: DType, item_shape: impl Into<Vec<u64>>) -> Self {
        Schema { dtype, layout: Layout::Dense { item_shape: item_shape.into() } }
    }

    /// A ragged schema: records of `ndim` axes, each with a shape of its own.
    pub fn ragged(dtype: DType, ndim: u32) -> Self {
        Schema { dtype, layout: Layout::Ragged { ndim } }
    }

    /// Elements of one record, the product of its shape. `None` if that overflows u64, or if
    /// every record has a number of its own, which [`Stream::elements`](crate::Stream::elements)
    /// tells.
    pub fn item_elements(&self) -> Option<u64> {
        match &self.layout {
            Layout::Dense { item_shape } => {
                item_shape.iter().try_fold(1, |n: u64, d| n.checked_mul(*d))
            }
            Layout::Ragged { .. } => None,
        }
    }

    /// Bytes of one record. `None` if that overflows u64, or if the layout is ragged.
    pub fn item_bytes(&self) -> Option<u64> {
        self.item_elements()?.checked_mul(self.dtype.size() as u64)
    }

    /// Axes of one record.
    pub fn ndim(&self) -> usize {
        match &self.layout {
            Layout::Dense { item_shape } => item_shape.len(),
            Layout::Ragged { ndim } => *ndim as usize,
        }
    }
}
