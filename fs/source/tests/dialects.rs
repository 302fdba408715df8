//! `.npy` files of all dialects, and what is refused, by name and with the way out.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::path::PathBuf;

use batchfs_source::NpyFile;
use batchfs_store::{DType, Error, Schema, Stream, npy};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn file(&self, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join("a.npy");
        fs::write(&path, bytes).unwrap();
        path
    }

    fn open(&self, bytes: &[u8]) -> batchfs_source::Result<NpyFile> {
        NpyFile::open(self.file(bytes))
    }

    fn refused(&self, bytes: &[u8]) -> String {
        let e = self.open(bytes).err().unwrap();
        assert!(matches!(e, Error::BadStore { .. }) && e.to_string().contains("a.npy"), "{e}");
        e.to_string()
    }
}

fn with_header(version: u8, dict: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend([version, 0]);
    match version {
        1 => bytes.extend((dict.len() as u16).to_le_bytes()),
        _ => bytes.extend((dict.len() as u32).to_le_bytes()),
    }
    bytes.extend(dict.as_bytes());
    bytes.extend(data);
    bytes
}

fn int32(n: i32) -> Vec<u8> {
    (0..n).flat_map(i32::to_le_bytes).collect()
}

fn all(stream: &dyn Stream) -> Vec<u8> {
    let ids: Vec<u64> = (0..stream.len()).collect();
    let mut out = vec![0; ids.len() * stream.schema().item_bytes().unwrap() as usize];
    stream.gather(&ids, &mut out).unwrap();
    out
}

#[test]
fn plain_files_of_every_dialect_have_equal_values() {
    let folder = Folder::new();
    let data = int32(12);
    for version in [1, 2, 3] {
        for dict in [
            "{'descr': '<i4', 'fortran_order': False, 'shape': (3, 4), }                    \n",
            "{'descr': '<i4', 'fortran_order': False, 'shape': (3L, 4L), }\n",
            "{'shape': (3, 4), 'descr': '<i4', 'fortran_order': False}",
        ] {
            let file = folder.open(&with_header(version, dict, &data)).unwrap();
            assert_eq!(*file.schema(), Schema::dense(DType::Int32, [4]));
            assert_eq!(file.len(), 3);
            assert_eq!(all(&file), data);
            let mut out = [0; 32];
            file.gather(&[2, 0], &mut out).unwrap();
            assert_eq!(out, [&data[32..], &data[..16]].concat()[..]);
        }
    }
}

#[test]
fn one_axis_one_column_and_no_records() {
    let folder = Folder::new();
    let open = |dict: &str, n| folder.open(&with_header(1, dict, &int32(n)));
    let file = open("{'descr': '<i4', 'fortran_order': False, 'shape': (12,), }", 12).unwrap();
    assert_eq!((file.schema(), file.len()), (&Schema::dense(DType::Int32, []), 12));
    // Fortran order is C order where only one axis is longer than 1.
    for shape in ["(12,)", "(12, 1)", "(1, 12, 1)"] {
        let dict = format!("{{'descr': '<i4', 'fortran_order': True, 'shape': {shape}, }}");
        assert_eq!(all(&open(&dict, 12).unwrap()), int32(12));
    }
    let file = open("{'descr': '<i4', 'fortran_order': False, 'shape': (0, 7), }", 0).unwrap();
    assert!(file.is_empty());
}

#[test]
fn every_dtype_that_numpy_has_and_named_ones() {
    let folder = Folder::new();
    for dtype in DType::ALL {
        let data: Vec<u8> = (0..dtype.size() as u8 * 6).collect();
        let header = npy::header(*dtype, &[3, 2], 64).unwrap_or_else(|| {
            let dict =
                format!("{{'descr': '{dtype}', 'fortran_order': False, 'shape': (3, 2), }}\n");
            with_header(1, &dict, &[])
        });
        let file = folder.open(&[header, data.clone()].concat()).unwrap();
        assert_eq!((file.schema().dtype, all(&file)), (*dtype, data));
    }
}

#[test]
fn a_type_that_the_file_lost_is_asked_for_and_kept_bit_for_bit() {
    let folder = Folder::new();
    // Among them a NaN with a payload.
    let data = [0x80, 0x3f, 0xc5, 0x7f, 0x01, 0xff];
    let dict = "{'descr': '<V2', 'fortran_order': False, 'shape': (3,), }\n";
    let why = folder.refused(&with_header(1, dict, &data));
    assert!(why.contains("<V2") && why.contains("bfloat16"), "{why}");
    let path = folder.file(&with_header(1, dict, &data));
    assert_eq!(all(&NpyFile::open_as(&path, DType::BFloat16).unwrap()), data);
    assert!(NpyFile::open_as(&path, DType::Float32).is_err());
}

#[test]
fn what_cannot_be_read_in_place_is_refused_with_the_way_out() {
    let folder = Folder::new();
    let said = |dict: &str, n| folder.refused(&with_header(1, dict, &int32(n)));
    let of = |descr: &str| {
        said(&format!("{{'descr': {descr}, 'fortran_order': False, 'shape': (12,), }}"), 12)
    };
    assert!(of("'>i4'").contains("big-endian") && of("'>i4'").contains("batchfs create"));
    assert!(of("'|O'").contains("pickled"));
    assert!(of("'<U1'").contains("<U1"));
    assert!(of("'<M8[s]'").contains("<M8[s]"));
    assert!(of("'int2'").contains("int2"));
    assert!(of("[('größe', '<i4')]").contains("structured"));
    let why = said("{'descr': '<i4', 'fortran_order': True, 'shape': (3, 4), }", 12);
    assert!(why.contains("Fortran") && why.contains("batchfs create"), "{why}");
    assert!(said("{'descr': '<i4', 'fortran_order': False, 'shape': (), }", 1).contains("axis"));
    assert!(
        said("{'descr': '<i4', 'fortran_order': False, 'shape': (3, 0), }", 0).contains("no bytes")
    );
    assert!(
        said("{'descr': '<i4', 'fortran_order': False, 'shape': (13,), }", 12).contains("makes it")
    );
    assert!(
        said("{'descr': '<i4', 'fortran_order': False, 'shape': (11,), }", 12).contains("makes it")
    );
    let huge = "{'descr': '<i4', 'fortran_order': False, 'shape': (9223372036854775807, 4), }";
    assert!(said(huge, 12).contains("more than a file"));
}

#[test]
fn what_is_no_npy_file_is_refused() {
    let folder = Folder::new();
    let whole =
        with_header(2, "{'descr': '<i4', 'fortran_order': False, 'shape': (3,), }\n", &int32(3));
    assert!(folder.open(&whole).is_ok());
    for cut in 0..whole.len() {
        folder.refused(&whole[..cut]);
    }
    assert!(folder.refused(b"PK\x03\x04 and so on").contains("not a .npy"));
    assert!(folder.refused(b"\x93NUMPY\x04\x00 and so on").contains("4.0"));
    assert!(folder.refused(b"\x93NUMPY\x02\x00\xff\xff\xff\xff and so on").contains("header"));
}

#[test]
fn a_file_cut_short_while_it_is_mapped_is_an_error() {
    let folder = Folder::new();
    let data = int32(30_000);
    let path =
        folder.file(&[npy::header(DType::Int32, &[3000, 10], 64).unwrap(), data.clone()].concat());
    let file = NpyFile::open(&path).unwrap();
    assert!(all(&file) == data);
    File::options().write(true).open(&path).unwrap().set_len(128 + 100 * 40 + 8).unwrap();
    let mut out = [0; 40];
    for record in [2999, 1000, 100] {
        let e = file.gather(&[record], &mut out).unwrap_err();
        assert!(matches!(e, Error::DamagedFile { record: r, .. } if r == record), "{e}");
        let told = e.to_string();
        assert!(told.contains("cut short") && told.contains("it ends at 4136"), "{told}");
        assert!(told.contains("a.npy") && !told.contains("shard"), "{told}");
    }
    file.gather(&[99], &mut out).unwrap();
    assert_eq!(out, data[99 * 40..100 * 40]);
}
