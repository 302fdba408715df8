//! Stores in the repository that every version must read, and write again byte for byte.
//! `BATCHFS_BLESS=1` writes them anew, which is right only together with a new format version.
#![allow(clippy::unwrap_used)]
mod common;

use std::fs;
use std::path::Path;

use batchfs_store::{DType, Schema, Verify};
use common::{options, read, write};

fn golden(name: &str, schema: Schema, shards: u32, stripe: u64, data: &[u8]) {
    let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("BATCHFS_BLESS").is_some() {
        let _ = fs::remove_dir_all(&kept);
        fs::create_dir_all(kept.parent().unwrap()).unwrap();
        write(&kept, schema.clone(), options(shards, stripe), data);
    }
    assert_eq!(read(&kept, Verify::Always).unwrap(), data, "{name}: other values are read");
    assert!(batchfs_store::verify(&kept, &|_| ()).unwrap().is_whole());

    let dir = tempfile::tempdir().unwrap();
    let fresh = dir.path().join(name);
    write(&fresh, schema, options(shards, stripe), data);
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

#[test]
fn int16_records_in_stripes() {
    let data: Vec<u8> =
        (0..23 * 6).flat_map(|i: i32| ((i * 257 - 999) as i16).to_le_bytes()).collect();
    golden("v1-int16", Schema::dense(DType::Int16, [2, 3]), 3, 4, &data);
}

#[test]
fn bfloat16_scalars() {
    // The upper halves of float32: 0.0, 1.0, 2.0 …, and a NaN with a payload.
    let mut data: Vec<u8> =
        (0..9).flat_map(|i| [(i as f32).to_le_bytes()[2], (i as f32).to_le_bytes()[3]]).collect();
    data.extend(0x7fc5u16.to_le_bytes());
    golden("v1-bfloat16", Schema::dense(DType::BFloat16, []), 1, 8, &data);
}
