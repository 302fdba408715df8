//! What is exported is read again, and what cannot be leaves nothing behind.
#![allow(clippy::unwrap_used)]
mod common;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use batchfs_source::{Format, NpyFile, RaggedNpy, Streams, What, Zrecord, ZrecordOptions, export};
use batchfs_source::{open_dataset, open_path};
use batchfs_store::{
    Codec, DType, Error, OpenOptions, Schema, StoreWriter, Stream, WriteOptions, npy,
};
use common::{CODECS, Data, all, files, open_store};

fn zrecord(codec: Codec, shards: u32, data: &Data) -> Format {
    let dictionary = (codec == Codec::ZstdDict).then(|| data.dictionary());
    Format::Zrecord(ZrecordOptions { shards, codec, level: 3, dictionary })
}

fn one(stream: &dyn Stream, dest: &Path, format: &Format) -> batchfs_source::Result<()> {
    export(What::Stream(stream), dest, format, &|_| ())
}

fn names(folder: &Path) -> Vec<String> {
    let mut found: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    found.sort();
    found
}

#[test]
fn every_codec_and_shard_count_is_what_the_format_says() {
    let dir = tempfile::tempdir().unwrap();
    let samples = [
        Data::dense(DType::Int32, &[2, 3], 700),
        Data::dense(DType::BFloat16, &[], 9),
        Data::dense(DType::UInt8, &[300_000], 7),
        Data::dense(DType::UInt8, &[3], 0),
        Data::ragged(DType::Float8E5M2, 1, 300),
        Data::ragged(DType::Complex64, 4, 90),
        Data::ragged(DType::Int8, 2, 0),
    ];
    for (i, data) in samples.iter().enumerate() {
        let store = dir.path().join(format!("store-{i}"));
        data.write_store(&store, Codec::Zstd, 3);
        let store = open_store(&store);
        let kinds = CODECS.into_iter().flat_map(|c| [(c, 1), (c, 4)]);
        // Each shard is flushed to the disk, so that many take their time.
        let many = (i == 0).then_some((Codec::Zstd, 255));
        for (codec, shards) in kinds.chain(many) {
            let dest = dir.path().join(format!("{i}-{}-{shards}", codec.name()));
            let done = AtomicU64::new(0);
            let count = |bytes| {
                done.fetch_add(bytes, Relaxed);
            };
            export(What::Stream(&store), &dest, &zrecord(codec, shards, data), &count).unwrap();
            assert_eq!(done.into_inner(), data.values().len() as u64);
            let (values, shapes) = all(&Zrecord::open(&dest).unwrap()).unwrap();
            assert!(values == data.values() && shapes == data.shapes.concat());
            // The test's own writer makes the same of it.
            let test = dest.with_extension("test");
            data.write_zrecord(&test, codec, shards as usize);
            assert!(files(&test) == files(&dest), "{i} {} {shards}", codec.name());
        }
    }
}

#[test]
fn npy_of_dense_and_ragged_streams() {
    let dir = tempfile::tempdir().unwrap();
    for (i, data) in [
        Data::dense(DType::Int32, &[2, 3], 700),
        Data::dense(DType::Complex128, &[], 0),
        Data::ragged(DType::Float16, 3, 50),
        Data::ragged(DType::Bool, 1, 0),
    ]
    .iter()
    .enumerate()
    {
        let (store, dest) =
            (dir.path().join(format!("s{i}")), dir.path().join(format!("d{i}.npy")));
        data.write_store(&store, Codec::Raw, 2);
        one(&open_store(&store), &dest, &Format::Npy).unwrap();
        assert_eq!(dest.is_file(), data.schema.item_bytes().is_some());
        let found = match dest.is_file() {
            true => all(&NpyFile::open(&dest).unwrap()).unwrap(),
            false => all(&RaggedNpy::open(&dest, None).unwrap()).unwrap(),
        };
        assert_eq!(found, (data.values(), data.shapes.concat()));
        if dest.is_file() {
            let test = dir.path().join("test.npy");
            data.write_npy(&test);
            assert_eq!(fs::read(test).unwrap(), fs::read(&dest).unwrap());
        } else {
            assert_eq!(names(&dest), ["cu_seqlens.npy", "shapes.npy", "values.npy"]);
        }
    }
    assert_eq!(names(dir.path()).len(), 9);
}

#[test]
fn datasets_become_folders() {
    let dir = tempfile::tempdir().unwrap();
    let set = dir.path().join("set");
    fs::create_dir(&set).unwrap();
    let (dense, ragged) = (Data::dense(DType::Int16, &[5], 40), Data::ragged(DType::Int32, 1, 40));
    dense.write_store(&set.join("x"), Codec::Raw, 2);
    ragged.write_store(&set.join("y"), Codec::Zstd, 2);
    let streams = open_dataset(&set, &OpenOptions::default()).unwrap();
    for (name, format) in [("npy", Format::Npy), ("zr", zrecord(Codec::Zstd, 2, &dense))] {
        let dest = dir.path().join(name);
        export(What::Dataset(&streams), &dest, &format, &|_| ()).unwrap();
        let found = open_dataset(&dest, &OpenOptions::default()).unwrap();
        let named: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(named, ["x", "y"]);
        assert_eq!(all(&*found[0].1).unwrap().0, dense.values());
        assert_eq!(all(&*found[1].1).unwrap(), (ragged.values(), ragged.shapes.concat()));
    }
    assert_eq!(names(&dir.path().join("npy")), ["x.npy", "y"]);
    assert_eq!(names(dir.path()), ["npy", "set", "zr"]);
}

#[test]
fn what_a_format_cannot_hold_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let dest = out.join("dest");
    let said = |what: What<'_>, format: &Format| {
        let e = export(what, &dest, format, &|_| ()).unwrap_err();
        assert!(matches!(e, Error::Invalid { .. }), "{e}");
        assert_eq!(names(&out), [""; 0], "{e}");
        e.to_string()
    };

    let mut writer = StoreWriter::create(
        dir.path().join("empty-record"),
        Schema::ragged(DType::Int32, 2),
        WriteOptions::default(),
    )
    .unwrap();
    writer.append_ragged(&[0; 40], &[2, 3, 4, 1, 0, 5, 0, 0]).unwrap();
    writer.finish().unwrap();
    let with_empty = open_store(&dir.path().join("empty-record"));
    let data = Data::dense(DType::UInt8, &[4], 4);
    let why = said(What::Stream(&with_empty), &zrecord(Codec::Raw, 4, &data));
    assert!(why.contains("empty-record") && why.contains("record 2 is empty"), "{why}");
    one(&with_empty, &dir.path().join("fine"), &Format::Npy).unwrap();

    // One stream that does not fit keeps back the whole of a dataset.
    data.write_store(&dir.path().join("x"), Codec::Raw, 1);
    let streams: Streams = vec![
        ("a".into(), Arc::new(open_store(&dir.path().join("x")))),
        ("b".into(), Arc::new(open_store(&dir.path().join("empty-record")))),
    ];
    said(What::Dataset(&streams), &zrecord(Codec::Raw, 4, &data));

    for dtype in DType::ALL.iter().filter(|d| d.npy_descr().is_none()) {
        let path = dir.path().join(dtype.name());
        Data::dense(*dtype, &[2], 3).write_store(&path, Codec::Raw, 1);
        let why = said(What::Stream(&open_store(&path)), &Format::Npy);
        assert!(why.contains(&format!("NumPy has no {dtype}")), "{why}");
    }

    let x = open_store(&dir.path().join("x"));
    let options = |codec, shards, level, dictionary: Option<&[u8]>| {
        let dictionary = dictionary.map(<[u8]>::to_vec);
        Format::Zrecord(ZrecordOptions { shards, codec, level, dictionary })
    };
    for (format, want) in [
        (options(Codec::Raw, 0, 3, None), "0 shards"),
        (options(Codec::Raw, 256, 3, None), "256 shards"),
        (options(Codec::Zstd, 4, 99, None), "level 99"),
        (options(Codec::ZstdDict, 4, 3, None), "needs a dictionary"),
        (options(Codec::ZstdDict, 4, 3, Some(b"none")), "not a zstd dictionary"),
        (options(Codec::Zstd, 4, 3, Some(b"none")), "takes no dictionary"),
    ] {
        let why = said(What::Stream(&x), &format);
        assert!(why.contains(want), "{why}");
    }

    let many = dir.path().join("many.npy");
    let header = npy::header(DType::UInt8, &[&[1; 65][..], &[2]].concat(), 64).unwrap();
    fs::write(&many, [header, vec![0; 2]].concat()).unwrap();
    let many = open_path(&many, &OpenOptions::default()).unwrap();
    let why = said(What::Stream(&*many), &zrecord(Codec::Raw, 1, &data));
    assert!(why.contains("axes"), "{why}");
}

#[test]
fn what_is_there_already_stays_as_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let data = Data::dense(DType::UInt8, &[4], 4);
    data.write_store(&dir.path().join("x"), Codec::Raw, 1);
    let x = open_store(&dir.path().join("x"));
    let dest = dir.path().join("dest");
    for format in [Format::Npy, zrecord(Codec::Raw, 1, &data)] {
        fs::write(&dest, "mine").unwrap();
        let e = one(&x, &dest, &format).unwrap_err();
        assert!(matches!(e, Error::Exists { .. }), "{e}");
        assert_eq!(
            (fs::read(&dest).unwrap(), names(dir.path())),
            (b"mine".to_vec(), vec!["dest".into(), "x".into()])
        );
        fs::remove_file(&dest).unwrap();
    }
    let nowhere = dir.path().join("no/dest");
    assert!(matches!(one(&x, &nowhere, &Format::Npy).unwrap_err(), Error::Io { .. }));
}

#[test]
fn a_damaged_record_publishes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let data = Data::dense(DType::UInt8, &[4], 400);
    let path = dir.path().join("x");
    data.write_store(&path, Codec::Raw, 1);
    let shard = path.join("data-000.npy");
    let mut bytes = fs::read(&shard).unwrap();
    bytes[4096 + 4 * 77] ^= 1;
    fs::write(&shard, bytes).unwrap();
    for format in [Format::Npy, zrecord(Codec::Zstd, 3, &data)] {
        let e = one(&open_store(&path), &dir.path().join("dest"), &format).unwrap_err();
        assert!(matches!(e, Error::Damaged { record: 77, .. }), "{e}");
        assert_eq!(names(dir.path()), ["x"]);
    }
}
