//! What this machine can do for batchfs.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use batchfs_dmabuf::Udmabuf;
use batchfs_region::{Arena, Backing, Config, HUGE_PAGE};
use batchfs_store::{DType, Schema, StoreWriter, WriteOptions};
use serde_json::json;

use crate::args::Doctor;
use crate::{gpu, program, say};

/// One thing looked at.
pub(crate) struct Finding {
    what: &'static str,
    state: State,
    /// What there is.
    found: String,
    /// What to do, if anything.
    advice: Option<String>,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum State {
    Good,
    /// Works, but slower or with less.
    Less,
    /// Does not work.
    Missing,
}

impl State {
    fn word(self) -> &'static str {
        match self {
            State::Good => "ok",
            State::Less => "less",
            State::Missing => "missing",
        }
    }
}

pub(crate) fn good(what: &'static str, found: impl Into<String>) -> Finding {
    Finding { what, state: State::Good, found: found.into(), advice: None }
}

pub(crate) fn less(
    what: &'static str,
    found: impl Into<String>,
    advice: impl Into<String>,
) -> Finding {
    Finding { what, state: State::Less, found: found.into(), advice: Some(advice.into()) }
}

pub(crate) fn missing(
    what: &'static str,
    found: impl Into<String>,
    advice: impl Into<String>,
) -> Finding {
    Finding { what, state: State::Missing, found: found.into(), advice: Some(advice.into()) }
}

pub fn run(args: &Doctor) -> anyhow::Result<ExitCode> {
    let mut findings =
        vec![kernel(), fuse(), rights(), mount(), huge_pages(), memory(), descriptors(), udmabuf()];
    findings.extend(gpu::findings());
    let mut out = say::out();
    if args.json {
        let all: Vec<_> = findings
            .iter()
            .map(|f| {
                json!({
                    "what": f.what,
                    "state": f.state.word(),
                    "found": f.found,
                    "advice": f.advice,
                })
            })
            .collect();
        let report = json!({ "format": "batchfs-doctor", "version": 1, "findings": all });
        writeln!(out, "{report:#}")?;
    } else {
        for f in &findings {
            writeln!(out, "{:<8} {:<12} {}", f.state.word(), f.what, f.found)?;
            if let Some(advice) = &f.advice {
                writeln!(out, "{:<21} -> {advice}", "")?;
            }
        }
    }
    let works = findings.iter().all(|f| f.state != State::Missing || is_optional(f.what));
    Ok(if works { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn is_optional(what: &str) -> bool {
    matches!(what, "udmabuf" | "render nodes" | "kfd" | "hip" | "gpus")
}

fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|s| s.trim().to_owned())
}

fn kernel() -> Finding {
    let release = read("/proc/sys/kernel/osrelease").unwrap_or_else(|| "unknown".to_owned());
    let mut numbers = release.split(['.', '-']).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    match version {
        v if v >= (6, 9) => good("kernel", format!("Linux {release}")),
        v if v >= (5, 10) => less(
            "kernel",
            format!("Linux {release}: works in cached mode"),
            "Linux 6.9 or newer passes batches through to readers, which is several times faster",
        ),
        _ => missing("kernel", format!("Linux {release}"), "batchfs needs Linux 5.10 or newer"),
    }
}

fn fuse() -> Finding {
    match fs::OpenOptions::new().read(true).write(true).open("/dev/fuse") {
        Ok(_) => good("fuse", "/dev/fuse can be opened"),
        Err(e) if e.kind() == ErrorKind::NotFound => missing(
            "fuse",
            "/dev/fuse is not there",
            "`modprobe fuse` as root; in a container, start it with `--device /dev/fuse`",
        ),
        Err(e) => missing(
            "fuse",
            format!("/dev/fuse cannot be opened: {e}"),
            "run as root, or let root say `chmod 666 /dev/fuse`",
        ),
    }
}

fn rights() -> Finding {
    if nix::unistd::geteuid().is_root() {
        return good("rights", "root: mounts by itself");
    }
    match batchfs_mount::find_helper() {
        Some(helper) => less(
            "rights",
            format!("not root: mounts through {}", helper.display()),
            "root (or CAP_SYS_ADMIN) gets passthrough",
        ),
        None => missing(
            "rights",
            "not root, and there is no fusermount3",
            "install the package fuse3, or run as root",
        ),
    }
}

/// Mounts something, in truth.
fn mount() -> Finding {
    match try_mount() {
        Ok((delivery, reason)) if delivery == "passthrough" => {
            let _ = reason;
            good("mount", "tried: works, with passthrough")
        }
        Ok((delivery, reason)) => less("mount", format!("tried: works, {delivery}"), reason),
        Err(e) => missing("mount", format!("tried: {e:#}"), "see the lines above"),
    }
}

fn try_mount() -> anyhow::Result<(String, String)> {
    let folder = tempfile::Builder::new().prefix("batchfs-doctor-").tempdir()?;
    let (store, dir) = (folder.path().join("data"), folder.path().join("mnt"));
    let mut writer =
        StoreWriter::create(&store, Schema::dense(DType::UInt8, []), WriteOptions::default())?;
    writer.append(&[7])?;
    writer.finish()?;
    fs::create_dir(&dir)?;
    let mounted =
        program::again()?.arg("mount").args([&store, &dir]).args(["--spec", "batch=1"]).output()?;
    if !mounted.status.success() {
        let said = String::from_utf8_lossy(&mounted.stderr);
        anyhow::bail!("{}", said.trim().trim_start_matches("batchfs: "));
    }
    let looked = fs::read(dir.join("data/batch/0"))
        .and_then(|bytes| Ok((bytes, fs::read(dir.join(".batchfs/config.json"))?)));
    let ended = program::again()?.arg("umount").arg(&dir).status()?;
    let (bytes, config) = looked?;
    anyhow::ensure!(bytes == [7], "a batch read through the mount has other bytes");
    anyhow::ensure!(ended.success(), "cannot be unmounted");
    let config: serde_json::Value = serde_json::from_slice(&config)?;
    let text = |key: &str| config[key].as_str().unwrap_or_default().to_owned();
    Ok((text("delivery"), text("delivery_reason")))
}

fn huge_pages() -> Finding {
    let setting = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    let setting = setting.split(['[', ']']).nth(1).unwrap_or("unknown").to_owned();
    let advice = "allow user namespaces (with Linux 6.15 or newer), run as root, or let root say `echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled`";
    let arena = match Arena::new(&Config { limit: 4 * HUGE_PAGE, backing: None }) {
        Ok(arena) => arena,
        Err(e) => return missing("huge pages", format!("no memory for batches: {e}"), advice),
    };
    let found = match arena.alloc(HUGE_PAGE as usize, "doctor".into()) {
        Ok(mut region) => region.bytes_mut().is_ok_and(|bytes| {
            bytes.fill(1);
            is_huge(bytes.as_ptr() as usize)
        }),
        Err(_) => false,
    };
    let backing = arena.backing();
    match (found, backing) {
        (true, _) => {
            good("huge pages", format!("tried: batches lie in huge pages ({})", backing.name()))
        }
        (false, Backing::HugeTmpfs) => less(
            "huge pages",
            "tried: a private tmpfs gives small pages",
            "memory may be fragmented; `echo 1 > /proc/sys/vm/compact_memory` as root, then try again",
        ),
        (false, Backing::Memfd) => {
            less("huge pages", format!("tried: small pages (shmem_enabled={setting})"), advice)
        }
    }
}

/// Whether the mapping at `address` is made of huge pages.
fn is_huge(address: usize) -> bool {
    let Some(smaps) = read("/proc/self/smaps") else { return false };
    let start = format!("{address:x}-");
    let mine = smaps.lines().skip_while(|l| !l.starts_with(&start)).skip(1);
    mine.take_while(|l| l.split_whitespace().next().is_some_and(|w| w.ends_with(':')))
        .any(|l| l.starts_with("ShmemPmdMapped:") && l.split_whitespace().nth(1) != Some("0"))
}

fn memory() -> Finding {
    let info = read("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| -> u64 {
        let line = info.lines().find_map(|l| l.strip_prefix(name)).unwrap_or_default();
        let kib = line.trim_start_matches(':').split_whitespace().next();
        kib.and_then(|n| n.parse::<u64>().ok()).unwrap_or(0) << 10
    };
    let free = bytesize::ByteSize(field("MemAvailable"));
    let total = bytesize::ByteSize(field("MemTotal"));
    let mut found = format!("{free} of {total} available");
    if let Some(limit) = read("/sys/fs/cgroup/memory.max").and_then(|m| m.parse::<u64>().ok()) {
        found = format!("{found}, limit of this group {}", bytesize::ByteSize(limit));
    }
    if free.as_u64() < 2 << 30 {
        less("memory", found, "mount with a --memory below what is available; the default is 1GiB")
    } else {
        good("memory", found)
    }
}

fn descriptors() -> Finding {
    use nix::sys::resource::{Resource, getrlimit};
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if hard >= 4096 => good("descriptors", format!("up to {hard}")),
        Ok((_, hard)) => less(
            "descriptors",
            format!("only up to {hard}"),
            "each batch that readers have open or mapped takes one in the daemon: raise `ulimit -Hn`",
        ),
        Err(e) => less("descriptors", e.to_string(), "raise `ulimit -Hn`"),
    }
}

/// Makes a dma-buf, in truth.
fn udmabuf() -> Finding {
    match Udmabuf::open() {
        Ok(device) => {
            let limits = device.limits();
            let tell = |limit: Option<u64>| limit.map_or("unknown".to_owned(), |n| n.to_string());
            let limits = format!(
                "size_limit_mb={}, list_limit={}",
                tell(limits.bytes.map(|b| b >> 20)),
                tell(limits.ranges)
            );
            match device.probe() {
                Ok(()) => good("udmabuf", format!("tried: makes dma-bufs ({limits})")),
                Err(e) => missing(
                    "udmabuf",
                    format!("/dev/udmabuf opens, but: {e}"),
                    "see the kernel's log; only dma-bufs need it",
                ),
            }
        }
        Err(e) => missing("udmabuf", e.why, format!("{}; only dma-bufs need it", e.way_out)),
    }
}
