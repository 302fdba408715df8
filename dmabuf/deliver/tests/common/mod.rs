//! What the tests that need a kernel with udmabuf share. `tests/guest/run.py` runs them on one.
#![allow(dead_code, clippy::unwrap_used)]

use std::ffi::CString;
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt as _;

use batchfs_dmabuf::{Access, DmaBuf, Udmabuf};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};

pub const PAGE: usize = 4096;

/// In the guest everything has to be there, elsewhere a test is skipped with a line.
pub fn in_guest() -> bool {
    std::env::var_os("BATCHFS_GUEST").is_some()
}

/// The device; `None` where the test is to be skipped.
pub fn udmabuf() -> Option<Udmabuf> {
    match Udmabuf::open() {
        Ok(device) => Some(device),
        Err(e) if in_guest() => panic!("{e}"),
        Err(e) => {
            eprintln!("skipped: {e}");
            None
        }
    }
}

/// A memfd with these bytes and, of the seals, that against shrinking.
pub fn memfd(bytes: &[u8]) -> File {
    let file = unsealed(bytes);
    seal(&file, SealFlag::F_SEAL_SHRINK);
    file
}

pub fn unsealed(bytes: &[u8]) -> File {
    let name = CString::new("batchfs-test").unwrap();
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = File::from(memfd_create(name.as_c_str(), flags).unwrap());
    file.write_all_at(bytes, 0).unwrap();
    file
}

pub fn seal(file: impl AsFd, seals: SealFlag) {
    fcntl(file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
}

/// Bytes that differ from page to page.
pub fn pattern(len: usize, seed: u32) -> Vec<u8> {
    (0..len as u32)
        .map(|i| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) as u8)
        .collect()
}

/// All bytes of it, read as they are to be read.
pub fn bytes(buffer: &DmaBuf) -> Vec<u8> {
    let mut all = vec![0; buffer.len().unwrap() as usize];
    buffer.sync_start(Access::Read).unwrap();
    buffer.map().unwrap().read(0, &mut all).unwrap();
    buffer.sync_end(Access::Read).unwrap();
    all
}

/// The page frames of `count` pages from `at` on; 0 for one that is not there, or not ours to see.
pub fn frames(at: *const u8, count: usize) -> Vec<u64> {
    let pagemap = File::open("/proc/self/pagemap").unwrap();
    let mut entries = vec![0; 8 * count];
    // Only what was touched is there.
    (0..count).for_each(|i| crate::sys::touch(at.wrapping_add(i * PAGE)));
    pagemap.read_exact_at(&mut entries, (at as usize / PAGE * 8) as u64).unwrap();
    let entries = entries.chunks_exact(8).map(|e| u64::from_ne_bytes(e.try_into().unwrap()));
    entries.map(|e| if e >> 63 == 1 { e & ((1 << 55) - 1) } else { 0 }).collect()
}
