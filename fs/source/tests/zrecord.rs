//! zrecord containers: those of loaderx itself, and all that is refused.
#![allow(clippy::unwrap_used)]
mod common;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use batchfs_source::{Format, What, Zrecord, ZrecordOptions, export, open_dataset};
use batchfs_store::{Codec, DType, Error, OpenOptions, Stream, read_all};
use common::{CODECS, Data, all, container, copy, files, golden};

const DENSE: &str = r#"{"dtype": "uint8", "item_shape": [4]}"#;
const RAGGED: &str = r#"{"dtype": "int32", "ndim": 1}"#;

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// A fresh copy of a container of loaderx.
    fn copy(&self, name: &str) -> PathBuf {
        let path = self.path("copy");
        let _ = fs::remove_dir_all(&path);
        copy(&golden(name), &path);
        path
    }

    /// A fresh container of one's own.
    fn make(&self, schema: &str, codec: Codec, payloads: &[Vec<u8>]) -> PathBuf {
        let path = self.path("made");
        let _ = fs::remove_dir_all(&path);
        container(&path, schema, codec, 2, payloads, None);
        path
    }
}

fn change(path: &Path, at: usize, to: &[u8]) {
    let mut bytes = fs::read(path).unwrap();
    bytes[at..at + to.len()].copy_from_slice(to);
    fs::write(path, bytes).unwrap();
}

fn refused(path: &Path) -> String {
    let e = Zrecord::open(path).err().unwrap();
    assert!(e.to_string().contains(path.file_name().unwrap().to_str().unwrap()), "{e}");
    e.to_string()
}

#[test]
fn containers_of_loaderx_are_read_and_made_again_byte_for_byte() {
    let folder = Folder::new();
    for kind in ["dense", "ragged"] {
        let data = Data::golden(kind);
        for codec in CODECS {
            let name = format!("{kind}-{}", codec.name());
            let theirs = Zrecord::open(golden(&name)).unwrap();
            assert_eq!(theirs.schema(), &data.schema);
            assert_eq!(all(&theirs).unwrap(), (data.values(), data.shapes.concat()), "{name}");

            let shards = theirs.shards();
            let dictionary = fs::read(golden(&name).join("dict.zr")).ok();
            let test = folder.path(&format!("{name}-test"));
            data.write_zrecord_with(&test, codec, shards as usize, 4, dictionary.as_deref());
            let ours = folder.path(&format!("{name}-ours"));
            let options = ZrecordOptions { shards, codec, level: 3, dictionary };
            export(What::Stream(&theirs), &ours, &Format::Zrecord(options), &|_| ()).unwrap();
            if codec != Codec::Raw && zstd::zstd_safe::version_number() != 10507 {
                // Another libzstd may make other frames, with the same records in them.
                for path in [test, ours] {
                    assert_eq!(all(&Zrecord::open(path).unwrap()).unwrap().0, data.values());
                }
                continue;
            }
            assert!(files(&test) == files(&golden(&name)), "{name}: the test's own writer");
            assert!(files(&ours) == files(&golden(&name)), "{name}: export");
        }
    }
}

#[test]
fn containers_of_loaderx_2_8_18_have_axes_of_64_bits() {
    let data = Data::golden("ragged");
    for codec in ["raw", "zstd"] {
        let theirs = Zrecord::open(golden(&format!("ragged-{codec}-2.8.18"))).unwrap();
        assert_eq!(theirs.written_by(), Some("loaderx 2.8.18"));
        assert_eq!(all(&theirs).unwrap(), (data.values(), data.shapes.concat()));
    }
}

#[test]
fn every_dtype() {
    let folder = Folder::new();
    for dtype in DType::ALL {
        let data = Data::dense(*dtype, &[3], 5);
        let path = folder.path(dtype.name());
        data.write_zrecord(&path, Codec::Raw, 2);
        assert_eq!(all(&Zrecord::open(&path).unwrap()).unwrap().0, data.values());
    }
    assert!(
        refused(&folder.make(&DENSE.replace("uint8", "uint7"), Codec::Raw, &[])).contains("uint7")
    );
}

#[test]
fn a_container_whose_writer_never_closed_it() {
    let folder = Folder::new();
    let path = folder.copy("dense-raw");
    change(&path.join("meta.zr"), 0, &[0; 8]);
    change(&path.join("meta.zr"), 0x10, &[0; 24]);
    let said = refused(&path);
    assert!(said.contains("never closed") && said.contains("11 in the index"), "{said}");
    assert!(said.contains("132 bytes of data"), "{said}");
    // Data, but no entry yet.
    File::options().write(true).open(path.join("meta.zr")).unwrap().set_len(0x1000).unwrap();
    assert!(refused(&path).contains("never closed"));
    // Nothing at all: it is what an empty one is, too.
    (0..3).for_each(|k| fs::write(path.join(format!("data_{k}.zr")), "").unwrap());
    assert!(Zrecord::open(&path).unwrap().is_empty());
}

#[test]
fn parts_that_do_not_agree_are_refused_by_name() {
    let folder = Folder::new();
    let said = |name: &str, change: &dyn Fn(&Path)| {
        let path = folder.copy(name);
        change(&path);
        refused(&path)
    };
    let cut = |file: &'static str, len: u64| {
        move |path: &Path| {
            File::options().write(true).open(path.join(file)).unwrap().set_len(len).unwrap();
        }
    };
    for (file, len) in [("data_1.zr", 47), ("data_1.zr", 49), ("data_0.zr", 0)] {
        let why = said("dense-raw", &cut(file, len));
        assert!(
            why.contains(file) && why.contains(&format!("has {len} bytes, but meta.zr says 48")),
            "{why}"
        );
    }
    for len in [0, 100, 4095] {
        assert!(said("dense-raw", &cut("meta.zr", len)).contains("fewer than its header"));
    }
    for len in [4096, 4271, 4273, 4288] {
        let why = said("dense-raw", &cut("meta.zr", len));
        assert!(why.contains("11 records make it 4272"), "{why}");
    }
    for file in ["meta.zr", "data_2.zr"] {
        assert!(said("dense-raw", &|p| fs::remove_file(p.join(file)).unwrap()).contains(file));
    }
    assert!(
        said("dense-zstd_dict", &|p| fs::remove_file(p.join("dict.zr")).unwrap())
            .contains("dict.zr")
    );
    assert!(
        said("dense-zstd_dict", &|p| fs::write(p.join("dict.zr"), "").unwrap()).contains("dict.zr")
    );
    assert!(
        said("dense-zstd", &|p| fs::write(p.join("dict.zr"), "d").unwrap())
            .contains("the codec is zstd")
    );
    assert!(
        said("dense-raw", &|p| fs::write(p.join("data_3.zr"), "").unwrap())
            .contains("3 shard(s) only")
    );

    let meta =
        |at: usize, to: &'static [u8]| move |path: &Path| change(&path.join("meta.zr"), at, to);
    let cases: [(usize, &'static [u8], &str); 12] = [
        (0x0a, &[0], "no shards"),
        (0x0a, &[2], "sizes of more"),
        (0x0b, &[3], "codec number 3"),
        (0x0c, &[1], "zeros"),
        (0x08, &[0xff, 0xff], "schema of 65535"),
        (0x08, &[5, 0], "behind its schema"),
        (0x808, b"[", "cannot be understood"),
        (0x810, b"[", "cannot be understood"),
        (0x10, &[47], "data_0.zr"),
        (0x1000, &[1], "record 0"),
        (0x1000 + 16 * 7 + 8, &[11], "record 7"),
        (0x1000 + 16 * 10 + 12, &[13], "record 10"),
    ];
    for (at, to, want) in cases {
        let why = said("dense-raw", &meta(at, to));
        assert!(why.contains(want), "{at:#x}: {why}");
    }
    // Two entries that changed places: every one is right by itself.
    let why = said("dense-raw", &|path| {
        let bytes = fs::read(path.join("meta.zr")).unwrap();
        change(&path.join("meta.zr"), 0x1000, &bytes[0x1030..0x1040]);
        change(&path.join("meta.zr"), 0x1030, &bytes[0x1000..0x1010]);
    });
    assert!(why.contains("shard 0, record 0") && why.contains("begins at byte 12"), "{why}");
}

#[test]
fn schemas_that_no_container_has() {
    let folder = Folder::new();
    for (schema, want) in [
        ("", "cannot be understood"),
        (r#"{"dtype": "uint8"}"#, "exactly one"),
        (r#"{"dtype": "uint8", "item_shape": [4], "ndim": 1}"#, "exactly one"),
        (r#"{"dtype": "uint8", "item_shape": [4], "more": 1}"#, "more"),
        (r#"{"dtype": "uint8", "item_shape": [4], "item_shape": [4]}"#, "duplicate"),
        (r#"{"dtype": "uint8", "item_shape": [-4]}"#, "invalid value"),
        (r#"{"dtype": "uint8", "item_shape": [0]}"#, "no bytes"),
        (r#"{"dtype": "uint8", "item_shape": [2147483649]}"#, "2 GiB"),
        (r#"{"dtype": "uint8", "item_shape": [4294967296, 4294967296]}"#, "2 GiB"),
        (r#"{"dtype": "uint8", "ndim": 0}"#, "0 axes"),
        (r#"{"dtype": "uint8", "ndim": 65}"#, "65 axes"),
        (r#"{"dtype": "uint8", "item_shape": [4]} "#, ""),
    ] {
        let path = folder.make(schema, Codec::Raw, &[vec![0; 4]]);
        if want.is_empty() {
            Zrecord::open(&path).unwrap();
            continue;
        }
        let why = refused(&path);
        assert!(why.contains(want), "{schema}: {why}");
    }
}

#[test]
fn records_whose_shape_does_not_make_their_length() {
    let folder = Folder::new();
    let record = |axes: &[u32], values: usize| {
        let head = axes.iter().flat_map(|n| n.to_le_bytes());
        head.chain(std::iter::repeat_n(7, values)).collect::<Vec<u8>>()
    };
    for codec in [Codec::Raw, Codec::Zstd] {
        // One that has no shape at all: neither version of loaderx wrote it.
        for axes in [[3], [0], [u32::MAX], [1 << 30]] {
            let why = refused(&folder.make(RAGGED, codec, &[record(&axes, 8)]));
            assert!(why.contains("record 0") && why.contains("neither"), "{why}");
        }
        // Among others, far behind those that are looked at when it is opened.
        let mut many: Vec<Vec<u8>> = (0..1000).map(|_| record(&[2], 8)).collect();
        many[777] = record(&[1], 8);
        let path = folder.make(RAGGED, codec, &many);
        let stream = Zrecord::open(&path).unwrap();
        let e = stream.gather(&[5, 777], &mut [0; 16]).unwrap_err();
        let said = e.to_string();
        assert!(matches!(e, Error::Damaged { record: 777, shard: 1, .. }), "{e}");
        assert!(said.contains("shape [1], which does not make its 8 bytes"), "{said}");
        let report = read_all(&stream, &|_| ()).unwrap();
        assert_eq!((report.problems, report.records), (1, 1000));
        // A mixture of the two versions.
        let mut many: Vec<Vec<u8>> = (0..10).map(|_| record(&[2], 8)).collect();
        many[3] = record(&[2, 0], 8);
        assert!(refused(&folder.make(RAGGED, codec, &many)).contains("record 3"));
        // A length that no shape makes.
        many[3] = record(&[2], 7);
        let why = refused(&folder.make(RAGGED, codec, &many));
        assert!(why.contains("record 3"), "{why}");
    }
}

#[test]
fn frames_that_do_not_hold_what_the_index_says() {
    let folder = Folder::new();
    let good: Vec<Vec<u8>> = (0..6).map(|i| vec![i; 4]).collect();
    let one = |payload: &[u8]| zstd::bulk::compress(payload, 3).unwrap();
    for (frame, want) in [
        (one(&[1; 5]), "cannot be decompressed"),
        (one(&[1; 3]), "decompresses to 3 bytes"),
        (b"no frame at all".to_vec(), "cannot be decompressed"),
        (one(&[1; 4])[..9].to_vec(), "cannot be decompressed"),
    ] {
        let path = folder.make(DENSE, Codec::Zstd, &good);
        // Record 4 is the last of shard 0.
        let shard = path.join("data_0.zr");
        let mut bytes = fs::read(&shard).unwrap();
        let meta = fs::read(path.join("meta.zr")).unwrap();
        let at = u64::from_le_bytes(meta[0x1040..0x1048].try_into().unwrap()) as usize;
        bytes.truncate(at);
        bytes.extend(&frame);
        change(&path.join("meta.zr"), 0x10, &(bytes.len() as u64).to_le_bytes());
        change(&path.join("meta.zr"), 0x1048, &(frame.len() as u32).to_le_bytes());
        fs::write(shard, bytes).unwrap();
        let stream = Zrecord::open(&path).unwrap();
        let e = stream.gather(&[0, 4], &mut [0; 8]).unwrap_err();
        assert!(matches!(e, Error::Damaged { record: 4, shard: 0, .. }), "{e}");
        assert!(e.to_string().contains(want), "{e}");
        let mut out = [0; 8];
        stream.gather(&[2, 5], &mut out).unwrap();
        assert_eq!(out, [2, 2, 2, 2, 5, 5, 5, 5]);
    }
}

#[test]
fn another_dictionary_is_noticed_by_its_number() {
    let folder = Folder::new();
    let path = folder.copy("dense-zstd_dict");
    let samples: Vec<Vec<u8>> = (0..600).map(|i| common::bytes(80, i)).collect();
    let other = zstd::dict::from_samples(&samples, 1 << 10).unwrap();
    fs::write(path.join("dict.zr"), &other).unwrap();
    let e = all(&Zrecord::open(&path).unwrap()).unwrap_err();
    assert!(matches!(e, Error::Damaged { record: 0, .. }), "{e}");
    assert!(e.to_string().to_lowercase().contains("dictionary"), "{e}");
    // One that is none, though it has the magic number.
    fs::write(path.join("dict.zr"), &other[..20]).unwrap();
    let why = Zrecord::open(&path).err().unwrap().to_string();
    assert!(why.contains("dictionary"), "{why}");
}

#[test]
fn a_dictionary_of_content_alone() {
    // loaderx takes any bytes for a dictionary; without the magic number zstd takes them as content.
    let folder = Folder::new();
    let data = Data::dense(DType::UInt8, &[40], 20);
    let path = folder.path("content");
    data.write_zrecord_with(&path, Codec::ZstdDict, 3, 4, Some(&data.records[3]));
    assert_eq!(all(&Zrecord::open(&path).unwrap()).unwrap().0, data.values());
}

#[test]
fn a_shard_cut_short_while_it_is_mapped() {
    let folder = Folder::new();
    for codec in [Codec::Raw, Codec::Zstd] {
        for data in [Data::dense(DType::UInt8, &[9000], 40), Data::ragged(DType::UInt8, 1, 9000)] {
            let path = folder.path("cut");
            let _ = fs::remove_dir_all(&path);
            data.write_zrecord(&path, codec, 2);
            let stream = Zrecord::open(&path).unwrap();
            let last = data.len() - 1;
            let shard = path.join(format!("data_{}.zr", last % 2));
            File::options().write(true).open(&shard).unwrap().set_len(100).unwrap();
            let mut out = vec![0; data.records[last as usize].len()];
            let e = stream.gather(&[last], &mut out).unwrap_err();
            assert!(matches!(e, Error::Damaged { record, .. } if record == last), "{e}");
            assert!(e.to_string().contains("cut short"), "{e}");
            let other = last - 1;
            let mut out = vec![0; data.records[other as usize].len()];
            stream.gather(&[other], &mut out).unwrap();
            assert_eq!(out, data.records[other as usize]);
        }
    }
}

#[test]
fn an_index_cut_short_while_it_is_mapped() {
    let folder = Folder::new();
    let data = Data::dense(DType::UInt8, &[2], 3000);
    let path = folder.path("cut");
    data.write_zrecord(&path, Codec::Raw, 2);
    let stream = Zrecord::open(&path).unwrap();
    File::options().write(true).open(path.join("meta.zr")).unwrap().set_len(4096 * 3).unwrap();
    let e = stream.gather(&[2999], &mut [0; 2]).unwrap_err();
    assert!(e.to_string().contains("meta.zr") && e.to_string().contains("cut short"), "{e}");
    let mut out = [0; 2];
    stream.gather(&[1], &mut out).unwrap();
    assert_eq!(out, data.records[1][..]);
}

#[test]
fn folders_of_containers_are_datasets() {
    let folder = Folder::new();
    let root = folder.path("set");
    Data::dense(DType::UInt8, &[2], 9).write_zrecord(&root_of(&root, "label"), Codec::Raw, 2);
    Data::ragged(DType::Int32, 1, 9).write_zrecord(&root.join("tokens"), Codec::Zstd, 4);
    Data::dense(DType::Int32, &[], 9).write_npy(&root.join("weight.npy"));
    Data::ragged(DType::Int32, 2, 9).write_ragged_npy(&root.join("boxes"));
    let streams = open_dataset(&root, &OpenOptions::default()).unwrap();
    let names: Vec<_> = streams.iter().map(|(name, s)| (name.as_str(), s.len())).collect();
    assert_eq!(names, [("boxes", 9), ("label", 9), ("tokens", 9), ("weight", 9)]);
    // One without its meta.zr is a damaged one, and not a folder of something else.
    fs::remove_file(root.join("label/meta.zr")).unwrap();
    let e = open_dataset(&root, &OpenOptions::default()).err().unwrap();
    assert!(e.to_string().contains("label/meta.zr"), "{e}");
}

fn root_of(root: &Path, name: &str) -> PathBuf {
    fs::create_dir(root).unwrap();
    root.join(name)
}
