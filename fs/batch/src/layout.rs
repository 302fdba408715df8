//! Exact size and inner structure of a file, known before any payload is read.

use std::collections::HashMap;

use batchfs_region::PAGE;
use batchfs_store::{DType, npy};
use safetensors::tensor::{Dtype as TensorType, Metadata, TensorInfo};
use serde_json::json;

use crate::{Face, arrow};

/// Every array starts at a multiple of this many bytes, whatever the length of the one before.
pub(crate) const ALIGN: u64 = 64;

/// What an array is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fill {
    /// The records of the stream with this number, back to back.
    Records(u16),
    /// Where each record of a ragged batch starts in its values, in elements, and where the last
    /// one ends.
    Offsets(u16),
    /// The shape of each record of a ragged batch.
    Shapes(u16),
    /// The record ids.
    Ids,
    /// The tokens of a step, row after row.
    Tokens,
    /// Where the pieces of a step begin in its rows.
    PieceOffsets,
    /// The document of each piece of a step.
    PieceDocuments,
    /// Where each piece begins in its document.
    PiecePlaces,
    /// How many pieces a step has.
    PieceCount,
    /// Nothing: room that a format wants to be named.
    Zeros,
    /// What ends the file: [`Layout::trailer`].
    Trailer,
}

/// One array of a file: what it is and where it lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Array {
    /// Its name. In a file of one stream: `data` for a dense batch or a record; `values`,
    /// `cu_seqlens` and `shapes` for a ragged batch; `ids` for an index. In a file of all streams
    /// the stream's name stands in the place of `data`, and with a dot in front of the others.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape, C order.
    pub shape: Vec<u64>,
    /// Bytes from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub nbytes: u64,
    /// Where its bytes come from.
    pub fill: Fill,
}

/// The arrays of a file and the frame around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Bytes before the first array.
    pub header: Vec<u8>,
    /// The arrays, in file order.
    pub arrays: Vec<Array>,
    /// What the last array holds if it is [`Fill::Trailer`].
    pub trailer: Vec<u8>,
    /// Bytes of the whole file.
    pub size: u64,
}

impl Array {
    /// An array that has no place yet.
    ///
    /// # Errors
    /// If it is larger than any file.
    pub(crate) fn new(
        name: impl Into<String>,
        dtype: DType,
        shape: Vec<u64>,
        fill: Fill,
    ) -> Result<Array, String> {
        let nbytes = shape
            .iter()
            .try_fold(dtype.size() as u64, |n, d| n.checked_mul(*d))
            .filter(|n| fits(*n))
            .ok_or_else(|| too_large(&shape))?;
        Ok(Array { name: name.into(), dtype, shape, offset: 0, nbytes, fill })
    }

    /// Whether it is part of the batch, and not of the file's format.
    pub fn is_data(&self) -> bool {
        !matches!(self.fill, Fill::Zeros | Fill::Trailer)
    }
}

/// Files have signed 64-bit sizes; some room is left for what is around the arrays.
fn fits(bytes: u64) -> bool {
    bytes <= i64::MAX as u64 - (1 << 40)
}

fn too_large(shape: &[u64]) -> String {
    format!("an array of shape {shape:?} is larger than a file can be")
}

impl Layout {
    /// Puts `arrays` into a file of this face. `about` is said in formats with room for it.
    ///
    /// # Errors
    /// The reason why there is no such file.
    pub(crate) fn frame(arrays: Vec<Array>, face: Face, about: &str) -> Result<Layout, String> {
        match face {
            Face::Bare => Layout::place(Vec::new(), arrays, ALIGN),
            Face::Npy => match <[Array; 1]>::try_from(arrays) {
                Ok([one]) => {
                    let header =
                        npy::header(one.dtype, &one.shape, PAGE as usize).ok_or_else(|| {
                            format!("NumPy's format has no {}; read the bare file", one.dtype)
                        })?;
                    Layout::place(header, vec![one], ALIGN)
                }
                Err(_) => Err("NumPy's format holds a single array".to_owned()),
            },
            Face::Safetensors => Layout::safetensors(arrays, about),
            Face::Arrow => arrow::frame(arrays, about),
            // Those are made from the bare file.
            Face::Json | Face::Txt | Face::Png | Face::Sha256 => {
                Layout::place(Vec::new(), arrays, ALIGN)
            }
        }
    }

    /// A file that is there as a whole.
    pub(crate) fn whole(bytes: Vec<u8>) -> Layout {
        let size = bytes.len() as u64;
        Layout { header: bytes, arrays: Vec::new(), trailer: Vec::new(), size }
    }

    /// The arrays one after the other behind the header, each at a multiple of `align`.
    fn place(header: Vec<u8>, mut arrays: Vec<Array>, align: u64) -> Result<Layout, String> {
        let mut end = header.len() as u64;
        for array in &mut arrays {
            array.offset = end.next_multiple_of(align);
            end = array.offset + array.nbytes;
            if !fits(end) {
                return Err(too_large(&array.shape));
            }
        }
        Ok(Layout { header, arrays, trailer: Vec::new(), size: end })
    }

    /// The format allows no holes between tensors, so that what aligns them has names, too.
    fn safetensors(arrays: Vec<Array>, about: &str) -> Result<Layout, String> {
        let mut all: Vec<Array> = Vec::with_capacity(2 * arrays.len());
        let mut end = 0u64;
        for array in arrays {
            let pad = end.next_multiple_of(ALIGN) - end;
            if pad > 0 {
                let name = format!("__pad.{}", all.len());
                all.push(Array::new(name, DType::UInt8, vec![pad], Fill::Zeros)?);
            }
            end += pad + array.nbytes;
            if !fits(end) {
                return Err(too_large(&array.shape));
            }
            all.push(array);
        }
        let mut tensors = Vec::with_capacity(all.len());
        let mut at = 0usize;
        for array in &all {
            let dtype = tensor_type(array.dtype)
                .ok_or_else(|| format!("safetensors has no {}", array.dtype))?;
            let shape = array.shape.iter().map(|d| *d as usize).collect();
            let next = at + array.nbytes as usize;
            tensors
                .push((array.name.clone(), TensorInfo { dtype, shape, data_offsets: (at, next) }));
            at = next;
        }
        // A single entry, since a map of several has no fixed order.
        let about = HashMap::from([("batchfs".to_owned(), about.to_owned())]);
        let metadata = Metadata::new(Some(about), tensors).map_err(|e| e.to_string())?;
        let mut text = serde_json::to_vec(&metadata).map_err(|e| e.to_string())?;
        // Eight bytes of length, then the JSON, padded with spaces up to a page.
        let padded = (8 + text.len()).next_multiple_of(PAGE as usize);
        text.resize(padded - 8, b' ');
        let mut header = (text.len() as u64).to_le_bytes().to_vec();
        header.extend(text);
        Layout::place(header, all, 1)
    }

    /// What the `.json` face says of the arrays.
    pub(crate) fn describe(&self) -> serde_json::Value {
        let one = |a: &Array| {
            json!({
                "name": a.name,
                "dtype": a.dtype,
                "shape": a.shape,
                "offset": a.offset,
                "nbytes": a.nbytes,
            })
        };
        self.arrays.iter().map(one).collect()
    }
}

/// The name that the safetensors format has for a dtype, if any.
fn tensor_type(dtype: DType) -> Option<TensorType> {
    Some(match dtype {
        DType::Bool => TensorType::BOOL,
        DType::Int8 => TensorType::I8,
        DType::Int16 => TensorType::I16,
        DType::Int32 => TensorType::I32,
        DType::Int64 => TensorType::I64,
        DType::UInt8 => TensorType::U8,
        DType::UInt16 => TensorType::U16,
        DType::UInt32 => TensorType::U32,
        DType::UInt64 => TensorType::U64,
        DType::Float16 => TensorType::F16,
        DType::Float32 => TensorType::F32,
        DType::Float64 => TensorType::F64,
        DType::BFloat16 => TensorType::BF16,
        DType::Complex64 => TensorType::C64,
        DType::Complex128 => return None,
        DType::Float8E4M3FN => TensorType::F8_E4M3,
        DType::Float8E4M3FNUZ => TensorType::F8_E4M3FNUZ,
        DType::Float8E5M2 => TensorType::F8_E5M2,
        DType::Float8E5M2FNUZ => TensorType::F8_E5M2FNUZ,
        DType::Float8E8M0FNU => TensorType::F8_E8M0,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn one(dtype: DType, shape: &[u64]) -> Vec<Array> {
        vec![Array::new("data", dtype, shape.to_vec(), Fill::Records(0)).unwrap()]
    }

    #[test]
    fn sizes_offsets_and_alignment() {
        let images = || one(DType::UInt8, &[256, 3, 224, 224]);
        let bare = Layout::frame(images(), Face::Bare, "").unwrap();
        assert_eq!((bare.size, bare.arrays[0].offset), (38_535_168, 0));
        let npy = Layout::frame(images(), Face::Npy, "").unwrap();
        assert_eq!((npy.size, npy.arrays[0].offset), (38_535_168 + 4096, 4096));
        let scalar = Layout::frame(one(DType::Int64, &[]), Face::Bare, "").unwrap();
        assert_eq!(scalar.size, 8);
    }

    #[test]
    fn what_cannot_be_shown_says_why() {
        let why = Layout::frame(one(DType::BFloat16, &[2, 4]), Face::Npy, "").unwrap_err();
        assert_eq!(why, "NumPy's format has no bfloat16; read the bare file");
        let why = Layout::frame(one(DType::Complex128, &[2]), Face::Safetensors, "").unwrap_err();
        assert_eq!(why, "safetensors has no complex128");
        let huge = Array::new("data", DType::Float64, vec![1 << 40, 1 << 40], Fill::Ids);
        assert!(huge.unwrap_err().contains("larger than"));
    }

    proptest! {
        #[test]
        fn a_safetensors_frame_is_read_back_by_the_library(
            sizes in proptest::collection::vec(0u64..200, 1..6),
        ) {
            let arrays: Vec<Array> = sizes
                .iter()
                .enumerate()
                .map(|(i, n)| {
                    Array::new(format!("t{i}"), DType::UInt8, vec![*n], Fill::Records(0)).unwrap()
                })
                .collect();
            let layout = Layout::frame(arrays, Face::Safetensors, "about").unwrap();
            let mut file = layout.header.clone();
            file.resize(layout.size as usize, 7);
            let read = safetensors::SafeTensors::deserialize(&file).unwrap();
            for (i, n) in sizes.iter().enumerate() {
                let tensor = read.tensor(&format!("t{i}")).unwrap();
                prop_assert_eq!(tensor.shape(), &[*n as usize]);
            }
            prop_assert_eq!(layout.header.len() % 4096, 0);
            for a in layout.arrays.iter().filter(|a| !a.name.starts_with("__pad")) {
                prop_assert_eq!(a.offset % 64, 0, "{}", a.name);
            }
        }
    }
}
