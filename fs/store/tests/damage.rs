//! A store that is not exactly as it was written is an error that names the place, never other
//! values.
#![allow(clippy::unwrap_used)]
mod common;

use std::fs::{self, OpenOptions as FileOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use batchfs_store::{DType, Error, OpenOptions, Schema, Store, Verify};
use common::{gather, noise, options, read, write};

fn store(dir: &Path, dtype: DType, shape: &[u64], records: usize) -> (PathBuf, Vec<u8>) {
    let dest = dir.join("s");
    let schema = Schema::dense(dtype, shape);
    let data = noise(records * schema.item_bytes().unwrap() as usize, 9);
    write(&dest, schema, options(2, 4), &data);
    (dest, data)
}

fn files(dest: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dest).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files
}

/// Flips `mask` at `at`, looks, and flips it back.
fn flipped(dest: &Path, file: &Path, at: u64, mask: u8, want: &[u8]) {
    let f = FileOptions::new().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    f.read_exact_at(&mut byte, at).unwrap();
    f.write_all_at(&[byte[0] ^ mask], at).unwrap();
    let place = format!("{} at {at}, {mask:#04x}", file.display());

    match read(dest, Verify::First) {
        Ok(got) => assert!(got == want, "{place}: other values"),
        Err(e) => assert!(e.to_string().contains("/s"), "{place}: {e}"),
    }
    let report = batchfs_store::verify(dest, &|_| ());
    assert!(!report.is_ok_and(|r| r.is_whole()), "{place}: verify saw nothing");
    f.write_all_at(&byte, at).unwrap();
}

#[test]
fn every_flipped_byte_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (dest, data) = store(dir.path(), DType::UInt8, &[3], 21);
    for file in files(&dest) {
        let len = file.metadata().unwrap().len();
        for at in 0..len {
            if len < 4096 || at >= 4096 {
                (0..8).for_each(|bit| flipped(&dest, &file, at, 1 << bit, &data));
            } else {
                flipped(&dest, &file, at, 1 << (at % 8), &data);
            }
        }
    }
    assert_eq!(read(&dest, Verify::First).unwrap(), data);
}

#[test]
fn flips_in_an_index_of_several_blocks_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (dest, data) = store(dir.path(), DType::Int8, &[], 9_000);
    let index = dest.join("index.bin");
    let len = index.metadata().unwrap().len();
    assert_eq!(len, 9_000 * 8 + 2 * 8);
    for at in (0..len).step_by(9001).chain(len - 16..len) {
        flipped(&dest, &index, at, 1 << (at % 8), &data);
    }
}

#[test]
fn damage_names_shard_and_record_and_spares_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let (dest, data) = store(dir.path(), DType::Int32, &[2], 40);
    // Record 13 is in stripe 3, so in shard 1, row 5.
    let shard = FileOptions::new().write(true).open(dest.join("data-001.npy")).unwrap();
    shard.write_all_at(&[!data[12 * 8]], 4096 + 5 * 8).unwrap();

    let store = Store::open(&dest, OpenOptions::default()).unwrap();
    for _ in 0..2 {
        let e = gather(&store, &[1, 13, 2]).unwrap_err();
        assert!(matches!(e, Error::Damaged { shard: 1, record: 13, .. }), "{e}");
        assert!(e.to_string().contains("shard 1, record 13: the bytes have checksum"), "{e}");
    }
    assert_eq!(gather(&store, &[12, 14]).unwrap(), [&data[96..104], &data[112..120]].concat());
    assert!(read(&dest, Verify::Always).is_err());
    assert!(read(&dest, Verify::Never).is_ok());

    let report = batchfs_store::verify(&dest, &|_| ()).unwrap();
    assert_eq!(report.problems, 1);
    assert!(matches!(report.first[0], Error::Damaged { shard: 1, record: 13, .. }));
}

#[test]
fn verify_counts_all_and_lists_the_first() {
    let dir = tempfile::tempdir().unwrap();
    let (dest, data) = store(dir.path(), DType::UInt8, &[], 1000);
    for k in 0..2 {
        let path = dest.join(format!("data-{k:03}.npy"));
        let mut bytes = fs::read(&path).unwrap();
        bytes[4096..].iter_mut().for_each(|b| *b = !*b);
        fs::write(&path, bytes).unwrap();
    }
    let report = batchfs_store::verify(&dest, &|_| ()).unwrap();
    assert_eq!((report.problems, report.first.len()), (data.len() as u64, 100));
}

#[test]
fn cut_longer_and_missing_files_are_refused_at_open() {
    let dir = tempfile::tempdir().unwrap();
    let (dest, data) = store(dir.path(), DType::UInt8, &[3], 21);
    for file in files(&dest) {
        let whole = fs::read(&file).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        let refused = |what: &str| {
            let said = Store::open(&dest, OpenOptions::default()).err().map(|e| e.to_string());
            assert!(
                said.as_ref().is_some_and(|s| s.contains(name) || s.contains("seal")),
                "{what} {name}: {said:?}"
            );
        };
        for cut in [0, 1, whole.len() / 2, whole.len() - 1] {
            fs::write(&file, &whole[..cut]).unwrap();
            refused("cut");
        }
        fs::write(&file, [&whole[..], b"\0"].concat()).unwrap();
        refused("longer");
        fs::write(&file, [&whole[..], &[b' '; 5000]].concat()).unwrap();
        refused("much longer");
        fs::remove_file(&file).unwrap();
        refused("missing");
        fs::create_dir(&file).unwrap();
        refused("a folder");
        fs::remove_dir(&file).unwrap();
        fs::write(&file, &whole).unwrap();
    }
    assert_eq!(read(&dest, Verify::First).unwrap(), data);
}

#[test]
fn headers_of_other_kinds_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (dest, _) = store(dir.path(), DType::UInt8, &[3], 21);
    let header = dest.join("batchfs.json");
    let text = fs::read_to_string(&header).unwrap();
    let open = |from: &str, to: &str| {
        assert!(text.contains(from), "{text}");
        fs::write(&header, text.replace(from, to)).unwrap();
        Store::open(&dest, OpenOptions::default()).err().unwrap()
    };
    let e = open("\"version\": 1", "\"version\": 2");
    assert!(matches!(e, Error::UnknownVersion { found: 2, .. }), "{e}");
    for (from, to, says) in [
        ("batchfs-store", "other-store", "other-store"),
        ("\"raw\"", "\"lz9\"", "codec \"lz9\" is not known"),
        ("\"dense\"", "\"sparse\"", "layout \"sparse\" is not known"),
        ("uint8", "uint9", "uint9"),
        ("xxh3_64", "md5", "checksum \"md5\" is not known"),
        ("\"records\": 21", "\"records\": 22", "index.bin"),
        ("\"records\": 21", "\"records\": -1", "-1"),
        ("\"records\": 21", "\"records\": 18446744073709551615", "do not fit"),
        ("\"shards\": 2", "\"shards\": 0", "0 shards"),
        ("\"shards\": 2", "\"shards\": 2, \"more\": 1", "more"),
        ("\"stripe\": 4", "\"stripe\": 8", "seal"),
        ("\"stripe\": 4", "\"stripe\": 5", "power of two"),
        ("a test", "another test", "seal"),
        ("02-29", "02-28", "seal"),
    ] {
        let e = open(from, to).to_string();
        assert!(e.contains(says), "{to}: {e}");
    }
}

#[test]
fn what_is_no_store_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let said = |path: &Path| Store::open(path, OpenOptions::default()).err().unwrap().to_string();
    assert!(said(&dir.path().join("nowhere")).contains("nowhere"));
    assert!(said(dir.path()).contains("is not a store: it has no batchfs.json"));
}
