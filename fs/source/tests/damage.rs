//! Small containers, damaged at every place: an error or the same values, but for what no one can
//! see without checksums, which is counted here.
#![allow(clippy::unwrap_used)]
mod common;

use std::fs;
use std::path::Path;

use batchfs_source::{Result, Zrecord, convert_npy};
use batchfs_store::{Error, Stream};
use common::{Data, all, files, golden};
use proptest::prelude::*;

/// All that a container gives, asked for all at once and one by one.
fn read(path: &Path) -> Result<(Vec<u8>, Vec<u64>)> {
    let stream = Zrecord::open(path)?;
    let whole = all(&stream)?;
    assert!(stream.len() <= 11, "{} records", stream.len());
    for id in 0..stream.len() {
        let mut elements = [0];
        stream.elements(&[id], &mut elements)?;
        let mut out = vec![0; elements[0] as usize * stream.schema().dtype.size()];
        stream.gather(&[id], &mut out)?;
    }
    Ok(whole)
}

/// What became of damage, in the file that was damaged.
#[derive(Debug, Default, PartialEq, Eq)]
struct Counts {
    refused: usize,
    same: usize,
    /// Other values, and nothing to tell.
    other: usize,
}

struct Rig {
    dir: tempfile::TempDir,
    good: (Vec<u8>, Vec<u64>),
}

impl Rig {
    fn new(name: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        common::copy(&golden(name), &dir.path().join("c"));
        let good = read(&dir.path().join("c")).unwrap();
        Self { dir, good }
    }

    /// Puts `bytes` in the place of a file, reads all, and puts the file back.
    fn with(&self, file: &str, bytes: &[u8], counts: &mut Counts) {
        let folder = self.dir.path().join("c");
        let path = folder.join(file);
        let kept = fs::read(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        match read(&folder) {
            Ok(found) if found == self.good => counts.same += 1,
            Ok(_) => counts.other += 1,
            Err(e) => {
                assert!(
                    matches!(e, Error::BadStore { .. } | Error::Damaged { .. } | Error::Io { .. }),
                    "{e:?}"
                );
                assert!(e.to_string().contains(folder.to_str().unwrap()), "{e}");
                counts.refused += 1;
            }
        }
        fs::write(&path, kept).unwrap();
    }

    /// Flips bits, one after the other: of each byte all, or one.
    fn flip(&self, file: &str, bytes: &[u8], all: bool) -> Counts {
        let mut counts = Counts::default();
        for at in 0..bytes.len() {
            // The zeros behind the schema and the sizes are many and all the same.
            if file == "meta.zr" && (0x30..0x808).contains(&at) && at % 97 != 0 {
                continue;
            }
            if file == "meta.zr" && (0x840..0x1000).contains(&at) && at % 97 != 0 {
                continue;
            }
            for bit in (0..8).filter(|bit| all || *bit == (at * 5 + 3) % 8) {
                let mut changed = bytes.to_vec();
                changed[at] ^= 1 << bit;
                self.with(file, &changed, &mut counts);
            }
        }
        counts
    }
}

const NAMES: [&str; 6] =
    ["dense-raw", "dense-zstd", "dense-zstd_dict", "ragged-raw", "ragged-zstd", "ragged-zstd_dict"];

fn flips(every: bool) {
    for name in NAMES {
        let rig = Rig::new(name);
        for (file, bytes) in files(&golden(name)) {
            let counts = rig.flip(&file, &bytes, every);
            println!("{name}/{file}: {counts:?}");
            match (file.as_str(), name) {
                ("meta.zr", _) => assert_eq!((counts.other, counts.same), (0, 0), "{name}"),
                // Every bit is a value, and nothing is there that it could be held against.
                (_, "dense-raw") => assert_eq!(counts.refused + counts.same, 0),
                // A shape has to make the length of its record.
                (_, "ragged-raw") => assert!(counts.refused > 0 && counts.same == 0),
                // Other values, or a frame that does not decode to its length.
                _ => assert!(counts.refused > 0, "{name}/{file}"),
            }
        }
    }
}

#[test]
fn a_flipped_bit_of_the_index_is_never_other_values() {
    flips(false);
}

#[test]
#[ignore = "takes a minute"]
fn every_flipped_bit() {
    flips(true);
}

#[test]
fn a_file_that_is_cut_or_grows_is_refused() {
    for name in NAMES {
        let rig = Rig::new(name);
        for (file, bytes) in files(&golden(name)) {
            let mut counts = Counts::default();
            for len in 0..bytes.len() {
                if len < 4096 && file == "meta.zr" && len % 61 != 0 {
                    continue;
                }
                rig.with(&file, &bytes[..len], &mut counts);
            }
            rig.with(&file, &[bytes.as_slice(), b"\0"].concat(), &mut counts);
            rig.with(&file, &[bytes.as_slice(), &[0x5a; 16]].concat(), &mut counts);
            if file == "dict.zr" {
                // A dictionary's length is written nowhere: without its end it is another one, with
                // the same number.
                assert!(counts.refused > 100, "{name}: {counts:?}");
            } else {
                assert_eq!((counts.same, counts.other), (0, 0), "{name}/{file}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_anywhere_are_an_error_or_values(
        name in 0..NAMES.len(),
        file in 0..4usize,
        at in 0..5000usize,
        junk in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let name = NAMES[name];
        let rig = Rig::new(name);
        let all = files(&golden(name));
        let (file, bytes) = &all[file % all.len()];
        let mut changed = bytes.clone();
        // Half of them where the index of the larger file is.
        let at = if at % 2 == 0 && bytes.len() > 4096 { 4096 + at % (bytes.len() - 4096) } else { at };
        let at = at % bytes.len();
        let end = bytes.len().min(at + junk.len());
        changed[at..end].copy_from_slice(&junk[..end - at]);
        rig.with(file, &changed, &mut Counts::default());
    }

    #[test]
    fn a_meta_of_any_bytes(junk in prop::collection::vec(any::<u8>(), 0..600)) {
        let dir = tempfile::tempdir().unwrap();
        let mut meta = junk;
        meta.resize(4096 + 32, 0);
        fs::write(dir.path().join("meta.zr"), meta).unwrap();
        fs::write(dir.path().join("data_0.zr"), [7; 64]).unwrap();
        prop_assert!(Zrecord::open(dir.path()).is_err());
    }

    #[test]
    fn npy_headers_of_any_bytes(at in 0..130usize, junk in prop::collection::vec(any::<u8>(), 1..9)) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.npy");
        Data::dense(batchfs_store::DType::Int32, &[2, 3], 4).write_npy(&path);
        let mut bytes = fs::read(&path).unwrap();
        let end = bytes.len().min(at + junk.len());
        bytes[at..end].copy_from_slice(&junk[..end - at]);
        fs::write(&path, bytes).unwrap();
        if let Ok(stream) = convert_npy(&path, None) {
            let _ = all(&*stream).unwrap();
        }
    }
}
