//! dma-bufs in the hands of display and GPU drivers: vgem, which has no device, and the driver of
//! qemu's Cirrus card, which reads every pixel.
#![allow(clippy::unwrap_used)]

mod common;
mod sys;

use std::fs::{self, File, OpenOptions};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use batchfs_dmabuf::{Access, DmaBuf, Picture};
use common::{PAGE, bytes, in_guest, memfd, pattern, udmabuf};
use drm::Device as _;
use drm::buffer::{Handle, PlanarBuffer};
use drm::control::{Device as _, FbCmd2Flags, connector};
use drm_fourcc::{DrmFourcc, DrmModifier};

struct Card(File);

impl AsFd for Card {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl drm::Device for Card {}
impl drm::control::Device for Card {}

/// The card of this driver; `None` where the test is to be skipped.
fn card(driver: &str) -> Option<Card> {
    let cards = fs::read_dir("/dev/dri").into_iter().flatten().flatten();
    for entry in cards.filter(|e| e.file_name().to_string_lossy().starts_with("card")) {
        let opened = OpenOptions::new().read(true).write(true).open(entry.path());
        let Ok(card) = opened.map(Card) else { continue };
        if card.get_driver().is_ok_and(|d| d.name() == driver) {
            return Some(card);
        }
    }
    assert!(!in_guest(), "no card of the driver {driver}");
    eprintln!("skipped: no card of the driver {driver}");
    None
}

#[test]
fn vgem_imports_a_dma_buf_and_gives_the_same_one_back() {
    let (Some(device), Some(vgem)) = (udmabuf(), card("vgem")) else { return };
    let all = pattern(7 * PAGE, 11);
    let file = memfd(&all);
    let buffer = device.create(file.as_fd(), 0, all.len() as u64).unwrap();
    assert_eq!(buffer.count().unwrap(), 1);
    let handle = vgem.prime_fd_to_buffer(buffer.fd()).unwrap();
    assert!(buffer.count().unwrap() > 1, "an importer is counted");
    let back = vgem.buffer_to_prime_fd(handle, drm::CLOEXEC).unwrap();
    let back = DmaBuf::from_fd(back).unwrap();
    assert_eq!(back.inode().unwrap(), buffer.inode().unwrap());
    assert!(bytes(&back) == all);
    vgem.close_buffer(handle).unwrap();
    drop(back);
    assert_eq!(buffer.count().unwrap(), 1, "and no more when it has let go");
    assert!(buffer.is_unused().unwrap());
}

#[test]
fn vgems_own_buffer_is_one_too() {
    let Some(vgem) = card("vgem") else { return };
    let dumb = vgem.create_dumb_buffer((256, 16), DrmFourcc::Xrgb8888, 32).unwrap();
    let handle = drm::buffer::Buffer::handle(&dumb);
    let fd = vgem.buffer_to_prime_fd(handle, drm::CLOEXEC | drm::RDWR).unwrap();
    let buffer = DmaBuf::from_fd(fd).unwrap();
    assert_eq!(buffer.len().unwrap(), 4 * PAGE as u64);
    let all = pattern(4 * PAGE, 12);
    buffer.sync_start(Access::Write).unwrap();
    buffer.map().unwrap().write(0, &all).unwrap();
    buffer.sync_end(Access::Write).unwrap();
    assert!(bytes(&buffer) == all);
    vgem.destroy_dumb_buffer(dumb).unwrap();
    assert!(bytes(&buffer) == all, "it outlives the driver's handle");
}

#[test]
fn a_fence_holds_back_reuse_until_it_is_signalled() {
    let (Some(device), Some(vgem)) = (udmabuf(), card("vgem")) else { return };
    let file = memfd(&pattern(PAGE, 13));
    let buffer = device.create(file.as_fd(), 0, PAGE as u64).unwrap();
    let now = Duration::ZERO;
    assert!(buffer.idle(Access::ReadWrite, now).unwrap());
    for write in [false, true] {
        let handle = vgem.prime_fd_to_buffer(buffer.fd()).unwrap();
        let fence = sys::attach_fence(&vgem, handle.into(), write);
        // A device that reads keeps writers away, one that writes readers, too.
        assert_eq!(buffer.idle(Access::Read, now).unwrap(), !write);
        assert!(!buffer.idle(Access::Write, now).unwrap());
        assert!(!buffer.is_unused().unwrap());
        let pending = buffer.export_sync_file(Access::Write).unwrap();
        assert!(!sys::readable(&pending), "the sync file shows the fence");

        let waits = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let since = Instant::now();
                buffer.sync_start(Access::Write).unwrap();
                buffer.sync_end(Access::Write).unwrap();
                since.elapsed()
            });
            std::thread::sleep(Duration::from_millis(200));
            let early = waiter.is_finished();
            sys::signal_fence(&vgem, fence);
            (early, waiter.join().unwrap())
        });
        assert!(!waits.0, "SYNC waits for the device; it took {:?}", waits.1);
        assert!(buffer.idle(Access::ReadWrite, now).unwrap());
        assert!(sys::readable(&pending), "and the sync file says that it is done");
        assert!(!buffer.is_unused().unwrap(), "the importer is still there");
        vgem.close_buffer(handle).unwrap();
        assert!(buffer.is_unused().unwrap());
    }

    // A fence of another buffer's work, carried over: this one is busy until that is done.
    let other = device.create(file.as_fd(), 0, PAGE as u64).unwrap();
    let handle = vgem.prime_fd_to_buffer(other.fd()).unwrap();
    let fence = sys::attach_fence(&vgem, handle.into(), true);
    let work = other.export_sync_file(Access::ReadWrite).unwrap();
    buffer.import_sync_file(Access::Write, &work).unwrap();
    assert!(!buffer.is_unused().unwrap());
    sys::signal_fence(&vgem, fence);
    assert!(buffer.is_unused().unwrap());
    vgem.close_buffer(handle).unwrap();
}

/// A record of a dma-buf, to be scanned out.
struct Frame {
    picture: Picture,
    handle: Handle,
    offset: u32,
    fourcc: DrmFourcc,
}

impl PlanarBuffer for Frame {
    fn size(&self) -> (u32, u32) {
        (self.picture.width, self.picture.height)
    }
    fn format(&self) -> DrmFourcc {
        self.fourcc
    }
    fn modifier(&self) -> Option<DrmModifier> {
        None
    }
    fn pitches(&self) -> [u32; 4] {
        [self.picture.pitch, 0, 0, 0]
    }
    fn handles(&self) -> [Option<Handle>; 4] {
        [Some(self.handle), None, None, None]
    }
    fn offsets(&self) -> [u32; 4] {
        [self.offset, 0, 0, 0]
    }
}

/// The card's own memory, as the processor sees it.
fn video_memory() -> sys::Resource {
    const CIRRUS: &str = "0x1013";
    let devices = fs::read_dir("/sys/bus/pci/devices").unwrap().flatten().map(|e| e.path());
    let cirrus = devices
        .filter(|p| fs::read_to_string(p.join("vendor")).is_ok_and(|v| v.trim() == CIRRUS))
        .collect::<Vec<_>>();
    sys::Resource::map(&cirrus[0].join("resource0"))
}

#[test]
fn cirrus_scans_out_each_record_of_a_batch() {
    let (Some(device), Some(cirrus)) = (udmabuf(), card("cirrus")) else { return };
    let resources = cirrus.resource_handles().unwrap();
    let connector = resources
        .connectors()
        .iter()
        .map(|c| cirrus.get_connector(*c, true).unwrap())
        .find(|c| c.state() == connector::State::Connected)
        .unwrap();
    let mode = *connector.modes().iter().find(|m| m.size() == (640, 480)).unwrap();
    let screen = video_memory();

    // Two records, one behind the other: the second begins in the middle of a page.
    for (channels, fourcc) in [(3u64, DrmFourcc::Rgb888), (4, DrmFourcc::Xrgb8888)] {
        let picture = Picture::of(&[480, 640, channels]).unwrap();
        let item = (picture.pitch * picture.height) as usize;
        let all = pattern((2 * item).next_multiple_of(PAGE), 14 + channels as u32);
        let file = memfd(&all);
        let buffer = device.create(file.as_fd(), 0, all.len() as u64).unwrap();
        let handle = cirrus.prime_fd_to_buffer(buffer.fd()).unwrap();
        for record in [1, 0] {
            let offset = picture.offset((record * item) as u64).unwrap();
            let frame = Frame { picture, handle, offset, fourcc };
            let fb = cirrus.add_planar_framebuffer(&frame, FbCmd2Flags::empty()).unwrap();
            let crtc = resources.crtcs()[0];
            cirrus.set_crtc(crtc, Some(fb), (0, 0), &[connector.handle()], Some(mode)).unwrap();
            let wanted = &all[record * item..][..item];
            let pitch = picture.pitch as usize;
            let shown = screen.read(item);
            let wrong = wanted.iter().zip(&shown).position(|(a, b)| a != b);
            let place = wrong.map(|at| (at / pitch, at % pitch / channels as usize));
            assert_eq!(place, None, "(row, column) that differs: {fourcc}, record {record}");
            cirrus.destroy_framebuffer(fb).unwrap();
        }
        cirrus.close_buffer(handle).unwrap();
    }
}
