//! Memory of a node, filled by the processor and exported: over the dumb buffers of vgem, which stand in
//! for a GPU's memory.
#![allow(clippy::unwrap_used)]

mod common;
mod sys;

use std::fs::{self, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use batchfs_dmabuf::DmaBuf;
use batchfs_dmabuf::render::{Amdgpu, Dumb, Node as _, nodes};
use common::{bytes, in_guest, pattern};
use drm::Device as _;

struct Card(fs::File);

impl AsFd for Card {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl drm::Device for Card {}

/// Where vgem's card is; `None` where the test is to be skipped.
fn vgem() -> Option<PathBuf> {
    let cards = fs::read_dir("/dev/dri").into_iter().flatten().flatten().map(|e| e.path());
    let is_vgem = |path: &PathBuf| {
        let opened = OpenOptions::new().read(true).write(true).open(path);
        opened.is_ok_and(|f| Card(f).get_driver().is_ok_and(|d| d.name() == "vgem"))
    };
    let name = |path: &PathBuf| {
        path.file_name().is_some_and(|n| n.as_encoded_bytes().starts_with(b"card"))
    };
    let found = cards.filter(name).find(is_vgem);
    if found.is_none() {
        assert!(!in_guest(), "no card of the driver vgem");
        eprintln!("skipped: no card of the driver vgem");
    }
    found
}

#[test]
fn what_is_filled_is_what_the_dma_buf_has() {
    let Some(path) = vgem() else { return };
    let node = Dumb::open(&path).unwrap();
    assert_eq!(node.name(), path.display().to_string());
    for len in [4096, 12 << 10, 1 << 20, (3 << 20) + 4096] {
        let mut buffer = node.create(len).unwrap();
        assert_eq!(buffer.len(), len);
        assert!(buffer.bytes_mut().iter().all(|b| *b == 0), "new memory is zeros");
        let want = pattern(len, len as u32);
        buffer.bytes_mut().copy_from_slice(&want);
        buffer.filled();
        let dma_buf = buffer.dma_buf().unwrap();
        assert_eq!(dma_buf.len().unwrap(), len as u64);
        // What another process is given, which has nothing but the descriptor.
        let other = DmaBuf::from_fd(dma_buf.fd().try_clone_to_owned().unwrap()).unwrap();
        assert!(bytes(&other) == want);
        drop(buffer);
        assert!(bytes(&other) == want, "the memory lives as long as the descriptor");
    }
}

#[test]
fn buffers_that_are_filled_again_show_the_new_bytes() {
    let Some(path) = vgem() else { return };
    let node = Dumb::open(&path).unwrap();
    let mut buffer = node.create(1 << 20).unwrap();
    let other = buffer.dma_buf().unwrap().fd().try_clone_to_owned().unwrap();
    let other = DmaBuf::from_fd(other).unwrap();
    for seed in 0..5 {
        let want = pattern(1 << 20, seed);
        buffer.bytes_mut().copy_from_slice(&want);
        buffer.filled();
        assert!(bytes(&other) == want);
    }
}

#[test]
fn nothing_is_left_of_many_buffers() {
    let Some(path) = vgem() else { return };
    let node = Dumb::open(&path).unwrap();
    let descriptors = || fs::read_dir("/proc/self/fd").unwrap().count();
    let maps = || fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    drop(node.create(4096).unwrap());
    let before = (descriptors(), maps());
    // More bytes than the guest has, so that memory that is kept would be missed.
    for _ in 0..300 {
        let mut buffer = node.create(8 << 20).unwrap();
        buffer.bytes_mut()[0] = 1;
        buffer.filled();
    }
    assert_eq!((descriptors(), maps()), before);
}

#[test]
fn a_node_of_another_driver_makes_no_memory_for_amdgpu() {
    let Some(path) = vgem() else { return };
    let node = Amdgpu::open(&path).unwrap();
    let refused = node.create(4096).unwrap_err().to_string();
    assert!(refused.starts_with("cannot make memory on the GPU's render node: "), "{refused}");
    let listed = nodes();
    assert!(listed.iter().any(|n| n.path.to_string_lossy().contains("renderD")), "{listed:?}");
}
