//! Single calls on files, of a mount or of the disk.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use batchfs_dmabuf::client::{Client, Wanted};
use serde::Deserialize;

/// Which calls.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    OpenClose,
    Stat,
}

/// Nanoseconds of each of `count` repetitions on one path.
pub fn time(what: What, path: &Path, count: usize) -> anyhow::Result<Vec<u64>> {
    let mut taken = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        match what {
            What::OpenClose => drop(File::open(path)?),
            What::Stat => {
                nix::sys::stat::stat(path)?;
            }
        }
        taken.push(start.elapsed().as_nanos() as u64);
    }
    Ok(taken)
}

/// Nanoseconds of each of `count` ways of a byte to another thread and back, over a socket: what
/// waking two threads in turn costs on this machine, `pause_us` after the last time.
pub fn round_trips(count: usize, pause_us: u64) -> anyhow::Result<Vec<u64>> {
    let (mut ours, mut theirs) = UnixStream::pair()?;
    let echo = std::thread::spawn(move || {
        let mut byte = [0];
        while theirs.read_exact(&mut byte).is_ok() && theirs.write_all(&byte).is_ok() {}
    });
    let mut taken = Vec::with_capacity(count);
    let mut byte = [0];
    for _ in 0..count {
        spin(pause_us);
        let start = Instant::now();
        ours.write_all(&byte)?;
        ours.read_exact(&mut byte)?;
        taken.push(start.elapsed().as_nanos() as u64);
    }
    drop(ours);
    echo.join().map_err(|_| anyhow::anyhow!("the echo panicked"))?;
    Ok(taken)
}

/// Nanoseconds from a request to the descriptor service to the descriptor, of one ready batch.
pub fn exports(socket: &Path, stream: &str, step: u64, count: usize) -> anyhow::Result<Vec<u64>> {
    let client = Client::connect(socket)?;
    let wanted = Wanted { stream: stream.to_owned(), step, ..Wanted::default() };
    let mut taken = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        let export = client.export(&wanted)?;
        taken.push(start.elapsed().as_nanos() as u64);
        drop(export.file);
        client.release(vec![export.descriptor.lease])?;
    }
    Ok(taken)
}

/// Nanoseconds of open, read of one byte, and close, of each of a row of files. Spins before each
/// for `pause_us`, in which a prefetch can be done.
pub fn fresh(
    dir: &Path,
    suffix: &str,
    from: u64,
    count: u64,
    pause_us: u64,
) -> anyhow::Result<Vec<u64>> {
    let mut taken = Vec::with_capacity(count as usize);
    let mut byte = [0];
    for step in from..from + count {
        let path = dir.join(format!("{step}{suffix}"));
        spin(pause_us);
        let start = Instant::now();
        let mut file = File::open(&path)?;
        file.read_exact(&mut byte)?;
        drop(file);
        taken.push(start.elapsed().as_nanos() as u64);
    }
    Ok(taken)
}

fn spin(us: u64) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_micros(us) {
        std::hint::spin_loop();
    }
}
