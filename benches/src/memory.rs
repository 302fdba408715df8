//! Mapped memory: the only `unsafe` of this program.
#![allow(unsafe_code)]

use std::fs::File;
use std::path::Path;

use anyhow::Context as _;
use memmap2::{Advice, Mmap, MmapMut, MmapOptions};

/// Bytes before the data of the `.npy` files that the harness makes, and of those of a mount.
pub fn npy_start(bytes: &[u8]) -> anyhow::Result<usize> {
    let len = bytes.get(8..10).context("no .npy header")?;
    Ok(10 + usize::from(u16::from_le_bytes([len[0], len[1]])))
}

/// Maps a file for reading.
pub fn map(path: &Path) -> anyhow::Result<Mmap> {
    let file = File::open(path).with_context(|| path.display().to_string())?;
    // SAFETY: the files that are mapped are the harness's own, or those of a batchfs mount, whose
    // contents do not change; nobody shortens them while this process runs.
    unsafe { Mmap::map(&file) }.with_context(|| path.display().to_string())
}

/// A kept buffer in huge pages, where the machine has them, every page touched.
pub fn huge_buffer(len: usize) -> anyhow::Result<MmapMut> {
    let mut buffer = MmapOptions::new().len(len.next_multiple_of(2 << 20)).map_anon()?;
    // Without huge pages the buffer is as good, and slower.
    let _ = buffer.advise(Advice::HugePage);
    buffer.fill(1);
    Ok(buffer)
}

/// The numbers of a file of u64.
pub fn ids(path: &Path) -> anyhow::Result<Vec<u64>> {
    let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
    Ok(bytes.chunks_exact(8).filter_map(|b| b.try_into().ok().map(u64::from_le_bytes)).collect())
}
