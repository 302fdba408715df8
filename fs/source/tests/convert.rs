//! `.npy` files in other orders become what NumPy sees in them.
#![allow(clippy::unwrap_used)]
mod common;

use std::fs::File;

use batchfs_source::{NpyFile, RaggedNpy, convert_npy, convert_path, open_path};
use batchfs_store::{DType, Error, OpenOptions, npy};
use common::{Data, all, write_other_order};
use proptest::prelude::*;

const NUMPY: [DType; 9] = [
    DType::Bool,
    DType::Int8,
    DType::UInt16,
    DType::Float16,
    DType::Int32,
    DType::Float64,
    DType::UInt64,
    DType::Complex64,
    DType::Complex128,
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]

    #[test]
    fn any_shape_in_any_order(
        dtype in 0..NUMPY.len(),
        records in 0..300usize,
        shape in prop::collection::vec(1..6u64, 0..5),
        fortran: bool,
        big: bool,
        picks in prop::collection::vec(any::<u16>(), 0..20),
    ) {
        let data = Data::dense(NUMPY[dtype], &shape, records);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        write_other_order(&path, &data, fortran, big);
        let stream = convert_npy(&path, None).unwrap();
        prop_assert_eq!(stream.schema(), &data.schema);
        prop_assert_eq!(all(&*stream).unwrap().0, data.values());
        let ids: Vec<u64> = picks.iter().filter(|_| records > 0).map(|p| u64::from(*p) % data.len()).collect();
        let want = data.of(&ids);
        let mut out = vec![0; want.len()];
        stream.gather(&ids, &mut out).unwrap();
        prop_assert_eq!(out, want);
    }
}

#[test]
fn in_place_they_are_refused_with_the_way_out() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.npy");
    let data = Data::dense(DType::Int32, &[2, 3], 4);
    for (fortran, big, want) in [
        (true, false, "in Fortran (column-major) order"),
        (false, true, "big-endian"),
        (true, true, "in Fortran (column-major) order and big-endian"),
    ] {
        write_other_order(&path, &data, fortran, big);
        let way = format!("`batchfs create DEST --from {}`", path.display());
        for e in [
            NpyFile::open(&path).err().unwrap(),
            open_path(&path, &OpenOptions::default()).err().unwrap(),
        ] {
            let said = e.to_string();
            assert!(said.contains(want) && said.contains(&way), "{said}");
        }
        assert_eq!(all(&*convert_path(&path, None).unwrap()).unwrap().0, data.values());
    }
}

#[test]
fn a_column_major_file_cut_short_while_it_is_mapped() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.npy");
    let data = Data::dense(DType::Int32, &[50], 1000);
    write_other_order(&path, &data, true, false);
    let stream = convert_npy(&path, None).unwrap();
    File::options().write(true).open(&path).unwrap().set_len(100_000).unwrap();
    let e = all(&*stream).unwrap_err();
    assert!(matches!(e, Error::BadStore { .. }) && e.to_string().contains("cut short"), "{e}");
}

#[test]
fn ragged_values_may_be_big_endian_in_a_conversion() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("r");
    let data = Data::ragged(DType::Int32, 2, 30);
    data.write_ragged_npy(&folder);
    let swapped: Vec<u8> =
        data.values().chunks(4).flat_map(|v| v.iter().rev().copied().collect::<Vec<_>>()).collect();
    let header = npy::header(DType::Int32, &[data.values().len() as u64 / 4], 64).unwrap();
    let at = header.windows(3).position(|w| w == b"<i4").unwrap();
    let mut file = [header, swapped].concat();
    file[at] = b'>';
    std::fs::write(folder.join("values.npy"), file).unwrap();
    assert_eq!(all(&RaggedNpy::open(&folder, None).unwrap()).unwrap().0, data.values());
    let e = open_path(&folder, &OpenOptions::default()).err().unwrap();
    assert!(e.to_string().contains("big-endian values"), "{e}");
}

#[test]
fn offsets_and_shapes_that_do_not_fit_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let save = |name: &str, numbers: &[i64], shape: &[u64]| {
        let header = npy::header(DType::Int64, shape, 64).unwrap();
        let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
        let path = dir.path().join(name);
        std::fs::write(&path, [header, bytes].concat()).unwrap();
        path
    };
    let values = save("v.npy", &[0; 10], &[10]);
    let said = |offsets: &[i64], shapes: Option<(&[i64], &[u64])>| {
        let offsets = save("o.npy", offsets, &[offsets.len() as u64]);
        let shapes = shapes.map(|(numbers, shape)| save("s.npy", numbers, shape));
        let opened = RaggedNpy::open_parts(&values, &offsets, shapes.as_deref(), None);
        opened.err().map(|e| e.to_string()).unwrap_or_default()
    };
    assert_eq!(said(&[0, 4, 10], None), "");
    assert_eq!(said(&[0, 4, 10], Some((&[2, 2, 3, 2], &[2, 2]))), "");
    for (offsets, shapes, want) in [
        (&[][..], None, "first offset"),
        (&[1, 10], None, "first offset"),
        (&[0, 9], None, "the number of values, 10"),
        (&[0, 8, 5, 10], None, "record 1 ends before it starts"),
        (&[0, -2, 10], None, "number 1 is negative"),
        (&[0, 4, 10], Some((&[2, 2, 3, 3][..], &[2, 2][..])), "record 1 has shape [3, 3], but 6"),
        (&[0, 4, 10], Some((&[2, 2], &[1, 2])), "1 rows, but there are 2"),
        (&[0, 4, 10], Some((&[i64::MAX, 4, 6, 1], &[2, 2])), "record 0"),
    ] {
        let why = said(offsets, shapes);
        assert!(why.contains(want), "{offsets:?}: {why}");
    }
}
