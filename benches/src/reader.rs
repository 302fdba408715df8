//! A reader of batches: maps or reads each file and sums it.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use serde::Deserialize;

use crate::memory;

/// How the bytes get here.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    Mmap,
    Read,
}

/// Nanoseconds and sum (u64 words, wrapping; `skip` bytes at the front left out) of each file.
pub fn sum(
    dir: &Path,
    suffix: &str,
    skip: usize,
    from: u64,
    count: u64,
    how: How,
) -> anyhow::Result<(Vec<u64>, Vec<u64>)> {
    let (mut taken, mut sums) = (Vec::new(), Vec::new());
    let mut buffer = Vec::new();
    for step in from..from + count {
        let path = dir.join(format!("{step}{suffix}"));
        let start = Instant::now();
        let sum = match how {
            How::Mmap => {
                let map = memory::map(&path)?;
                words(map.get(skip..).context("shorter than its header")?)
            }
            How::Read => {
                let mut file = File::open(&path)?;
                let len = file.metadata()?.len() as usize;
                buffer.resize(len, 0);
                file.read_exact(&mut buffer)?;
                words(buffer.get(skip..).context("shorter than its header")?)
            }
        };
        taken.push(start.elapsed().as_nanos() as u64);
        sums.push(sum);
    }
    Ok((taken, sums))
}

fn words(bytes: &[u8]) -> u64 {
    bytes
        .chunks_exact(8)
        .filter_map(|b| b.try_into().ok().map(u64::from_le_bytes))
        .fold(0, u64::wrapping_add)
}
