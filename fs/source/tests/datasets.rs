//! What a path is, and which streams a folder makes.
#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};

use batchfs_source::{DTypes, open_dataset, open_dataset_as, open_path};
use batchfs_store::{DType, OpenOptions, Schema, StoreWriter, WriteOptions, npy};

fn store(dest: PathBuf, records: usize) {
    let mut writer =
        StoreWriter::create(dest, Schema::dense(DType::UInt8, [2]), WriteOptions::default())
            .unwrap();
    writer.append(&vec![7; records * 2]).unwrap();
    writer.finish().unwrap();
}

fn npy_file(path: PathBuf, records: u64) {
    let mut bytes = npy::header(DType::UInt8, &[records], 64).unwrap();
    bytes.resize(bytes.len() + records as usize, 7);
    fs::write(path, bytes).unwrap();
}

fn names(path: &Path) -> Vec<String> {
    let streams = open_dataset(path, &OpenOptions::default()).unwrap();
    streams.into_iter().map(|(name, _)| name).collect()
}

fn refused(path: &Path) -> String {
    open_dataset(path, &OpenOptions::default()).err().unwrap().to_string()
}

#[test]
fn a_store_a_file_and_a_folder_of_both() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().join("d");
    fs::create_dir(&d).unwrap();
    store(d.join("tokens"), 3);
    npy_file(d.join("labels.npy"), 3);
    fs::write(d.join("README.md"), "about").unwrap();
    fs::create_dir(d.join(".hidden")).unwrap();
    assert_eq!(names(&d), ["labels", "tokens"]);
    assert_eq!(names(&d.join("tokens")), ["tokens"]);
    assert_eq!(names(&d.join("tokens/../tokens/.")), ["tokens"]);
    assert_eq!(names(&d.join("labels.npy")), ["labels"]);
    for place in ["tokens", "labels.npy"] {
        assert_eq!(open_path(d.join(place), &OpenOptions::default()).unwrap().len(), 3);
    }
}

#[test]
fn streams_of_different_lengths_are_refused_with_both_numbers() {
    let dir = tempfile::tempdir().unwrap();
    store(dir.path().join("a"), 3);
    npy_file(dir.path().join("b.npy"), 4);
    let why = refused(dir.path());
    assert!(why.contains("\"a\" has 3 and \"b\" has 4"), "{why}");
}

#[test]
fn names_that_the_mount_needs_are_refused() {
    for name in ["view", "all", "index"] {
        let dir = tempfile::tempdir().unwrap();
        store(dir.path().join(name), 3);
        assert!(refused(dir.path()).contains(name));
    }
    let dir = tempfile::tempdir().unwrap();
    store(dir.path().join("x"), 3);
    npy_file(dir.path().join("x.npy"), 3);
    assert!(refused(dir.path()).contains("two streams named \"x\""));
}

#[test]
fn what_is_no_dataset_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    assert!(refused(&dir.path().join("nowhere")).contains("nowhere"));
    assert!(refused(dir.path()).contains("neither stores nor containers nor .npy files"));
    fs::write(dir.path().join("a.txt"), "text").unwrap();
    assert!(refused(&dir.path().join("a.txt")).contains("neither a .npy file"));

    let schema = Schema::dense(DType::UInt8, []);
    let dest = dir.path().join("s");
    let _writer = StoreWriter::create(&dest, schema, WriteOptions::default()).unwrap();
    assert!(refused(dir.path()).contains("not finished"));
    let temp = batchfs_store::leftovers(&dest).unwrap().remove(0);
    assert!(refused(&temp).contains("not finished"));

    fs::create_dir(dir.path().join("not-a-store")).unwrap();
    assert!(refused(dir.path()).contains("not-a-store"));
}

/// What NumPy has no name for is saved as bytes.
#[test]
fn what_files_do_not_say_is_said_for_them() {
    let dir = tempfile::tempdir().unwrap();
    let d = dir.path().join("d");
    fs::create_dir(&d).unwrap();
    for (name, descr, bytes) in [("half.npy", "<V2", 6), ("quarter.npy", "|V1", 3)] {
        let mut file = npy::header(DType::UInt8, &[3], 64).unwrap();
        let at = file.windows(3).position(|w| w == b"|u1").unwrap();
        file[at..at + 3].copy_from_slice(descr.as_bytes());
        file.resize(file.len() + bytes, 0);
        fs::write(d.join(name), file).unwrap();
    }
    npy_file(d.join("labels.npy"), 3);
    store(d.join("tokens"), 3);
    let open = |said: &[&str]| {
        let said = said.iter().map(|s| s.parse().unwrap()).collect::<Vec<_>>();
        open_dataset_as(&d, &OpenOptions::default(), &DTypes::from(said))
    };
    let dtypes: Vec<DType> = open(&["half=bfloat16", "quarter=float8_e5m2"])
        .unwrap()
        .iter()
        .map(|(_, stream)| stream.schema().dtype)
        .collect();
    assert_eq!(dtypes, [DType::BFloat16, DType::UInt8, DType::Float8E5M2, DType::UInt8]);
    for (said, names) in [
        (&[][..], &["half.npy", "--dtype", "bfloat16"][..]),
        (&["half=bfloat16"], &["quarter.npy", "--dtype", "float8_e4m3fn"]),
        (&["half=float8_e5m2"], &["half.npy", "float8_e5m2"]),
        (&["half=bfloat16", "float8_e5m2"], &["labels.npy", "uint8", "float8_e5m2"]),
        (&["half=bfloat16", "quarter=float8_e5m2", "tokens=int8"], &["tokens", "uint8"]),
        (&["half=bfloat16", "quarter=float8_e5m2", "halv=int8"], &["\"halv\""]),
    ] {
        let why = open(said).err().unwrap().to_string();
        assert!(names.iter().all(|n| why.contains(n)), "{said:?}: {why}");
    }
}
