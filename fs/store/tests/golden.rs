//! Stores in the repository that every version must read, and write again byte for byte.
//! `BATCHFS_BLESS=1` writes them anew, which is right only together with a new format version.
#![allow(clippy::unwrap_used)]
mod common;

use std::fs;
use std::path::Path;

use batchfs_store::{Codec, DType, Schema, StoreWriter, Verify, WriteOptions};
use common::{dictionary, noise, options, read, with_codec, write};

fn golden(name: &str, data: &[u8], write: impl Fn(&Path)) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BATCHFS_BLESS").is_some() {
        let _ = fs::remove_dir_all(&kept);
        fs::create_dir_all(kept.parent().unwrap()).unwrap();
        write(&kept);
    }
    assert_eq!(read(&kept, Verify::Always).unwrap(), data, "{name}: other values are read");
    assert!(batchfs_store::verify(&kept, &|_| ()).unwrap().is_whole());

    let dir = tempfile::tempdir().unwrap();
    let fresh = dir.path().join(name);
    write(&fresh);
    if name.contains("zstd") && zstd::zstd_safe::version_number() != LIBZSTD {
        // Another libzstd may make other frames. Those kept are read all the same, above.
        assert_eq!(read(&fresh, Verify::Always).unwrap(), data);
        return;
    }
    let files = |dir: &Path| {
        let mut files: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().path())
            .map(|p| (p.file_name().unwrap().to_owned(), fs::read(&p).unwrap()))
            .collect();
        files.sort();
        files
    };
    assert!(files(&fresh) == files(&kept), "{name}: other bytes are written");
}

/// The libzstd that made the frames of the stores here.
const LIBZSTD: u32 = 10507;

/// Short sentences as int16, one per record; every fifth record has none.
fn sentences() -> (Vec<u8>, Vec<u64>) {
    const WORDS: [&str; 6] = ["a batch ", "of records ", "is ", "a file ", "and ", "a path "];
    let mut text = Vec::new();
    let mut shapes = Vec::new();
    for i in 0..23usize {
        let words = if i % 5 == 4 { 0 } else { 3 + i * 7 % 11 };
        let record: String = (0..words).map(|k| WORDS[(i * 3 + k * k) % 6]).collect();
        shapes.push(record.len() as u64);
        text.extend(record.bytes().flat_map(|b| (i16::from(b) * 3 - 300).to_le_bytes()));
    }
    (text, shapes)
}

#[test]
fn int16_records_in_stripes() {
    let data: Vec<u8> =
        (0..23 * 6).flat_map(|i: i32| ((i * 257 - 999) as i16).to_le_bytes()).collect();
    let schema = Schema::dense(DType::Int16, [2, 3]);
    golden("v1-int16", &data, |dest| write(dest, schema.clone(), options(3, 4), &data));
}

#[test]
fn bfloat16_scalars() {
    // The upper halves of float32: 0.0, 1.0, 2.0 …, and a NaN with a payload.
    let mut data: Vec<u8> =
        (0..9).flat_map(|i| [(i as f32).to_le_bytes()[2], (i as f32).to_le_bytes()[3]]).collect();
    data.extend(0x7fc5u16.to_le_bytes());
    let schema = Schema::dense(DType::BFloat16, []);
    golden("v1-bfloat16", &data, |dest| write(dest, schema.clone(), options(1, 8), &data));
}

fn write_ragged(
    dest: &Path,
    dtype: DType,
    ndim: u32,
    options: WriteOptions,
    values: &[u8],
    shapes: &[u64],
) {
    let mut writer = StoreWriter::create(dest, Schema::ragged(dtype, ndim), options).unwrap();
    writer.append_ragged(values, shapes).unwrap();
    writer.finish().unwrap();
}

#[test]
fn ragged_int16() {
    let (text, shapes) = sentences();
    golden("v1-ragged-int16", &text, |dest| {
        write_ragged(dest, DType::Int16, 1, options(3, 4), &text, &shapes);
    });
}

#[test]
fn ragged_float32_of_two_axes() {
    let shapes = [2, 3, 0, 7, 1, 1, 4, 0, 1, 5];
    let data: Vec<u8> = (0..12).flat_map(|i| (i as f32 * 0.75 - 2.0).to_le_bytes()).collect();
    golden("v1-ragged-float32", &data, |dest| {
        write_ragged(dest, DType::Float32, 2, options(2, 1), &data, &shapes);
    });
}

#[test]
fn ragged_int16_in_zstd() {
    let (text, shapes) = sentences();
    golden("v1-ragged-zstd", &text, |dest| {
        let options = WriteOptions { level: 7, ..with_codec(Codec::Zstd, &[], options(2, 4)) };
        write_ragged(dest, DType::Int16, 1, options, &text, &shapes);
    });
}

#[test]
fn dense_int32_in_zstd_and_as_they_are() {
    let mut data: Vec<u8> = (0..9 * 20).flat_map(|i: i32| (i / 7 * 1001).to_le_bytes()).collect();
    data[160..240].copy_from_slice(&noise(80, 2));
    golden("v1-zstd", &data, |dest| {
        let schema = Schema::dense(DType::Int32, [4, 5]);
        write(dest, schema, with_codec(Codec::Zstd, &[], options(2, 2)), &data);
    });
}

/// The dictionary lies in the repository, since another libzstd may train another one.
#[test]
fn ragged_int16_in_zstd_with_a_dictionary() {
    let (text, shapes) = sentences();
    let golden_dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let name = "v1-ragged-zstd_dict";
    let dictionary = fs::read(golden_dir.join(name).join("dictionary.bin")).unwrap_or_else(|_| {
        let samples: Vec<&[u8]> = text.chunks(48).collect();
        dictionary(&samples)
    });
    golden(name, &text, |dest| {
        let options = with_codec(Codec::ZstdDict, &dictionary, options(1, 8));
        write_ragged(dest, DType::Int16, 1, options, &text, &shapes);
    });
}
