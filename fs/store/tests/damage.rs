//! A store that is not exactly as it was written is an error that names the place, never other
//! values.
#![allow(clippy::unwrap_used)]
mod common;

use std::fs::{self, OpenOptions as FileOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use batchfs_store::{Codec, DType, Error, OpenOptions, Schema, Store, StoreWriter, Stream, Verify};
use common::{dictionary, gather, gather_any, noise, options, ragged, read, with_codec, write};

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

/// A small store of a kind other than dense and raw, and its records.
fn packed(dest: &Path, ndim: usize, codec: Codec) -> Vec<u8> {
    let all = ragged(10, ndim.max(1), if ndim == 2 { 12 } else { 50 }, 2, 4);
    let samples: Vec<&[u8]> = (0..64).map(|i| all.record(i % 10)).collect();
    let options = with_codec(codec, &dictionary(&samples), options(2, 4));
    if ndim > 0 {
        all.write(dest, DType::Int16, options);
        return all.values;
    }
    let data: Vec<u8> = noise(10 * 40, 4).iter().map(|b| b & 1).collect();
    write(dest, Schema::dense(DType::Int16, [20]), options, &data);
    data
}

fn kinds() -> impl Iterator<Item = (usize, Codec)> {
    let ragged = [1, 2].into_iter().flat_map(|n| Codec::ALL.iter().map(move |c| (n, *c)));
    ragged.chain([(0, Codec::Zstd), (0, Codec::ZstdDict)])
}

#[test]
fn every_flipped_byte_of_ragged_and_compressed_stores_is_seen() {
    for (ndim, codec) in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("s");
        let data = packed(&dest, ndim, codec);
        let stored = Store::open(&dest, OpenOptions::default()).unwrap().stored_bytes();
        assert_eq!(stored < data.len() as u64, codec != Codec::Raw);
        for file in files(&dest) {
            let len = file.metadata().unwrap().len();
            let payload = file.file_name().unwrap().to_str().unwrap().starts_with("data");
            for at in 0..len {
                if payload && ndim != 2 {
                    (0..8).for_each(|bit| flipped(&dest, &file, at, 1 << bit, &data));
                } else {
                    flipped(&dest, &file, at, 1 << (at % 8), &data);
                }
            }
        }
        assert_eq!(read(&dest, Verify::First).unwrap(), data);
    }
}

/// What is read of a damaged store unchecked is an error or other values, and never a panic.
#[test]
fn damage_that_nobody_looks_for_ends_nothing() {
    for (ndim, codec) in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("s");
        let data = packed(&dest, ndim, codec);
        for shard in ["data-000.bin", "data-001.bin"] {
            let path = dest.join(shard);
            let whole = fs::read(&path).unwrap();
            for round in 0..200 {
                let mut bytes = whole.clone();
                for (b, n) in bytes.iter_mut().zip(noise(whole.len(), round)) {
                    *b = if n < 16 { n.wrapping_mul(16) } else { *b };
                }
                fs::write(&path, bytes).unwrap();
                match read(&dest, Verify::Never) {
                    Ok(got) => assert_eq!(got.len(), data.len()),
                    Err(e) => assert!(e.to_string().contains("decompress"), "{e}"),
                }
            }
            fs::write(&path, whole).unwrap();
        }
    }
}

#[test]
fn damage_in_a_frame_names_shard_and_record_and_spares_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let data: Vec<u8> = (0..40).flat_map(|i| [i; 64]).collect();
    let options = with_codec(Codec::Zstd, &[], options(2, 4));
    write(&dest, Schema::dense(DType::UInt8, [64]), options, &data);
    // Record 13 is in stripe 3, so in shard 1, row 5; all frames are of one length.
    let path = dest.join("data-001.bin");
    let mut bytes = fs::read(&path).unwrap();
    let frame = bytes.len() / 20;
    bytes[5 * frame + frame / 2] ^= 1;
    fs::write(&path, bytes).unwrap();

    let store = Store::open(&dest, OpenOptions::default()).unwrap();
    for _ in 0..2 {
        let e = gather(&store, &[1, 13, 2]).unwrap_err();
        assert!(matches!(e, Error::Damaged { shard: 1, record: 13, .. }), "{e}");
        assert!(e.to_string().contains("shard 1, record 13: the bytes have checksum"), "{e}");
    }
    assert_eq!(gather(&store, &[12, 14]).unwrap(), [[12; 64], [14; 64]].concat());
    let report = batchfs_store::verify(&dest, &|_| ()).unwrap();
    assert_eq!(report.problems, 1);
    assert!(matches!(report.first[0], Error::Damaged { shard: 1, record: 13, .. }));
}

#[test]
fn ragged_and_compressed_stores_cut_longer_or_with_parts_missing_are_refused_at_open() {
    for (ndim, codec) in kinds() {
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("s");
        let data = packed(&dest, ndim, codec);
        refused_unless_whole(&dest);
        assert_eq!(read(&dest, Verify::First).unwrap(), data);
    }
}

#[test]
fn headers_that_contradict_themselves_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    packed(&dest, 1, Codec::ZstdDict);
    let header = dest.join("batchfs.json");
    let text = fs::read_to_string(&header).unwrap();
    for (from, to, says) in [
        ("\"ndim\": 1", "\"item_shape\": [1]", "ragged records have ndim"),
        ("\"ndim\": 1", "\"ndim\": 0", "0 axes"),
        ("\"ndim\": 1", "\"ndim\": 65", "65 axes"),
        ("\"ndim\": 1", "\"ndim\": 2", "index.bin"),
        ("\"zstd_dict\"", "\"zstd\"", "dictionary_bytes is there"),
        ("\"level\": 3,", "", "level is missing"),
        ("\"level\": 3", "\"level\": 4", "seal"),
        ("dictionary_bytes\": ", "dictionary_bytes\": 99999999", "larger than any"),
        ("dictionary_xxh3_64\": \"", "dictionary_xxh3_64\": \"A", "hexadecimal"),
        ("\"shards\": 2", "\"shards\": 3", "shard_bytes"),
        ("\"raw_bytes\": ", "\"raw_bytes\": 9", "seal"),
    ] {
        assert!(text.contains(from), "{text}");
        fs::write(&header, text.replace(from, to)).unwrap();
        let e = Store::open(&dest, OpenOptions::default()).err().unwrap().to_string();
        assert!(e.contains(says), "{to}: {e}");
    }
}

/// Entries that no writer makes, under checksums that are right.
#[test]
fn forged_entries_are_errors_of_their_records() {
    let sum = |bytes: &[u8]| twox_hash::XxHash3_64::oneshot(bytes);
    for codec in [Codec::Raw, Codec::Zstd] {
        for (at, bytes) in [
            (0, u64::MAX.to_le_bytes().to_vec()),
            (0, 1_000_000u64.to_le_bytes().to_vec()),
            (16, u32::MAX.to_le_bytes().to_vec()),
            (16, 1u32.to_le_bytes().to_vec()),
            (20, u32::MAX.to_le_bytes().to_vec()),
            (20, 1u32.to_le_bytes().to_vec()),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let dest = dir.path().join("s");
            let data: Vec<u8> = (0..10).flat_map(|i| [i; 80]).collect();
            let options = with_codec(codec, &[], options(2, 1));
            let schema = Schema::ragged(DType::Int16, 1);
            let mut writer = StoreWriter::create(&dest, schema, options).unwrap();
            writer.append_ragged(&data, &[40; 10]).unwrap();
            writer.finish().unwrap();

            let mut index = fs::read(dest.join("index.bin")).unwrap();
            index[3 * 24 + at..][..bytes.len()].copy_from_slice(&bytes);
            let block = sum(&index[..240]).to_le_bytes();
            index[240..].copy_from_slice(&block);
            fs::write(dest.join("index.bin"), &index).unwrap();
            let json = fs::read(dest.join("batchfs.json")).unwrap();
            let sealed = [&(json.len() as u64).to_le_bytes()[..], &json, &block].concat();
            fs::write(dest.join("seal"), format!("xxh3_64 {:016x}\n", sum(&sealed))).unwrap();

            for verify in [Verify::First, Verify::Never] {
                let store = Store::open(&dest, OpenOptions { verify }).unwrap();
                for room in [80, 2, (1 << 16)] {
                    let e = store.gather(&[3], &mut vec![0; room]).unwrap_err();
                    let fits = matches!(
                        e,
                        Error::Damaged { shard: 1, record: 3, .. } | Error::Invalid { .. }
                    );
                    assert!(fits, "{codec:?} {at} {bytes:?}: {e}");
                }
                assert_eq!(gather_any(&store, &[2, 4]).unwrap(), [[2; 80], [4; 80]].concat());
            }
            let report = batchfs_store::verify(&dest, &|_| ()).unwrap();
            assert!(report.problems > 0, "{codec:?} {at} {bytes:?}");
        }
    }
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

fn refused_unless_whole(dest: &Path) {
    for file in files(dest) {
        let whole = fs::read(&file).unwrap();
        let name = file.file_name().unwrap().to_str().unwrap();
        let refused = |what: &str| {
            let said = Store::open(dest, OpenOptions::default()).err().map(|e| e.to_string());
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
}

#[test]
fn cut_longer_and_missing_files_are_refused_at_open() {
    let dir = tempfile::tempdir().unwrap();
    let (dest, data) = store(dir.path(), DType::UInt8, &[3], 21);
    refused_unless_whole(&dest);
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
