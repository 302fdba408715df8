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

    /// Bytes of one record, or `None` if that overflows u64.
    pub fn item_bytes(&self) -> Option<u64> {
        let Layout::Dense { item_shape } = &self.layout;
        item_shape.iter().try_fold(self.dtype.size() as u64, |n, d| n.checked_mul(*d))
    }
}
