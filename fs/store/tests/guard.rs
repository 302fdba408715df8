//! A file that is cut short while it is mapped is an error, and the process lives on.
#![allow(clippy::unwrap_used)]
mod common;

use std::fs::{self, File};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use batchfs_store::{Codec, DType, Error, GuardedFile, OpenOptions, Schema, Store, Stream, Verify};
use common::{dictionary, gather, gather_any, noise, options, ragged, with_codec, write};

const RECORDS: u64 = 4000;

#[test]
fn a_shard_cut_short_is_an_error_for_its_records_alone() {
    for verify in [Verify::First, Verify::Always, Verify::Never] {
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("s");
        let data = noise(RECORDS as usize * 64, 1);
        write(&dest, Schema::dense(DType::UInt8, [64]), options(2, 1), &data);
        let store = Store::open(&dest, OpenOptions { verify }).unwrap();
        let all: Vec<u64> = (0..RECORDS).collect();
        assert!(gather(&store, &all).unwrap() == data);

        // Rows 0..1000 of shard 1 stay: records 1, 3 … 1999.
        let shard = dest.join("data-001.npy");
        File::options().write(true).open(&shard).unwrap().set_len(4096 + 1000 * 64).unwrap();
        for _ in 0..2 {
            let e = gather(&store, &all).unwrap_err();
            assert!(matches!(e, Error::Damaged { shard: 1, record: 2001, .. }), "{e}");
            assert!(e.to_string().contains("data-001.npy is cut short"), "{e}");
            assert!(e.to_string().contains("it ends at 68096"), "{e}");
        }
        let even: Vec<u64> = (0..RECORDS).step_by(2).collect();
        assert!(gather(&store, &even).is_ok());
        let kept = gather(&store, &[1, 1999]).unwrap();
        assert_eq!(kept, [&data[64..128], &data[1999 * 64..2000 * 64]].concat());
    }
}

/// As above, where the index tells how long records are.
#[test]
fn a_shard_of_ragged_or_compressed_records_cut_short_is_an_error_for_those_alone() {
    let all = ragged(4000, 1, 200, 4, 3);
    let samples: Vec<&[u8]> = (0..100).map(|i| all.record(i)).collect();
    let dictionary = dictionary(&samples);
    for codec in Codec::ALL {
        for verify in [Verify::First, Verify::Always, Verify::Never] {
            let dir = tempfile::tempdir().unwrap();
            let dest = dir.path().join("s");
            all.write(&dest, DType::Int32, with_codec(*codec, &dictionary, options(2, 1)));
            let store = Store::open(&dest, OpenOptions { verify }).unwrap();
            let ids: Vec<u64> = (0..4000).collect();
            assert!(gather_any(&store, &ids).unwrap() == all.values);

            let shard = File::options().write(true).open(dest.join("data-001.bin")).unwrap();
            let len = shard.metadata().unwrap().len();
            shard.set_len(len / 2).unwrap();
            for _ in 0..2 {
                let e = gather_any(&store, &ids).unwrap_err();
                assert!(matches!(e, Error::Damaged { shard: 1, .. }), "{codec:?} {verify:?}: {e}");
                assert!(e.to_string().contains("data-001.bin is cut short"), "{e}");
            }
            let even: Vec<u64> = (0..4000).step_by(2).collect();
            assert!(gather_any(&store, &even).unwrap() == all.records(&even));
            assert!(gather_any(&store, &[1, 1001]).unwrap() == all.records(&[1, 1001]));
            assert!(gather_any(&store, &[3999]).is_err());
        }
    }
}

#[test]
fn an_index_of_places_cut_short_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let all = ragged(6000, 1, 20, 4, 3);
    all.write(&dest, DType::Int32, options(2, 64));
    let store = Store::open(&dest, OpenOptions::default()).unwrap();
    let ids: Vec<u64> = (0..6000).collect();
    assert!(gather_any(&store, &ids).unwrap() == all.values);
    File::options().write(true).open(dest.join("index.bin")).unwrap().set_len(70_000).unwrap();
    for ask in [&[5000][..], &[1, 5000]] {
        let e = store.elements(ask, &mut vec![0; ask.len()]).unwrap_err().to_string();
        assert!(e.contains("index.bin") && e.contains("cut short"), "{e}");
        let e = store.gather(ask, &mut []).unwrap_err().to_string();
        assert!(e.contains("index.bin") && e.contains("cut short"), "{e}");
    }
    // The first block is still there, and checks out.
    assert_eq!(gather_any(&store, &[1, 2000]).unwrap(), all.records(&[1, 2000]));
}

/// The rest of the page that the new end falls into reads as zeros, without a signal.
#[test]
fn a_cut_inside_of_a_page_is_seen_by_the_records_in_its_rest() {
    let dir = tempfile::tempdir().unwrap();
    for (rows, cut) in [(1000, 500), (1000, 999), (1000, 990), (10, 5), (64, 63), (65, 64)] {
        let dest = dir.path().join(format!("s{rows}-{cut}"));
        let data = noise(rows * 64, 1);
        write(&dest, Schema::dense(DType::UInt8, [64]), options(1, 1), &data);
        let store = Store::open(&dest, OpenOptions::default()).unwrap();
        let all: Vec<u64> = (0..rows as u64).collect();
        gather(&store, &all).unwrap();
        let shard = File::options().write(true).open(dest.join("data-000.npy")).unwrap();
        shard.set_len(4096 + cut as u64 * 64 + 60).unwrap();
        let e = gather(&store, &[cut as u64]).unwrap_err();
        assert!(matches!(e, Error::Damaged { record, .. } if record == cut as u64), "{e}");
        assert_eq!(gather(&store, &[0]).unwrap(), data[..64]);
    }
}

#[test]
fn zeros_cut_off_a_tail_of_zeros_are_right_values_or_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let mut data = noise(64 * 64, 1);
    data[3000..].fill(0);
    write(&dest, Schema::dense(DType::UInt8, [64]), options(1, 1), &data);
    let store = Store::open(&dest, OpenOptions::default()).unwrap();
    let all: Vec<u64> = (0..64).collect();
    gather(&store, &all).unwrap();
    for keep in [4095, 3000, 2999, 100] {
        let shard = File::options().write(true).open(dest.join("data-000.npy")).unwrap();
        shard.set_len(4096 + keep).unwrap();
        assert!(gather(&store, &all).is_ok_and(|got| got == data) || keep < 3000);
        assert!(gather(&store, &all).is_ok() == (keep >= 3000));
    }
}

#[test]
fn an_index_cut_short_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let data = noise(20_000, 1);
    write(&dest, Schema::dense(DType::UInt8, []), options(2, 64), &data);
    let store = Store::open(&dest, OpenOptions { verify: Verify::Always }).unwrap();
    assert_eq!(gather(&store, &[0, 9000]).unwrap(), [data[0], data[9000]]);
    File::options().write(true).open(dest.join("index.bin")).unwrap().set_len(70_000).unwrap();
    let e = gather(&store, &[9000]).unwrap_err().to_string();
    assert!(e.contains("index.bin") && e.contains("cut short"), "{e}");
    // The first block is still there, and checks out.
    assert_eq!(gather(&store, &[1]).unwrap(), [data[1]]);
}

#[test]
fn a_replaced_shard_is_not_read_for_the_one_that_failed() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    write(&dest, Schema::dense(DType::UInt8, [64]), options(1, 1), &noise(64_000, 1));
    let store = Store::open(&dest, OpenOptions { verify: Verify::Never }).unwrap();
    let shard = dest.join("data-000.npy");
    let bytes = fs::read(&shard).unwrap();
    File::options().write(true).open(&shard).unwrap().set_len(0).unwrap();
    fs::remove_file(&shard).unwrap();
    fs::write(&shard, vec![0; bytes.len()]).unwrap();
    let e = gather(&store, &[900]).unwrap_err().to_string();
    assert!(e.contains("was replaced"), "{e}");
}

#[test]
fn a_store_that_was_renamed_or_deleted_can_be_read_on() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let data = noise(64_000, 1);
    write(&dest, Schema::dense(DType::UInt8, [64]), options(4, 1), &data);
    let store = Store::open(&dest, OpenOptions::default()).unwrap();
    fs::remove_dir_all(&dest).unwrap();
    assert!(gather(&store, &(0..1000).collect::<Vec<_>>()).unwrap() == data);
}

/// Two threads read `all` again and again while `file` is cut, with `pause` milliseconds before and
/// after; what they get is `data` or an error.
fn cut_under_readers(store: &Store, all: &[u64], data: &[u8], file: &Path, pause: u64) {
    let pause = std::time::Duration::from_millis(pause);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        for _ in 0..2 {
            s.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    if let Ok(got) = gather(store, all) {
                        assert!(got == data, "other values");
                    }
                }
            });
        }
        std::thread::sleep(pause);
        File::options().write(true).open(file).unwrap().set_len(8192).unwrap();
        std::thread::sleep(pause);
        stop.store(true, Ordering::Relaxed);
    });
}

/// Threads read warm records while the file is cut: each call gives right bytes or an error.
#[test]
fn a_cut_in_the_middle_of_reads_never_shows_zeros() {
    for round in 0..20 {
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("s");
        let data = noise(RECORDS as usize * 64, round);
        write(&dest, Schema::dense(DType::UInt8, [64]), options(2, 1), &data);
        let store = Store::open(&dest, OpenOptions::default()).unwrap();
        let all: Vec<u64> = (0..RECORDS).collect();
        gather(&store, &all).unwrap();
        cut_under_readers(&store, &all, &data, &dest.join("data-000.npy"), 2);
        assert!(gather(&store, &all).is_err());
    }
}

#[test]
fn a_cut_in_the_middle_of_reads_of_frames_never_shows_other_values() {
    let data: Vec<u8> = noise(2000 * 256, 7).iter().map(|b| b & 15).collect();
    let samples: Vec<&[u8]> = data.chunks(256).take(100).collect();
    let dictionary = dictionary(&samples);
    for round in 0..20 {
        let codec = [Codec::Zstd, Codec::ZstdDict][round % 2];
        let cut = ["data-000.bin", "index.bin"][round / 2 % 2];
        let dir = tempfile::tempdir().unwrap();
        let dest = dir.path().join("s");
        let options = with_codec(codec, &dictionary, options(2, 1));
        write(&dest, Schema::dense(DType::UInt8, [256]), options, &data);
        let store = Store::open(&dest, OpenOptions::default()).unwrap();
        let all: Vec<u64> = (0..2000).collect();
        gather(&store, &all).unwrap();
        cut_under_readers(&store, &all, &data, &dest.join(cut), 8);
        assert!(gather(&store, &all).is_err());
    }
}

#[test]
#[ignore = "the other process of the next test"]
fn child_that_gets_a_sigbus_of_its_own() {
    let Some(dest) = std::env::var_os("BATCHFS_TEST_DEST") else { return };
    let _store = Store::open(dest, OpenOptions::default()).unwrap();
    // The first one takes Rust's own handler away.
    for _ in 0..2 {
        nix::sys::signal::raise(nix::sys::signal::Signal::SIGBUS).unwrap();
    }
}

#[test]
fn a_sigbus_that_is_not_ours_still_ends_the_process() {
    use std::os::unix::process::ExitStatusExt;
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    write(&dest, Schema::dense(DType::UInt8, []), options(1, 1), &noise(10, 1));
    let status = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_gets_a_sigbus_of_its_own", "--include-ignored"])
        .env("BATCHFS_TEST_DEST", &dest)
        .output()
        .unwrap()
        .status;
    assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
}

/// Opened for reading, a pipe that nobody writes to would wait for ever.
#[test]
fn pipes_sockets_and_devices_are_refused_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (pipe, socket) = (dir.path().join("pipe"), dir.path().join("socket"));
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _listens = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(&pipe, &link).unwrap();
    for path in [&*pipe, &*socket, &*link, Path::new("/dev/zero"), dir.path()] {
        let e = GuardedFile::open(path).err().unwrap().to_string();
        assert!(e.contains("not a regular file") && e.contains(path.to_str().unwrap()), "{e}");
    }

    let dest = dir.path().join("s");
    write(&dest, Schema::dense(DType::UInt8, [4]), options(1, 1), b"abcdefgh");
    for name in ["batchfs.json", "seal", "index.bin", "data-000.npy"] {
        let (file, aside) = (dest.join(name), dest.join("aside"));
        fs::rename(&file, &aside).unwrap();
        fs::rename(&pipe, &file).unwrap();
        assert!(Store::open(&dest, OpenOptions::default()).is_err(), "{name}");
        fs::rename(&file, &pipe).unwrap();
        fs::rename(&aside, &file).unwrap();
    }
    assert!(Store::open(&dest, OpenOptions::default()).is_ok());
}

/// A file that becomes a pipe while it is mapped.
#[test]
fn what_takes_the_place_of_a_file_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("file");
    fs::write(&path, b"abcdefgh").unwrap();
    let file = GuardedFile::open(&path).unwrap();
    fs::remove_file(&path).unwrap();
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let e = file.read_at(0, &mut [0; 4]).unwrap_err().to_string();
    assert!(e.contains("not a regular file"), "{e}");
}
