//! One suite that every kind of stream has to pass.
#![allow(clippy::unwrap_used)]
mod common;

use std::path::Path;

use batchfs_source::{NpyFile, RaggedNpy, Zrecord, convert_npy, convert_path, open_path};
use batchfs_store::{Codec, DType, Error, OpenOptions, Stream, chunks, read_all};
use common::{CODECS, Data, all, open_store};

fn conforms(name: &str, stream: &dyn Stream, data: &Data) {
    let n = data.len();
    let size = data.schema.dtype.size() as u64;
    let ndim = data.schema.ndim();
    assert_eq!(stream.schema(), &data.schema, "{name}");
    assert_eq!((stream.len(), stream.is_empty()), (n, n == 0), "{name}");
    assert_eq!(stream.payload_bytes(), data.values().len() as u64, "{name}");
    assert!(stream.modified() <= std::time::SystemTime::now(), "{name}");

    // In order, backwards, each a few times, one alone, none.
    let repeated: Vec<u64> = (0..3 * n).map(|i| i * 7 % n.max(1)).collect();
    let mut orders = vec![(0..n).collect(), (0..n).rev().collect(), repeated, vec![]];
    orders.extend((0..n.min(5)).map(|id| vec![id]));
    orders.extend((0..n.min(2)).map(|id| vec![id; 9]));
    for ids in &orders {
        let mut elements = vec![9; ids.len()];
        stream.elements(ids, &mut elements).unwrap();
        let lens: Vec<u64> = ids.iter().map(|i| data.records[*i as usize].len() as u64).collect();
        assert!(elements.iter().zip(&lens).all(|(e, len)| e * size == *len), "{name}");
        let mut shapes = vec![9; ids.len() * ndim];
        stream.shapes(ids, &mut shapes).unwrap();
        let want: Vec<u64> = ids.iter().flat_map(|i| data.shapes[*i as usize].clone()).collect();
        assert_eq!(shapes, want, "{name}");
        let mut out = vec![0xaa; lens.iter().sum::<u64>() as usize];
        stream.gather(ids, &mut out).unwrap();
        assert!(out == data.of(ids), "{name}: {ids:?}");
        // Asked the second time, they come another way in some streams.
        stream.gather(ids, &mut out).unwrap();
        assert!(out == data.of(ids), "{name}: {ids:?}");
    }

    for bad in [n, n + 1, u64::MAX] {
        let missing = |e: Error| match e {
            Error::NoSuchRecord { path, record, len } => {
                assert_eq!((path.as_path(), record, len), (stream.origin(), bad, n), "{name}");
            }
            e => panic!("{name}: {e}"),
        };
        let first = data.records.first().map_or(0, Vec::len);
        let ids = if n > 0 { vec![0, bad] } else { vec![bad] };
        let bytes = if n > 0 { 2 * first } else { data.schema.item_bytes().unwrap_or(0) as usize };
        missing(stream.gather(&ids, &mut vec![0; bytes]).unwrap_err());
        missing(stream.elements(&[bad], &mut [0]).unwrap_err());
        if ndim > 0 {
            missing(stream.shapes(&[bad], &mut vec![0; ndim]).unwrap_err());
        }
    }
    if n > 0 {
        let one = data.records[0].len();
        for len in [0, one - 1, one + 1] {
            let e = stream.gather(&[0], &mut vec![0; len]).unwrap_err();
            assert!(matches!(e, Error::Invalid { .. }), "{name}: {e}");
        }
        for e in [
            stream.elements(&[0], &mut []).unwrap_err(),
            stream.elements(&[0], &mut [0; 2]).unwrap_err(),
            stream.shapes(&[0], &mut vec![0; ndim + 1]).unwrap_err(),
        ] {
            assert!(matches!(e, Error::Invalid { .. }), "{name}: {e}");
        }
    }

    let mut ids = Vec::new();
    let mut bytes = Vec::new();
    for chunk in chunks(stream, 100) {
        let chunk = chunk.unwrap();
        assert!(chunk.bytes <= 100 || chunk.ids.end - chunk.ids.start == 1, "{name}");
        let mut part = Vec::new();
        chunk.read(stream, &mut part).unwrap();
        bytes.extend(part);
        ids.extend(chunk.ids);
    }
    assert_eq!((ids, bytes), ((0..n).collect(), data.values()), "{name}");
    let report = read_all(stream, &|_| ()).unwrap();
    assert!(report.is_whole() && report.records == n, "{name}");

    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| assert!(all(stream).unwrap().0 == data.values(), "{name}"));
        }
    });
}

fn samples() -> Vec<Data> {
    vec![
        Data::dense(DType::Int32, &[2, 3], 23),
        Data::dense(DType::UInt8, &[], 9),
        Data::dense(DType::Complex128, &[1], 5),
        Data::dense(DType::Float16, &[300, 70], 6),
        Data::dense(DType::Int64, &[4], 1),
        Data::dense(DType::Int64, &[4], 0),
        Data::ragged(DType::Int32, 1, 40),
        Data::ragged(DType::Float64, 3, 17),
        Data::ragged(DType::UInt8, 2, 1),
        Data::ragged(DType::UInt8, 2, 0),
    ]
}

fn is_dense(data: &Data) -> bool {
    data.schema.item_bytes().is_some()
}

/// Opened by itself, and as something at a path.
fn either(path: &Path, stream: impl Stream, data: &Data) {
    let name = path.file_name().unwrap().to_string_lossy().into_owned();
    conforms(&name, &stream, data);
    conforms(&name, &*open_path(path, &OpenOptions::default()).unwrap(), data);
    conforms(&name, &*convert_path(path, None).unwrap(), data);
}

#[test]
fn stores_of_all_codecs() {
    let dir = tempfile::tempdir().unwrap();
    for (i, data) in samples().iter().enumerate() {
        for (codec, shards) in CODECS.into_iter().flat_map(|c| [(c, 1), (c, 4)]) {
            let path = dir.path().join(format!("store-{i}-{}-{shards}", codec.name()));
            data.write_store(&path, codec, shards);
            either(&path, open_store(&path), data);
        }
    }
}

#[test]
fn zrecord_containers_of_all_codecs() {
    let dir = tempfile::tempdir().unwrap();
    for (i, data) in samples().iter().enumerate() {
        for (codec, shards) in CODECS.into_iter().flat_map(|c| [(c, 1), (c, 4), (c, 255)]) {
            if shards == 255 && i % 6 > 0 {
                continue;
            }
            let path = dir.path().join(format!("zrecord-{i}-{}-{shards}", codec.name()));
            data.write_zrecord(&path, codec, shards);
            let container = Zrecord::open(&path).unwrap();
            assert_eq!((container.codec(), container.shards()), (codec, shards as u32));
            let by = (data.len() > 0 && !is_dense(data)).then_some("loaderx 2.8.19");
            assert_eq!(container.written_by(), by);
            either(&path, container, data);
        }
    }
}

#[test]
fn zrecord_containers_with_axes_of_64_bits() {
    let dir = tempfile::tempdir().unwrap();
    for (i, data) in samples().iter().enumerate().filter(|(_, d)| !is_dense(d) && d.len() > 0) {
        for codec in CODECS {
            let path = dir.path().join(format!("old-{i}-{}", codec.name()));
            let dictionary = (codec == Codec::ZstdDict).then(|| data.dictionary());
            data.write_zrecord_with(&path, codec, 3, 8, dictionary.as_deref());
            let container = Zrecord::open(&path).unwrap();
            assert_eq!(container.written_by(), Some("loaderx 2.8.18"));
            either(&path, container, data);
        }
    }
}

#[test]
fn npy_files() {
    let dir = tempfile::tempdir().unwrap();
    for (i, data) in samples().iter().enumerate() {
        let path = dir.path().join(format!("npy-{i}"));
        if is_dense(data) {
            let path = path.with_extension("npy");
            data.write_npy(&path);
            either(&path, NpyFile::open(&path).unwrap(), data);
        } else {
            data.write_ragged_npy(&path);
            either(&path, RaggedNpy::open(&path, None).unwrap(), data);
        }
    }
}

#[test]
fn npy_files_that_are_converted() {
    let dir = tempfile::tempdir().unwrap();
    for (i, data) in samples().iter().enumerate().filter(|(_, data)| is_dense(data)) {
        for fortran in [false, true] {
            let path = dir.path().join(format!("converted-{i}-{fortran}.npy"));
            common::write_other_order(&path, data, fortran, true);
            conforms("big-endian", &*convert_npy(&path, None).unwrap(), data);
            common::write_other_order(&path, data, fortran, false);
            conforms("fortran", &*convert_npy(&path, None).unwrap(), data);
        }
    }
}
