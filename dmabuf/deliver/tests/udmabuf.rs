//! dma-bufs out of memfds, on a real kernel.
#![allow(clippy::unwrap_used)]

mod common;
mod sys;

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixDatagram;
use std::process::Command;

use batchfs_dmabuf::{Access, DmaBuf, Limits, Range, Udmabuf};
use common::{PAGE, bytes, frames, in_guest, memfd, pattern, seal, udmabuf, unsealed};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use sys::Shared;

#[test]
fn a_dma_buf_has_the_memfds_own_pages() {
    let Some(device) = udmabuf() else { return };
    let all = pattern(5 * PAGE, 1);
    let file = memfd(&all);
    let buffer = device.create(file.as_fd(), PAGE as u64, 3 * PAGE as u64).unwrap();
    assert_eq!(buffer.len().unwrap(), 3 * PAGE as u64);
    assert!(bytes(&buffer) == all[PAGE..4 * PAGE]);

    file.write_all_at(b"new", 2 * PAGE as u64).unwrap();
    assert_eq!(bytes(&buffer)[PAGE..][..3], *b"new", "written to the memfd, seen in the dma-buf");
    let map = buffer.map().unwrap();
    buffer.sync_start(Access::Write).unwrap();
    map.write(0, b"back").unwrap();
    buffer.sync_end(Access::Write).unwrap();
    let mut seen = [0; 4];
    file.read_exact_at(&mut seen, PAGE as u64).unwrap();
    assert_eq!(seen, *b"back", "and the other way");
    for (at, len) in [(3 * PAGE, 1), (3 * PAGE - 1, 2), (usize::MAX, 1)] {
        assert!(map.read(at, &mut vec![0; len]).is_err(), "{len} bytes at {at}");
        assert!(map.write(at, &vec![0; len]).is_err(), "{len} bytes at {at}");
    }

    drop(file);
    assert_eq!(bytes(&buffer)[..4], *b"back", "it outlives the memfd");
}

#[test]
fn pieces_of_several_memfds_become_one_in_the_order_of_the_list() {
    let Some(device) = udmabuf() else { return };
    let (a, b) = (pattern(4 * PAGE, 2), pattern(4 * PAGE, 3));
    let (fa, fb) = (memfd(&a), memfd(&b));
    let page = PAGE as u64;
    let list = [(&fb, 3, 1), (&fa, 0, 2), (&fb, 0, 1), (&fa, 1, 1), (&fb, 3, 1)];
    let ranges: Vec<_> = list
        .iter()
        .map(|(f, at, n)| Range { memfd: f.as_fd(), offset: at * page, len: n * page })
        .collect();
    let buffer = device.create_list(&ranges).unwrap();
    let pages: [&[u8]; 5] =
        [&b[3 * PAGE..], &a[..2 * PAGE], &b[..PAGE], &a[PAGE..2 * PAGE], &b[3 * PAGE..]];
    assert!(bytes(&buffer) == pages.concat(), "a piece may come twice");
}

#[test]
fn refusals_are_in_words() {
    let Some(device) = udmabuf() else { return };
    let page = PAGE as u64;
    let all = pattern(4 * PAGE, 4);
    let good = memfd(&all);
    let refused = |device: &Udmabuf, file: &std::fs::File, at: u64, len: u64| -> String {
        device.create(file.as_fd(), at, len).unwrap_err().to_string()
    };
    for (at, len, why) in [
        (0, 0, "it is empty"),
        (1, page, "it does not begin at a page"),
        (0, page + 1, "it does not end at a page"),
        (page, 4 * page, "it goes beyond the file's end"),
        (8 * page, page, "it goes beyond the file's end"),
        (u64::MAX - page + 1, page, "it goes beyond the file's end"),
    ] {
        assert_eq!(
            refused(&device, &good, at, len),
            format!(
                "no dma-buf can be made of bytes {at} to {} of a file of 16384 bytes: {why}",
                u128::from(at) + u128::from(len)
            )
        );
    }
    let unsealed = unsealed(&all);
    let why = "no dma-buf can be made of this file: ";
    assert_eq!(
        refused(&device, &unsealed, 0, page),
        format!("{why}the memfd is not sealed against shrinking")
    );
    for more in [SealFlag::F_SEAL_WRITE, SealFlag::F_SEAL_FUTURE_WRITE] {
        let file = memfd(&all);
        seal(&file, more);
        assert_eq!(
            refused(&device, &file, 0, page),
            format!("{why}the memfd is sealed against writing")
        );
    }
    let other = std::fs::File::open("/proc/self/status").unwrap();
    assert_eq!(refused(&device, &other, 0, page), format!("{why}it is no memfd"));
    let never = std::fs::File::from(memfd_create(c"never", MFdFlags::MFD_CLOEXEC).unwrap());
    never.set_len(page).unwrap();
    assert_eq!(
        refused(&device, &never, 0, page),
        format!("{why}it is no memfd, or one that can get no seals")
    );
    let none = device.create_list(&[]).unwrap_err().to_string();
    assert_eq!(none, format!("{why}it is to have no pieces"));
}

#[test]
fn limits_are_told_in_words_and_followed_when_root_changes_them() {
    let Some(device) = udmabuf() else { return };
    let limits = device.limits();
    let (Some(most), Some(size)) = (limits.ranges, limits.bytes) else {
        panic!("a limit is not told: {limits:?}");
    };
    let page = PAGE as u64;
    let file = memfd(&[7; 2 * PAGE]);
    let range = |i: u64| Range { memfd: file.as_fd(), offset: i % 2 * page, len: page };
    let mut ranges: Vec<_> = (0..most).map(range).collect();
    let buffer = device.create_list(&ranges).unwrap();
    assert_eq!(buffer.len().unwrap(), most * page);
    drop(buffer);
    ranges.push(range(0));
    let many = most + 1;
    assert_eq!(
        device.create_list(&ranges).unwrap_err().to_string(),
        format!(
            "a dma-buf of {many} pieces has more than this machine allows, {most}; root raises it with \
             `echo {many} > /sys/module/udmabuf/parameters/list_limit`"
        )
    );

    let large = unsealed(&[]);
    large.set_len(size + page).unwrap();
    seal(&large, SealFlag::F_SEAL_SHRINK);
    let mb = (size >> 20) + 1;
    assert_eq!(
        device.create(large.as_fd(), 0, size + page).unwrap_err().to_string(),
        format!(
            "a dma-buf of {} bytes is larger than this machine allows, {size} bytes; root raises it with \
             `echo {mb} > /sys/module/udmabuf/parameters/size_limit_mb`",
            size + page
        )
    );

    if in_guest() {
        let set = |name: &str, to: u64| {
            let path = format!("/sys/module/udmabuf/parameters/{name}");
            std::fs::write(path, to.to_string()).unwrap();
        };
        set("list_limit", many);
        set("size_limit_mb", mb);
        assert_eq!(device.limits(), Limits { ranges: Some(many), bytes: Some(mb << 20) });
        device.create_list(&ranges).unwrap();
        device.create(large.as_fd(), 0, size + page).unwrap();
        set("list_limit", most);
        set("size_limit_mb", size >> 20);
    }
}

#[test]
fn bytes_of_any_length_become_a_dma_buf_of_whole_pages() {
    let Some(device) = udmabuf() else { return };
    for len in [1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 17] {
        let all = pattern(len, 5);
        let buffer = device.create_copy(&all).unwrap();
        let seen = bytes(&buffer);
        assert_eq!(seen.len(), len.next_multiple_of(PAGE));
        assert!(seen[..len] == all && seen[len..].iter().all(|b| *b == 0), "{len}");
    }
    assert!(device.create_copy(&[]).is_err());
}

#[test]
fn other_descriptors_are_told_from_dma_bufs() {
    let file = memfd(&[1; PAGE]);
    let fd: OwnedFd = file.try_clone().unwrap().into();
    assert_eq!(DmaBuf::from_fd(fd).unwrap_err().to_string(), "the descriptor is no dma-buf");
    let Some(device) = udmabuf() else { return };
    let buffer = device.create(file.as_fd(), 0, PAGE as u64).unwrap();
    let copy = DmaBuf::from_fd(buffer.fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!(copy.inode().unwrap(), buffer.inode().unwrap());
    let other = device.create(file.as_fd(), 0, PAGE as u64).unwrap();
    assert_ne!(other.inode().unwrap(), buffer.inode().unwrap());
}

#[test]
fn holders_are_counted() {
    let Some(device) = udmabuf() else { return };
    let file = memfd(&[1; PAGE]);
    let buffer = device.create(file.as_fd(), 0, PAGE as u64).unwrap();
    assert!(buffer.is_unused().unwrap());
    let copy = buffer.fd().try_clone_to_owned().unwrap();
    assert_eq!(buffer.count().unwrap(), 2);
    let map = DmaBuf::from_fd(copy).unwrap().map().unwrap();
    assert_eq!(buffer.count().unwrap(), 2, "the mapping alone");
    assert!(!buffer.is_unused().unwrap());
    drop(map);
    assert!(buffer.is_unused().unwrap());
}

#[test]
fn a_name_shows_in_fdinfo() {
    let Some(device) = udmabuf() else { return };
    let buffer = device.create(memfd(&[1; PAGE]).as_fd(), 0, PAGE as u64).unwrap();
    let name = || {
        let path = format!("/proc/self/fdinfo/{}", buffer.fd().as_raw_fd());
        let info = std::fs::read_to_string(path).unwrap();
        info.lines().find_map(|l| l.strip_prefix("name:").map(|n| n.trim().to_owned()))
    };
    assert_eq!(name(), None);
    buffer.set_name("images/batch/17").unwrap();
    assert_eq!(name().as_deref(), Some("images/batch/17"));
    buffer.set_name(&"x".repeat(100)).unwrap();
    assert_eq!(name(), Some("x".repeat(31)));
}

#[test]
fn its_pages_are_the_memfds_page_frames() {
    let Some(device) = udmabuf() else { return };
    let file = memfd(&pattern(8 * PAGE, 6));
    let map = Shared::new(&file, 8 * PAGE);
    let mine = frames(map.as_ptr(), 8);
    assert!(mine.iter().all(|f| *f != 0), "only root sees page frames");
    let whole = device.create(file.as_fd(), 0, 8 * PAGE as u64).unwrap();
    assert_same_pages(&map, &mine, &[0, 1, 2, 3, 4, 5, 6, 7], &whole);
    let page = PAGE as u64;
    let picked = [6, 1, 3];
    let list: Vec<_> = picked
        .iter()
        .map(|i| Range { memfd: file.as_fd(), offset: *i as u64 * page, len: page })
        .collect();
    assert_same_pages(&map, &mine, &picked, &device.create_list(&list).unwrap());
}

/// The pages of `buffer` are those of `map`. Kernels from 6.9 on do not show the frames of a dma-buf's
/// mapping; but what is written into one page, and seen in the other, was written into that frame.
fn assert_same_pages(map: &Shared, frames_of_map: &[u64], picked: &[usize], buffer: &DmaBuf) {
    let mapped = buffer.map().unwrap();
    let seen = frames(mapped.as_ptr(), picked.len());
    for (i, page) in picked.iter().enumerate() {
        assert!(seen[i] == 0 || seen[i] == frames_of_map[*page], "page {page}");
        let at = i * PAGE + 100 + i;
        for word in [b"once", b"more"] {
            mapped.write(at, word).unwrap();
            assert_eq!(map.read(page * PAGE + 100 + i, 4), word, "page {page}");
        }
    }
}

#[test]
fn a_hole_in_the_memfd_parts_the_two_and_the_dma_buf_keeps_its_bytes() {
    let Some(device) = udmabuf() else { return };
    let all = pattern(3 * PAGE, 7);
    let file = memfd(&all);
    let buffer = device.create(file.as_fd(), 0, 3 * PAGE as u64).unwrap();
    let hole = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    fallocate(&file, hole, PAGE as i64, PAGE as i64).unwrap();
    file.write_all_at(&[9; PAGE], PAGE as u64).unwrap();
    assert!(bytes(&buffer) == all, "who holds it sees no other batch");
}

#[test]
fn no_seal_against_writing_as_long_as_it_lives() {
    let Some(device) = udmabuf() else { return };
    let file = memfd(&[1; PAGE]);
    let buffer = device.create(file.as_fd(), 0, PAGE as u64).unwrap();
    let add = || fcntl(&file, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_WRITE));
    let map = buffer.map().unwrap();
    map.write(0, &[2]).unwrap();
    assert_eq!(add(), Err(Errno::EBUSY));
}

/// The other end of the next test.
#[test]
fn child() {
    if std::env::var_os("BATCHFS_CHILD").is_none() {
        return;
    }
    let buffer = DmaBuf::from_fd(receive(std::io::stdin())).unwrap();
    let seen = bytes(&buffer);
    assert!(seen == pattern(4 * PAGE, 8));
    buffer.map().unwrap().write(0, b"from the child").unwrap();
}

#[test]
fn another_process_gets_it_through_a_socket() {
    let Some(device) = udmabuf() else { return };
    let file = memfd(&pattern(4 * PAGE, 8));
    let buffer = device.create(file.as_fd(), 0, 4 * PAGE as u64).unwrap();
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child"])
        .env("BATCHFS_CHILD", "1")
        .stdin(OwnedFd::from(theirs))
        .spawn()
        .unwrap();
    send(&ours, buffer.fd());
    assert!(child.wait().unwrap().success());
    assert_eq!(bytes(&buffer)[..14], *b"from the child");
    drop(ours);
    assert_eq!(buffer.count().unwrap(), 1, "nothing is left of the other process");
    assert!(buffer.is_unused().unwrap());
}

fn send(socket: &UnixDatagram, fd: BorrowedFd<'_>) {
    let fds = [fd.as_raw_fd()];
    let message = [ControlMessage::ScmRights(&fds)];
    let data = [IoSlice::new(b"x")];
    sendmsg::<()>(socket.as_raw_fd(), &data, &message, MsgFlags::empty(), None).unwrap();
}

fn receive(socket: impl AsRawFd) -> OwnedFd {
    let (mut byte, mut space) = ([0], nix::cmsg_space!([std::os::fd::RawFd; 1]));
    let mut data = [IoSliceMut::new(&mut byte)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC;
    let got = recvmsg::<()>(socket.as_raw_fd(), &mut data, Some(&mut space), flags).unwrap();
    let fd = got.cmsgs().unwrap().find_map(|c| match c {
        ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
        _ => None,
    });
    sys::own(fd.unwrap())
}
