//! dma-bufs out of a mount, through its descriptor service. Needs udmabuf, FUSE and the program:
//! `tests/guest/run.py` runs it on a kernel that has them.
#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use batchfs_dmabuf::client::{Client, ClientError, Export, Wanted};
use batchfs_dmabuf::{Access, DmaBuf, Mapping};
use batchfs_store::{DType, Schema, StoreWriter, WriteOptions};
use serde_json::Value;

const PAGE: usize = 4096;

/// A mount by the program; unmounted when dropped.
struct Mount {
    program: PathBuf,
    dir: PathBuf,
    _folder: tempfile::TempDir,
}

/// `None` where the test is to be skipped.
fn mount(streams: &[(&str, &[u64])], more: &[&str]) -> Option<Mount> {
    if std::env::var_os("BATCHFS_GUEST").is_none() {
        eprintln!("skipped: it needs the guest of tests/guest/run.py");
        return None;
    }
    let program = PathBuf::from(std::env::var_os("BATCHFS_BIN").unwrap());
    let folder = tempfile::tempdir().unwrap();
    let (data, dir) = (folder.path().join("data"), folder.path().join("mnt"));
    fs::create_dir(&data).unwrap();
    fs::create_dir(&dir).unwrap();
    for (name, shape) in streams {
        let schema = Schema::dense(DType::UInt8, *shape);
        let mut writer =
            StoreWriter::create(data.join(name), schema, WriteOptions::default()).unwrap();
        let item = shape.iter().product::<u64>();
        for record in 0..100 {
            let bytes: Vec<u8> = (0..item).map(|i| (i / 7 * 3 + record * 31) as u8).collect();
            writer.append(&bytes).unwrap();
        }
        writer.finish().unwrap();
    }
    let made = Command::new(&program).arg("mount").args([&data, &dir]).args(more).status().unwrap();
    assert!(made.success());
    Some(Mount { program, dir, _folder: folder })
}

impl Drop for Mount {
    fn drop(&mut self) {
        let ended = Command::new(&self.program).arg("umount").arg(&self.dir).status();
        assert!(std::thread::panicking() || ended.unwrap().success());
    }
}

impl Mount {
    fn client(&self) -> Client {
        Client::connect(&self.dir.join(".batchfs/service.sock")).unwrap()
    }

    fn file(&self, path: &str) -> Vec<u8> {
        fs::read(self.dir.join(path)).unwrap()
    }

    fn config(&self) -> Value {
        serde_json::from_slice(&self.file(".batchfs/config.json")).unwrap()
    }

    fn metric(&self, name: &str) -> u64 {
        let text = String::from_utf8(self.file(".batchfs/metrics")).unwrap();
        let name = format!("batchfs_{name} ");
        text.lines().find_map(|l| l.strip_prefix(&name)?.parse().ok()).unwrap()
    }

    /// Waits for a gauge, which is looked after now and then.
    fn comes_to(&self, name: &str, value: u64) -> bool {
        let until = Instant::now() + Duration::from_secs(60);
        while Instant::now() < until {
            if self.metric(name) == value {
                return true;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        false
    }
}

fn wanted(stream: &str, step: u64) -> Wanted {
    Wanted { stream: stream.into(), step, kind: "dmabuf".into(), ..Wanted::default() }
}

fn open(export: Export) -> (DmaBuf, Mapping) {
    assert_eq!(export.descriptor.kind, "dmabuf");
    let buffer = DmaBuf::from_fd(export.file).unwrap();
    assert_eq!(buffer.len().unwrap(), export.descriptor.size);
    let map = buffer.map().unwrap();
    (buffer, map)
}

fn read(buffer: &DmaBuf, map: &Mapping, at: usize, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    buffer.sync_start(Access::Read).unwrap();
    map.read(at, &mut bytes).unwrap();
    buffer.sync_end(Access::Read).unwrap();
    bytes
}

#[test]
fn a_batch_of_whole_pages_is_the_mounts_own_memory() {
    let Some(m) = mount(&[("images", &[32, 32, 4])], &["--spec", "batch=16", "--dmabuf"]) else {
        return;
    };
    let config = m.config();
    assert_eq!(config["delivery"], "passthrough", "{config}");
    assert_eq!(config["memory_backing"], "memfd");
    let client = m.client();
    let hello = client.hello().unwrap();
    assert_eq!(hello["kinds"], serde_json::json!(["memfd", "dmabuf"]), "{hello}");

    let file = File::open(m.dir.join("images/batch/3")).unwrap();
    let wanted_bytes = m.file("images/batch/3");
    let export = client.export(&wanted("images", 3)).unwrap();
    assert!(export.descriptor.shared);
    let lease = export.descriptor.lease;
    let tensor = export.descriptor.tensors[0].clone();
    assert_eq!((tensor.shape, tensor.offset), (vec![16, 32, 32, 4], 0));
    let picture = tensor.picture.unwrap();
    assert_eq!((picture.fourcc.as_str(), picture.modifier, picture.pitch), ("AB24", 0, 128));
    let (buffer, map) = open(export);
    assert!(read(&buffer, &map, 0, wanted_bytes.len()) == wanted_bytes);

    // The same page frames: what is written here is seen there, in every page.
    for page in 0..wanted_bytes.len() / PAGE {
        let at = page * PAGE + page;
        map.write(at, b"seen").unwrap();
        let mut seen = [0; 4];
        file.read_exact_at(&mut seen, at as u64).unwrap();
        assert_eq!(seen, *b"seen", "page {page}");
        map.write(at, &wanted_bytes[at..at + 4]).unwrap();
    }

    // It counts until the last one has let go, whoever gave it back.
    drop(file);
    client.release(vec![lease]).unwrap();
    let kept = buffer.fd().try_clone_to_owned().unwrap();
    drop((buffer, map));
    drop(client);
    assert!(m.comes_to("service_clients", 0));
    assert_eq!(m.metric("service_leases"), 0);
    assert!(m.metric("memory_live_bytes") >= wanted_bytes.len() as u64);
    assert_eq!(m.metric("open_handles"), 1);
    let kept = DmaBuf::from_fd(kept).unwrap();
    assert!(read(&kept, &kept.map().unwrap(), 0, wanted_bytes.len()) == wanted_bytes);
    drop(kept);
    assert!(m.comes_to("open_handles", 0));
}

#[test]
fn a_batch_that_ends_within_a_page_is_a_copy_in_whole_pages() {
    let Some(m) = mount(&[("odd", &[51, 27, 3])], &["--spec", "batch=5", "--dmabuf"]) else {
        return;
    };
    let client = m.client();
    for step in 0..4 {
        let bytes = m.file(&format!("odd/batch/{step}"));
        let export = client.export(&wanted("odd", step)).unwrap();
        assert!(!export.descriptor.shared);
        assert_eq!(export.descriptor.size as usize, bytes.len().next_multiple_of(PAGE));
        let (buffer, map) = open(export);
        assert!(read(&buffer, &map, 0, bytes.len()) == bytes, "step {step}");
        let rest = map.len() - bytes.len();
        assert_eq!(read(&buffer, &map, bytes.len(), rest), vec![0; rest]);
        // Nobody sees what is written there.
        map.write(0, b"mine").unwrap();
        assert!(m.file(&format!("odd/batch/{step}")) == bytes);
    }
    let refused = client.export(&Wanted { kind: "tape".into(), ..wanted("odd", 0) }).unwrap_err();
    let said = refused.to_string();
    assert_eq!(said, "there is no kind \"tape\"; there are memfd and dmabuf");
}

#[test]
fn records_in_memory_are_handed_out_without_a_copy() {
    let streams: [(&str, &[u64]); 2] = [("images", &[51, 27, 3]), ("small", &[8])];
    let Some(m) = mount(&streams, &["--spec", "batch=16,seed=5", "--resident"]) else { return };
    let config = m.config();
    assert_eq!(config["resident"]["images"]["stride"], 8192, "{config}");
    assert_eq!(config["resident"]["images"]["bytes"], 8192 * 100);
    assert_eq!(config["resident"]["small"], Value::Null);
    assert_eq!(m.metric("memory_resident_bytes"), 8192 * 100);
    let errors = String::from_utf8(m.file(".batchfs/errors")).unwrap();
    let note = "small: records of 8 bytes are not kept in memory: each would take 4096";
    assert!(errors.contains(note), "{errors}");

    let client = m.client();
    let item = 51 * 27 * 3;
    for step in 0..5 {
        let bytes = m.file(&format!("images/batch/{step}"));
        let export = client.export(&wanted("images", step)).unwrap();
        assert!(export.descriptor.shared);
        let tensor = &export.descriptor.tensors[0];
        assert_eq!(tensor.strides, [8192, 81, 3, 1]);
        assert_eq!(tensor.picture.as_ref().unwrap().fourcc, "BG24");
        let (buffer, map) = open(export);
        for (i, record) in bytes.chunks_exact(item).enumerate() {
            assert!(read(&buffer, &map, i * 8192, item) == record, "step {step}, row {i}");
        }
    }
    // What is not in memory is gathered.
    let bytes = m.file("small/batch/2");
    let (buffer, map) = open(client.export(&wanted("small", 2)).unwrap());
    assert!(read(&buffer, &map, 0, bytes.len()) == bytes);

    // So is what the machine's limits do not allow, and that is told.
    let limit = "/sys/module/udmabuf/parameters/list_limit";
    let before = fs::read_to_string(limit).unwrap();
    fs::write(limit, "4").unwrap();
    let export = client.export(&wanted("images", 0)).unwrap();
    fs::write(limit, before.trim()).unwrap();
    assert_eq!(export.descriptor.tensors[0].strides, [item as u64, 81, 3, 1]);
    let bytes = m.file("images/batch/0");
    let (buffer, map) = open(export);
    assert!(read(&buffer, &map, 0, bytes.len()) == bytes);
    let errors = String::from_utf8(m.file(".batchfs/errors")).unwrap();
    let why = "images/batch/0: not made of its records' pages: a dma-buf of";
    assert!(errors.contains(why) && errors.contains("list_limit"), "{errors}");
}

/// The other user of the next test.
#[test]
fn stranger() {
    let Some(dir) = std::env::var_os("BATCHFS_STRANGER") else { return };
    let client = Client::connect(&Path::new(&dir).join(".batchfs/service.sock")).unwrap();
    let export = match client.export(&wanted("images", 1)) {
        Ok(export) => export,
        Err(ClientError::Refused { message, .. }) => panic!("{message}"),
        Err(e) => panic!("{e}"),
    };
    assert!(!export.descriptor.shared);
    let (_buffer, map) = open(export);
    map.write(0, &vec![0xee; map.len()]).unwrap();
}

#[test]
fn another_user_gets_a_copy() {
    for how in ["--dmabuf", "--resident"] {
        let more = ["--spec", "batch=16", "--allow-other", how];
        let Some(m) = mount(&[("images", &[32, 32, 4])], &more) else { return };
        let parent = m.dir.parent().unwrap();
        fs::set_permissions(parent, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let before = m.file("images/batch/1");
        let there = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "stranger", "--nocapture"])
            .env("BATCHFS_STRANGER", &m.dir)
            .uid(1000)
            .gid(1000)
            .status()
            .unwrap();
        assert!(there.success());
        assert!(m.file("images/batch/1") == before);
        let own = m.client().export(&wanted("images", 1)).unwrap();
        assert!(own.descriptor.shared);
        let (buffer, map) = open(own);
        assert!(read(&buffer, &map, 0, before.len()) == before);
    }
}

#[test]
fn copies_that_clients_keep_have_a_limit() {
    // Each is given back and kept, so that no lease counts it: eight of a million bytes fit into 8 MiB.
    let more = ["--spec", "batch=10", "--memory", "8MiB"];
    let Some(m) = mount(&[("x", &[100_001])], &more) else { return };
    let client = m.client();
    let mut kept = Vec::new();
    let refused = loop {
        match client.export(&wanted("x", kept.len() as u64)) {
            Ok(export) => {
                assert!(!export.descriptor.shared);
                client.release(vec![export.descriptor.lease]).unwrap();
                kept.push(export.file);
            }
            Err(ClientError::Refused { errno, message }) => break (errno, message),
            Err(e) => panic!("{e}"),
        }
        assert!(kept.len() <= 8);
    };
    assert_eq!((kept.len(), refused.0), (8, libc::ENOMEM), "{}", refused.1);
    assert!(refused.1.contains("take 8028160, and may take 8388608"), "{}", refused.1);
    drop(kept);
    let until = Instant::now() + Duration::from_secs(60);
    while client.export(&wanted("x", 9)).is_err() {
        assert!(Instant::now() < until, "what was let go is still counted");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Prints how long an export of a ready batch takes; asserts no time.
#[test]
fn the_time_of_an_export() {
    let Some(m) = mount(&[("images", &[64, 64, 4])], &["--spec", "batch=64", "--dmabuf"]) else {
        return;
    };
    let client = m.client();
    let held = client.export(&wanted("images", 0)).unwrap();
    for kind in ["dmabuf", ""] {
        let wanted = Wanted { kind: kind.into(), ..wanted("images", 0) };
        let mut times = Vec::new();
        for _ in 0..200 {
            let since = Instant::now();
            let export = client.export(&wanted);
            times.push(since.elapsed());
            let export = export.unwrap();
            let lease = export.descriptor.lease;
            drop(export);
            client.release(vec![lease]).unwrap();
        }
        times.sort();
        let kind = if kind.is_empty() { "memfd" } else { kind };
        println!("figure: request to descriptor, ready batch of 1 MiB, {kind}: {:?}", times[100]);
    }
    drop(held);
}
