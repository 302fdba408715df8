//! Headers of NumPy's `.npy` format (NEP 1), written with room before the data.

use std::fmt::Write as _;

use crate::DType;

/// Bytes that every version of the format begins with.
const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The header of a C-order `.npy` file of `dtype` and `shape`, padded with spaces so that its
/// length, which is where the data starts, is a multiple of `align`.
///
/// Version 1.0 of the format, or 2.0 where the length does not fit 16 bits. `None` for a dtype
/// that NumPy does not have (see [`DType::npy_descr`]). An `align` of 0 is taken as 1; NumPy's own
/// is 64.
///
/// ```
/// use batchfs_store::{DType, npy};
/// let header = npy::header(DType::Float32, &[3, 4], 4096).unwrap();
/// assert_eq!(header.len(), 4096);
/// assert!(header.starts_with(b"\x93NUMPY\x01\x00"));
/// assert!(npy::header(DType::BFloat16, &[3, 4], 64).is_none());
/// ```
pub fn header(dtype: DType, shape: &[u64], align: usize) -> Option<Vec<u8>> {
    dtype.npy_descr().map(|descr| header_of(descr, shape, align))
}

/// As [`header`], for a store's shard: what NumPy has no name for becomes plain bytes of that
/// size, `|V2` or `|V1`, which NumPy opens, never takes for numbers, and casts with `.view()`.
pub(crate) fn shard_header(dtype: DType, shape: &[u64], align: usize) -> Vec<u8> {
    match dtype.npy_descr() {
        Some(descr) => header_of(descr, shape, align),
        None => header_of(&format!("|V{}", dtype.size()), shape, align),
    }
}

fn header_of(descr: &str, shape: &[u64], align: usize) -> Vec<u8> {
    let mut dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': (");
    for (i, n) in shape.iter().enumerate() {
        let sep = if i == 0 { "" } else { ", " };
        // Writing to a String cannot fail.
        let _ = write!(dict, "{sep}{n}");
    }
    dict.push_str(if shape.len() == 1 { ",), }" } else { "), }" });

    let align = align.max(1);
    // The newline that ends a header is counted in.
    let padded = |prefix: usize| (prefix + dict.len() + 1).next_multiple_of(align);
    let (mut out, total) = match u16::try_from(padded(10) - 10) {
        Ok(len) => ([MAGIC.as_slice(), &[1, 0], &len.to_le_bytes()].concat(), padded(10)),
        Err(_) => {
            let len = (padded(12) - 12) as u32;
            ([MAGIC.as_slice(), &[2, 0], &len.to_le_bytes()].concat(), padded(12))
        }
    };
    out.extend_from_slice(dict.as_bytes());
    out.resize(total - 1, b' ');
    out.push(b'\n');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_byte_for_byte_what_numpy_writes_at_its_own_alignment() {
        // numpy.save of zeros((2,), "<f4"): 10 + 118 bytes.
        let mut want =
            b"\x93NUMPY\x01\x00\x76\x00{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }"
                .to_vec();
        want.resize(127, b' ');
        want.push(b'\n');
        assert_eq!(header(DType::Float32, &[2], 64), Some(want));
    }

    #[test]
    fn shapes_of_any_rank_are_python_tuples() {
        let text = |shape: &[u64]| {
            String::from_utf8_lossy(&header(DType::Int8, shape, 64).unwrap()[10..]).into_owned()
        };
        assert!(text(&[]).contains("'shape': (), }"));
        assert!(text(&[0]).contains("'shape': (0,), }"));
        assert!(text(&[1, 0, u64::MAX]).contains("'shape': (1, 0, 18446744073709551615), }"));
    }

    #[test]
    fn a_length_over_16_bits_makes_it_version_2() {
        for align in [1 << 17, 1 << 21] {
            let h = header(DType::UInt8, &[9], align).unwrap();
            assert_eq!(h.len(), align);
            assert_eq!(h[6], 2);
            assert_eq!(u32::from_le_bytes(h[8..12].try_into().unwrap()) as usize, align - 12);
        }
        let long = vec![u64::MAX; 4000];
        let h = header(DType::UInt8, &long, 64).unwrap();
        assert!(h[6] == 2 && h.len().is_multiple_of(64) && h.ends_with(b"\n"));
    }

    #[test]
    fn shards_of_types_that_numpy_lacks_are_void_bytes() {
        for d in DType::ALL {
            let h = shard_header(*d, &[3], 4096);
            assert_eq!(h.len(), 4096);
            let text = String::from_utf8_lossy(&h[10..]);
            let want = d.npy_descr().map_or(format!("'|V{}'", d.size()), |s| format!("'{s}'"));
            assert!(text.contains(&want), "{text}");
        }
    }
}
