use batchfs_region::PAGE;
use batchfs_store::{DType, Layout as Records, Schema, npy};

use crate::Face;

/// One array of a batch: where it lies in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// `data` for the one array of a dense batch or record, `ids` for an index.
    pub name: &'static str,
    /// Element type.
    pub dtype: DType,
    /// Shape, C order.
    pub shape: Vec<u64>,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub nbytes: u64,
}

/// Exact size and inner structure of a file, known before any payload is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes before the payload.
    pub header: Vec<u8>,
    /// The arrays, in file order. The first one is the payload that is gathered.
    pub arrays: Vec<Array>,
    /// Bytes of the whole file.
    pub size: u64,
}

impl Layout {
    /// `count` records of `schema` stacked; without `count` one record as it is.
    ///
    /// # Errors
    /// The reason why there is no such face, or that the size overflows.
    pub(crate) fn of(schema: &Schema, count: Option<u64>, face: Face) -> Result<Layout, String> {
        let Records::Dense { item_shape } = &schema.layout;
        let shape: Vec<u64> = count.into_iter().chain(item_shape.iter().copied()).collect();
        Layout::array("data", schema.dtype, shape, face)
    }

    /// The ids of a step: uint64, one per record.
    pub(crate) fn index(count: u64, face: Face) -> Result<Layout, String> {
        Layout::array("ids", DType::UInt64, vec![count], face)
    }

    fn array(
        name: &'static str,
        dtype: DType,
        shape: Vec<u64>,
        face: Face,
    ) -> Result<Layout, String> {
        let header = match face {
            Face::Bare => Vec::new(),
            Face::Npy => npy::header(dtype, &shape, PAGE as usize)
                .ok_or_else(|| format!("NumPy's format has no {dtype}; read the bare file"))?,
            Face::Json => return Err("it holds no array".to_owned()),
        };
        let nbytes = shape
            .iter()
            .try_fold(dtype.size() as u64, |n, d| n.checked_mul(*d))
            .ok_or_else(|| format!("an array of shape {shape:?} is larger than 2^64 bytes"))?;
        let offset = header.len() as u64;
        // Files have signed 64-bit sizes.
        let size = nbytes
            .checked_add(offset)
            .filter(|n| i64::try_from(*n).is_ok())
            .ok_or_else(|| format!("an array of shape {shape:?} is larger than a file can be"))?;
        Ok(Layout { header, arrays: vec![Array { name, dtype, shape, offset, nbytes }], size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_offsets_and_alignment() {
        let images = Schema::dense(DType::UInt8, [3, 224, 224]);
        let bare = Layout::of(&images, Some(256), Face::Bare).unwrap();
        assert_eq!((bare.size, bare.arrays[0].offset), (38_535_168, 0));
        let npy = Layout::of(&images, Some(256), Face::Npy).unwrap();
        assert_eq!((npy.size, npy.arrays[0].offset), (38_535_168 + 4096, 4096));
        assert_eq!(npy.arrays[0].shape, [256, 3, 224, 224]);
        let scalar = Layout::of(&Schema::dense(DType::Int64, []), None, Face::Bare).unwrap();
        assert_eq!((scalar.size, scalar.arrays[0].shape.len()), (8, 0));
        assert_eq!(Layout::index(256, Face::Bare).unwrap().size, 2048);
    }

    #[test]
    fn what_cannot_be_shown_says_why() {
        let bf16 = Schema::dense(DType::BFloat16, [4]);
        let why = Layout::of(&bf16, Some(2), Face::Npy).unwrap_err();
        assert_eq!(why, "NumPy's format has no bfloat16; read the bare file");
        let huge = Schema::dense(DType::Float64, [1 << 40]);
        assert!(Layout::of(&huge, Some(1 << 40), Face::Bare).unwrap_err().contains("larger than"));
    }
}
