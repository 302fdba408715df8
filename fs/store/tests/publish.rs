//! A store is there whole or not at all, whatever becomes of its writer.
#![allow(clippy::unwrap_used)]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use batchfs_store::{
    Codec, DType, DatasetWriter, Error, OpenOptions, Result, Schema, Store, StoreWriter, Verify,
    WriteOptions, is_unfinished, leftovers,
};
use common::{dictionary, noise, options, ragged, read, with_codec, write};

fn bytes4() -> Schema {
    Schema::dense(DType::UInt8, [4])
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn nothing_is_there_before_finish_and_nothing_but_the_store_after() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let mut writer = StoreWriter::create(&dest, bytes4(), options(2, 1)).unwrap();
    writer.append(&[1; 8]).unwrap();
    assert!(!dest.exists());
    let left = leftovers(&dest).unwrap();
    assert_eq!(left.len(), 1);
    assert!(is_unfinished(&left[0]));
    let e = Store::open(&left[0], OpenOptions::default()).err().unwrap().to_string();
    assert!(e.contains("has not finished"), "{e}");
    writer.finish().unwrap();
    assert_eq!(names(dir.path()), ["s"]);
    assert_eq!(names(&dest), ["batchfs.json", "data-000.npy", "data-001.npy", "index.bin", "seal"]);
}

#[test]
fn a_dropped_writer_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = StoreWriter::create(dir.path().join("s"), bytes4(), options(2, 1)).unwrap();
    writer.append(&[1; 8]).unwrap();
    drop(writer);
    assert!(names(dir.path()).is_empty());
}

#[test]
fn what_exists_is_never_touched() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let exists = |r: Result<StoreWriter>| matches!(r.err(), Some(Error::Exists { .. }));
    fs::write(&dest, "mine").unwrap();
    assert!(exists(StoreWriter::create(&dest, bytes4(), options(1, 1))));
    fs::remove_file(&dest).unwrap();
    std::os::unix::fs::symlink("nowhere", &dest).unwrap();
    assert!(exists(StoreWriter::create(&dest, bytes4(), options(1, 1))));
    fs::remove_file(&dest).unwrap();

    // It comes into being while a writer is at work.
    for make in [|p: &Path| fs::write(p, "mine"), |p: &Path| fs::create_dir(p)] {
        let writer = StoreWriter::create(&dest, bytes4(), options(1, 1)).unwrap();
        make(&dest).unwrap();
        assert!(matches!(writer.finish(), Err(Error::Exists { .. })));
        assert_eq!(names(dir.path()), ["s"]);
        let _ = fs::remove_file(&dest);
        let _ = fs::remove_dir(&dest);
    }
}

#[test]
fn of_two_writers_one_wins_whole() {
    let dir = tempfile::tempdir().unwrap();
    for round in 0..20 {
        let dest = dir.path().join(format!("s{round}"));
        let run = |byte: u8| {
            let mut writer = StoreWriter::create(&dest, bytes4(), options(2, 1))?;
            writer.append(&[byte; 40])?;
            writer.finish()
        };
        let (a, b) = std::thread::scope(|s| {
            let (a, b) = (s.spawn(|| run(1)), s.spawn(|| run(2)));
            (a.join().unwrap(), b.join().unwrap())
        });
        assert!(a.is_ok() != b.is_ok(), "{a:?} {b:?}");
        assert!(matches!(a.as_ref().and(b.as_ref()), Err(Error::Exists { .. })));
        assert_eq!(read(&dest, Verify::First).unwrap(), [if a.is_ok() { 1 } else { 2 }; 40]);
        assert!(leftovers(&dest).unwrap().is_empty());
    }
}

#[test]
fn a_target_that_cannot_be_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let said =
        |dest: &Path| StoreWriter::create(dest, bytes4(), options(1, 1)).err().unwrap().to_string();
    assert!(said(&dir.path().join("no/s")).contains("no"));
    assert!(said(Path::new("/")).contains('/'));
    assert!(said(&dir.path().join(".s.batchfs-tmp-1-2")).contains("unfinished"));
    fs::write(dir.path().join("file"), "").unwrap();
    assert!(said(&dir.path().join("file/s")).contains("file"));
}

#[test]
fn a_dataset_is_published_as_a_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("d");
    let begin = || {
        let mut dataset = DatasetWriter::create(&dest).unwrap();
        let a = dataset.stream("a", bytes4(), options(2, 1)).unwrap();
        let b = dataset.stream("b", Schema::dense(DType::Int8, []), options(1, 1)).unwrap();
        (dataset, a, b)
    };
    let nothing = |said: String, why: &str| {
        assert!(said.contains(why), "{said}");
        assert!(names(dir.path()).is_empty());
    };

    let (dataset, mut a, b) = begin();
    a.append(&[0; 8]).unwrap();
    a.finish().unwrap();
    drop(b);
    nothing(dataset.publish().unwrap_err().to_string(), "\"b\" was not finished");

    let (dataset, mut a, b) = begin();
    a.append(&[0; 8]).unwrap();
    a.finish().unwrap();
    b.finish().unwrap();
    nothing(dataset.publish().unwrap_err().to_string(), "\"a\" has 2 and \"b\" has 0");

    let dataset = DatasetWriter::create(&dest).unwrap();
    nothing(dataset.publish().unwrap_err().to_string(), "at least one stream");

    let (mut dataset, mut a, mut b) = begin();
    assert!(matches!(dataset.stream("a", bytes4(), options(1, 1)), Err(Error::Exists { .. })));
    for name in ["view", "all", "index", "README.txt", ".x", "", "x/y", "x\ny"] {
        assert!(dataset.stream(name, bytes4(), options(1, 1)).is_err(), "{name}");
    }
    a.append(&[1; 8]).unwrap();
    b.append(&[2; 2]).unwrap();
    a.finish().unwrap();
    b.finish().unwrap();
    assert!(!dest.exists());
    dataset.publish().unwrap();
    assert_eq!((names(dir.path()), names(&dest)), (vec!["d".into()], vec!["a".into(), "b".into()]));
    assert_eq!(read(&dest.join("a"), Verify::First).unwrap(), [1; 8]);
    assert_eq!(read(&dest.join("b"), Verify::First).unwrap(), [2; 2]);
}

/// Runs the test `name` of this file in a process of its own, with `dest` for its target.
fn child(name: &str, dest: &Path, codec: Codec) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--include-ignored", "--nocapture"])
        .env("BATCHFS_TEST_DEST", dest)
        .env("BATCHFS_TEST_CODEC", codec.name())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn child_dest() -> Option<PathBuf> {
    std::env::var_os("BATCHFS_TEST_DEST").map(PathBuf::from)
}

#[test]
#[ignore = "the other process of the file size test"]
fn child_with_a_file_size_limit() {
    let Some(dest) = child_dest() else { return };
    use nix::sys::resource::{Resource, setrlimit};
    setrlimit(Resource::RLIMIT_FSIZE, 64 << 10, 64 << 10).unwrap();
    let codec = std::env::var("BATCHFS_TEST_CODEC").unwrap().parse().unwrap();
    let mut writer = StoreWriter::create(&dest, bytes4(), small_options(codec)).unwrap();
    let e = writer.append(&noise(1 << 20, 1)).unwrap_err();
    let Error::Io { path, source, .. } = &e else { panic!("{e}") };
    assert_eq!((path, source.raw_os_error()), (&dest, Some(libc::EFBIG)), "{e}");
    assert!(writer.append(&[0; 4]).is_err());
    assert!(writer.finish().is_err());
}

#[test]
fn beyond_the_file_size_limit_is_an_error_not_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    for codec in Codec::ALL {
        assert!(child("child_with_a_file_size_limit", &dest, *codec).wait().unwrap().success());
        assert!(names(dir.path()).is_empty());
    }
}

#[test]
#[ignore = "the other process of the kill tests"]
fn child_that_gets_killed() {
    let Some(dest) = child_dest() else { return };
    let codec = std::env::var("BATCHFS_TEST_CODEC").unwrap().parse().unwrap();
    let mut writer = StoreWriter::create(&dest, kill_schema(codec), small_options(codec)).unwrap();
    for round in 0..40 {
        writer.append(&kill_data(round)).unwrap();
    }
    writer.finish().unwrap();
}

/// Of the size that a killed writer's life is long enough for, and that zstd makes smaller.
fn kill_data(round: u64) -> Vec<u8> {
    noise(4096, round).iter().map(|b| b & 15).collect()
}

fn kill_schema(codec: Codec) -> Schema {
    Schema::dense(DType::UInt8, [if codec == Codec::Raw { 4 } else { 64 }])
}

fn small_options(codec: Codec) -> WriteOptions {
    let samples: Vec<Vec<u8>> = (0..64).map(|_| kill_data(1)).collect();
    let dictionary = dictionary(&samples.iter().map(Vec::as_slice).collect::<Vec<_>>());
    with_codec(codec, &dictionary, options(3, 16))
}

fn kill_writers(codec: Codec, times: u64) {
    let want: Vec<u8> = (0..40).flat_map(kill_data).collect();
    let dir = tempfile::tempdir().unwrap();
    let (mut whole, mut none) = (0, 0);
    // From the beginning of the writing to about its end, whatever that takes on this machine.
    let mut window = Duration::from_millis(80);
    for round in 0..times {
        let dest = dir.path().join("s");
        let mut writer = child("child_that_gets_killed", &dest, codec);
        while leftovers(&dest).unwrap().is_empty() && writer.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        std::thread::sleep(window.mul_f64(f64::from(noise(64, round)[63]) / 256.0));
        writer.kill().unwrap();
        writer.wait().unwrap();
        window = window.mul_f64(if dest.exists() { 0.8 } else { 1.2 });
        if dest.exists() {
            whole += 1;
        } else {
            none += 1;
            assert!(leftovers(&dest).unwrap().len() <= 1);
            write(&dest, kill_schema(codec), small_options(codec), &want);
        }
        assert!(read(&dest, Verify::First).unwrap() == want, "round {round}");
        assert!(batchfs_store::verify(&dest, &|_| ()).unwrap().is_whole());
        assert_eq!(names(dir.path()), ["s"], "round {round}");
        fs::remove_dir_all(&dest).unwrap();
    }
    println!("{times} {codec:?} writers killed: {whole} stores whole, {none} not there");
}

#[test]
fn a_killed_writer_leaves_a_whole_store_or_none_and_a_rerun_works() {
    kill_writers(Codec::Raw, 20);
    kill_writers(Codec::Zstd, 10);
    kill_writers(Codec::ZstdDict, 5);
}

#[test]
#[ignore = "heavy; run with --full"]
fn a_thousand_killed_writers_leave_whole_stores_or_none() {
    kill_writers(Codec::Raw, 1000);
    kill_writers(Codec::Zstd, 1000);
}

#[test]
fn leftovers_of_live_writers_are_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let dest = dir.path().join("s");
    let dead = dir.path().join(".s.batchfs-tmp-1-00000000");
    fs::create_dir(&dead).unwrap();
    fs::write(dead.join("data-000.npy"), "half").unwrap();
    let live = StoreWriter::create(&dest, bytes4(), options(1, 1)).unwrap();
    assert!(!dead.exists());
    let other = StoreWriter::create(&dest, bytes4(), options(1, 1)).unwrap();
    assert_eq!(leftovers(&dest).unwrap().len(), 2);
    other.finish().unwrap();
    assert!(matches!(live.finish(), Err(Error::Exists { .. })));
}

/// A small filesystem of its own, gone when dropped.
struct Tmpfs(PathBuf);

impl Tmpfs {
    fn mount(at: PathBuf, size: &str) -> Option<Self> {
        fs::create_dir(&at).unwrap();
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "batchfs-test"])
            .arg(&at)
            .stderr(Stdio::null())
            .status();
        if done.is_ok_and(|s| s.success()) {
            return Some(Self(at));
        }
        println!("skipped: needs root");
        None
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_that_error_and_publishes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Tmpfs::mount(dir.path().join("disk"), "1m") else { return };
    let dest = disk.0.join("s");
    let said = |e: &Error| {
        let Error::Io { path, source, .. } = e else { panic!("{e}") };
        assert_eq!((path, source.raw_os_error()), (&dest, Some(libc::ENOSPC)), "{e}");
    };

    let mut writer = StoreWriter::create(&dest, bytes4(), options(3, 64)).unwrap();
    said(&writer.append(&noise(4 << 20, 1)).unwrap_err());
    assert!(writer.finish().is_err());
    assert!(names(&disk.0).is_empty());

    for codec in Codec::ALL {
        let all = ragged(6000, 1, 200, 4, 1);
        let options = small_options(*codec);
        let schema = Schema::ragged(DType::Int32, 1);
        let mut writer = StoreWriter::create(&dest, schema, options).unwrap();
        said(&writer.append_ragged(&all.values, &all.shapes).unwrap_err());
        assert!(writer.finish().is_err());
        assert!(names(&disk.0).is_empty());
    }

    // Full at the very end: from `finish`, or not at all.
    let mut published = 0;
    for fill in (0..=60).map(|n| (900 << 10) + n * 2048) {
        let ballast = disk.0.join("ballast");
        fs::write(&ballast, vec![1; fill]).unwrap();
        let run = || -> Result<()> {
            let mut writer = StoreWriter::create(&dest, bytes4(), options(2, 64))?;
            writer.append(&noise(4096, 2))?;
            writer.finish()
        };
        match run() {
            Ok(()) => {
                assert_eq!(read(&dest, Verify::First).unwrap(), noise(4096, 2));
                fs::remove_dir_all(&dest).unwrap();
                published += 1;
            }
            Err(e) => said(&e),
        }
        assert_eq!(names(&disk.0), ["ballast"]);
    }
    assert!((1..60).contains(&published));
}

#[test]
fn a_read_only_folder_is_that_error() {
    let dir = tempfile::tempdir().unwrap();
    let Some(disk) = Tmpfs::mount(dir.path().join("disk"), "1m") else { return };
    let writer = StoreWriter::create(disk.0.join("s"), bytes4(), WriteOptions::default()).unwrap();
    drop(writer);
    let done = Command::new("mount").args(["-o", "remount,ro"]).arg(&disk.0).status().unwrap();
    assert!(done.success());
    let e = StoreWriter::create(disk.0.join("s"), bytes4(), options(1, 1)).err().unwrap();
    let Error::Io { source, .. } = &e else { panic!("{e}") };
    assert_eq!(source.raw_os_error(), Some(libc::EROFS), "{e}");
}
