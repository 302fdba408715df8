//! A process that has no descriptor left. Limits are the process's: there is one test here.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::File;

use batchfs_region::{AllocError, Arena, Backing, Config, Region};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// A region of `len` bytes, all of them `fill`.
fn region(arena: &Arena, len: usize, fill: u8) -> Result<Region, AllocError> {
    let mut region = arena.alloc(len, "r".into())?;
    region.bytes_mut().unwrap().fill(fill);
    Ok(region.freeze())
}

/// Opens files until there is no descriptor left.
fn exhaust() -> Vec<File> {
    std::iter::from_fn(|| File::open("/dev/null").ok()).collect()
}

#[test]
fn idle_regions_give_up_their_descriptors() {
    let hard = getrlimit(Resource::RLIMIT_NOFILE).unwrap().1;
    setrlimit(Resource::RLIMIT_NOFILE, 64, hard).unwrap();
    for backing in [Some(Backing::Memfd), None] {
        let arena = Arena::new(&Config { limit: 1 << 30, backing }).unwrap();
        let kept: Vec<Region> = (0..4).map(|n| region(&arena, 5000, n).unwrap()).collect();
        let held = region(&arena, 6000, 7).unwrap();
        drop(kept);
        assert_eq!(arena.stats().idle, 4 * 8192);

        // Memory of another size: none of the idle regions serves.
        let full = exhaust();
        let other = region(&arena, 9000, 8).unwrap();
        let stats = arena.stats();
        assert_eq!((stats.idle, stats.regions), (0, 2), "idle regions are given up");
        assert_eq!(stats.used, stats.live);
        assert!(held.bytes().unwrap().iter().all(|b| *b == 7), "those in use stay");
        drop(full);

        // A descriptor for another process.
        drop(region(&arena, 5000, 1).unwrap());
        let full = exhaust();
        let lent = held.lend().unwrap();
        assert_eq!(arena.stats().idle, 0);
        drop((lent, full));

        // Nothing is kept any more: the error is told, and leaves nothing behind.
        drop(other);
        arena.trim(std::time::Duration::ZERO);
        let full = exhaust();
        let before = arena.stats();
        match region(&arena, 100, 1) {
            Err(AllocError::Os { len: 100, source }) => {
                assert_eq!(source.raw_os_error(), Some(nix::libc::EMFILE));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(arena.stats(), before);
        drop(full);
        assert!(region(&arena, 100, 1).is_ok());
    }
}
