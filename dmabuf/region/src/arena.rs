use std::collections::{HashMap, VecDeque};
use std::io;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::backing::{Backing, HUGE_FROM, HUGE_PAGE, Maker, Memory, page_size};
use crate::region::{RegionMut, Shown};

/// How many regions that readers may still have are asked on an allocation that needs no room:
/// asking costs some microseconds each.
const PROBES: usize = 4;

/// How an arena is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// The byte budget: all regions together, whoever holds them, never take more.
    pub limit: u64,
    /// Which files to use; `None` takes the best that this process may have.
    pub backing: Option<Backing>,
}

/// Why there is no region.
#[derive(Debug, thiserror::Error)]
pub enum AllocError {
    /// It would not fit even if it were alone.
    #[error("a region of {needed} bytes is larger than the whole memory budget of {limit} bytes")]
    TooLarge {
        /// Bytes it would take.
        needed: u64,
        /// The budget.
        limit: u64,
    },
    /// The budget is in use.
    #[error("no room for {needed} bytes: {used} of {limit} bytes are in use")]
    NoRoom {
        /// Bytes it would take.
        needed: u64,
        /// Bytes in use.
        used: u64,
        /// The budget.
        limit: u64,
    },
    /// The system gave no memory.
    #[error("cannot make a region of {len} bytes: {source}")]
    Os {
        /// Bytes asked for.
        len: u64,
        /// The cause.
        source: io::Error,
    },
}

/// Somebody who keeps memory of the arena.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// What the region was allocated for.
    pub label: Arc<str>,
    /// Bytes charged for it.
    pub bytes: u64,
    /// Whether this process has let it go, and only readers outside still have it.
    pub outside: bool,
}

/// What an arena holds, in bytes unless said otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// The budget.
    pub limit: u64,
    /// Everything together; never above `limit`.
    pub used: u64,
    /// Regions with a handle in this process.
    pub live: u64,
    /// Regions without one that readers outside may still have.
    pub outside: u64,
    /// Regions kept for reuse.
    pub idle: u64,
    /// Number of regions of all kinds.
    pub regions: u64,
}

/// The source of regions. Cloning shares it.
#[derive(Clone)]
pub struct Arena(Arc<Shared>);

pub(crate) struct Shared {
    limit: u64,
    maker: Maker,
    /// Whether the kernel can be asked who else has a region. If not, exposed ones no longer count
    /// when this process lets them go.
    can_ask: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next_id: u64,
    used: u64,
    live: HashMap<u64, Holder>,
    /// With whether its holders promised to keep nothing.
    outside: VecDeque<(Holder, Memory, bool)>,
    idle: HashMap<usize, Vec<(Instant, Memory)>>,
    idle_bytes: u64,
    idle_count: u64,
}

impl Arena {
    /// A new arena; nothing is allocated yet.
    ///
    /// # Errors
    /// If [`Backing::HugeTmpfs`] is asked for and this process may not have it, or the system
    /// gives no memory at all.
    pub fn new(config: &Config) -> io::Result<Arena> {
        let maker = match config.backing {
            Some(Backing::Memfd) => Maker::Memfd,
            wanted => {
                let maker = Maker::best();
                if wanted.is_some_and(|w| w != maker.kind()) {
                    return Err(io::Error::new(
                        io::ErrorKind::PermissionDenied,
                        "a private tmpfs needs CAP_SYS_ADMIN, or user namespaces and Linux 6.15",
                    ));
                }
                maker
            }
        };
        let can_ask = probe(&maker)?;
        let state = Mutex::default();
        Ok(Arena(Arc::new(Shared { limit: config.limit, maker, can_ask, state })))
    }

    /// The kind of files in use.
    pub fn backing(&self) -> Backing {
        self.0.maker.kind()
    }

    /// The byte budget.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }

    /// Bytes of the budget that a region of `len` bytes takes.
    pub fn charge(len: u64) -> u64 {
        let unit = if len >= HUGE_FROM { HUGE_PAGE } else { page_size() };
        len.checked_next_multiple_of(unit).unwrap_or(u64::MAX)
    }

    /// A region of exactly `len` bytes, more than 0. `label` is what messages call it.
    ///
    /// Takes, in this order, an idle region of that size, new memory, or new memory after regions
    /// that readers have let go, and idle ones of other sizes, were freed. Does not wait.
    ///
    /// # Errors
    /// See [`AllocError`].
    pub fn alloc(&self, len: usize, label: Arc<str>) -> Result<RegionMut, AllocError> {
        let shared = &self.0;
        let os = |source| AllocError::Os { len: len as u64, source };
        let size = NonZeroUsize::new(len).ok_or_else(|| {
            os(io::Error::new(io::ErrorKind::InvalidInput, "a region has at least one byte"))
        })?;
        let bytes = Arena::charge(len as u64);
        if bytes > shared.limit {
            return Err(AllocError::TooLarge { needed: bytes, limit: shared.limit });
        }
        // Freed after the lock is released: unmapping many pages takes milliseconds.
        let mut state = shared.lock();
        let mut freed = state.let_go(PROBES);
        let found = state.take_idle(len);
        if found.is_none() {
            if state.used + bytes > shared.limit {
                freed.extend(state.let_go(usize::MAX));
                freed.extend(state.shrink_idle(shared.limit - bytes));
            }
            if state.used + bytes > shared.limit {
                let used = state.used;
                return Err(AllocError::NoRoom { needed: bytes, used, limit: shared.limit });
            }
            state.used += bytes;
        }
        let id = state.next_id;
        state.next_id += 1;
        state.live.insert(id, Holder { label: label.clone(), bytes, outside: false });
        drop(state);
        drop(freed);
        let memory = match found {
            Some(memory) => memory,
            None => shared.with_descriptor(|| shared.maker.make(size)).map_err(|e| {
                let mut state = shared.lock();
                state.live.remove(&id);
                state.used -= bytes;
                os(e)
            })?,
        };
        Ok(RegionMut::new(id, label, memory, shared.clone()))
    }

    /// Looks which regions readers have let go since, and frees them.
    pub fn sweep(&self) {
        let freed = self.0.lock().let_go(usize::MAX);
        drop(freed);
    }

    /// Frees regions that have been idle for `age` or longer.
    pub fn trim(&self, age: Duration) {
        let freed = self.0.lock().trim(age);
        drop(freed);
    }

    /// The figures of this moment.
    pub fn stats(&self) -> Stats {
        let state = self.0.lock();
        Stats {
            limit: self.0.limit,
            used: state.used,
            live: state.live.values().map(|h| h.bytes).sum(),
            outside: state.outside.iter().map(|(h, ..)| h.bytes).sum(),
            idle: state.idle_bytes,
            regions: state.live.len() as u64 + state.outside.len() as u64 + state.idle_count,
        }
    }

    /// Everybody who keeps memory, largest first.
    pub fn holders(&self) -> Vec<Holder> {
        let state = self.0.lock();
        let mut all: Vec<Holder> =
            state.live.values().chain(state.outside.iter().map(|(h, ..)| h)).cloned().collect();
        drop(state);
        all.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.label.cmp(&b.label)));
        all
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Every method leaves the state whole at each point where it could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls what takes a descriptor. If there is none left, those of regions that nobody uses are
    /// given up, and it is called once more.
    pub(crate) fn with_descriptor<T>(&self, open: impl Fn() -> io::Result<T>) -> io::Result<T> {
        match open() {
            Err(e) if is_no_descriptor(&e) && self.give_up() => open(),
            done => done,
        }
    }

    /// Frees all regions that are idle, and then those that readers have let go, which may take a
    /// descriptor to find out. Says whether there were any.
    fn give_up(&self) -> bool {
        let idle = self.lock().shrink_idle(0);
        let mut any = !idle.is_empty();
        drop(idle);
        let mut state = self.lock();
        let mut freed = state.let_go(usize::MAX);
        freed.extend(state.shrink_idle(0));
        drop(state);
        any |= !freed.is_empty();
        any
    }

    pub(crate) fn give_back(&self, id: u64, memory: Memory, shown: Shown) {
        // Those who had it on loan have closed it by now, as a rule.
        let back = match shown {
            Shown::Inside => true,
            Shown::Lent => self.can_ask && memory.unseen().unwrap_or(false),
            Shown::Exposed => false,
        };
        let mut state = self.lock();
        let Some(holder) = state.live.remove(&id) else { return };
        if back {
            state.put_idle(memory);
        } else if self.can_ask {
            let again = shown == Shown::Lent;
            state.outside.push_back((Holder { outside: true, ..holder }, memory, again));
        } else {
            state.used -= holder.bytes;
            drop(state);
            drop(memory);
        }
    }
}

impl State {
    fn take_idle(&mut self, len: usize) -> Option<Memory> {
        let stack = self.idle.get_mut(&len)?;
        let (_, memory) = stack.pop()?;
        if stack.is_empty() {
            self.idle.remove(&len);
        }
        self.idle_bytes -= Arena::charge(len as u64);
        self.idle_count -= 1;
        Some(memory)
    }

    fn put_idle(&mut self, mut memory: Memory) {
        memory.used = true;
        let len = memory.len();
        self.idle_bytes += Arena::charge(len as u64);
        self.idle_count += 1;
        self.idle.entry(len).or_default().push((Instant::now(), memory));
    }

    /// Takes out regions that readers have let go, after a look at the `most` oldest, for freeing.
    ///
    /// For reuse only what was lent: a reader may still hold pages that no descriptor and no mapping
    /// shows, in a pipe (splice, vmsplice), a socket (sendfile) or a device. Freed pages keep their
    /// bytes for those; pages that are filled again would not.
    fn let_go(&mut self, most: usize) -> Vec<Memory> {
        let mut freed = Vec::new();
        for _ in 0..self.outside.len().min(most) {
            let Some((holder, memory, again)) = self.outside.pop_front() else { break };
            if !memory.unseen().unwrap_or(false) {
                // To the end, so that one reader who keeps a batch for ever is not asked each time.
                self.outside.push_back((holder, memory, again));
            } else if again {
                self.put_idle(memory);
            } else {
                self.used -= holder.bytes;
                freed.push(memory);
            }
        }
        freed
    }

    /// Takes idle regions out until no more than `target` bytes are in use, or none is left.
    fn shrink_idle(&mut self, target: u64) -> Vec<Memory> {
        let mut freed = Vec::new();
        while self.used > target {
            let Some(&len) = self.idle.keys().max() else { break };
            match self.take_idle(len) {
                Some(memory) => freed.push(memory),
                None => break,
            }
            self.used -= Arena::charge(len as u64);
        }
        freed
    }

    fn trim(&mut self, age: Duration) -> Vec<Memory> {
        let now = Instant::now();
        let mut freed = Vec::new();
        for stack in self.idle.values_mut() {
            // Pushed and popped at the end, so the oldest come first.
            let old = stack.partition_point(|(since, _)| now.duration_since(*since) >= age);
            freed.extend(stack.drain(..old).map(|(_, memory)| memory));
        }
        self.idle.retain(|_, stack| !stack.is_empty());
        let bytes: u64 = freed.iter().map(|m| Arena::charge(m.len() as u64)).sum();
        self.used -= bytes;
        self.idle_bytes -= bytes;
        self.idle_count -= freed.len() as u64;
        freed
    }
}

/// Whether this process, or the whole system, has no descriptor left.
fn is_no_descriptor(e: &io::Error) -> bool {
    matches!(e.raw_os_error(), Some(libc::EMFILE | libc::ENFILE))
}

/// Whether this kernel tells of other users of a region, tried on one.
fn probe(maker: &Maker) -> io::Result<bool> {
    let memory = maker.make(NonZeroUsize::MIN)?;
    let alone = memory.unseen();
    let reader = crate::backing::reopen(&memory.file);
    let seen = memory.unseen();
    drop(reader);
    Ok(matches!((alone, seen, memory.unseen()), (Ok(true), Ok(false), Ok(true))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(limit: u64) -> Arena {
        Arena::new(&Config { limit, backing: None }).unwrap()
    }

    fn label(s: &str) -> Arc<str> {
        s.into()
    }

    fn open(region: &crate::Region) -> std::fs::File {
        crate::backing::reopen(region.expose()).unwrap().into()
    }

    #[test]
    fn unexposed_regions_are_reused_and_exposed_ones_never() {
        let a = arena(1 << 20);
        let mut r = a.alloc(5000, label("one")).unwrap();
        r.bytes_mut().unwrap().fill(1);
        drop(r.freeze());
        assert_eq!(a.stats().idle, 8192);
        let mut r = a.alloc(5000, label("two")).unwrap();
        assert!(!r.is_new());
        assert_eq!(r.bytes_mut().unwrap()[0], 1, "the idle region is used again");
        r.bytes_mut().unwrap().fill(2);
        let region = r.freeze();
        let reader = open(&region);
        drop(region);
        let mut other = a.alloc(5000, label("three")).unwrap();
        other.bytes_mut().unwrap().fill(3);
        let mut seen = vec![0; 5000];
        std::os::unix::fs::FileExt::read_exact_at(&reader, &mut seen, 0).unwrap();
        assert!(seen.iter().all(|b| *b == 2), "what a reader has open was changed");
        assert_eq!(a.stats().outside, 8192);
        drop(reader);
        let mut again = a.alloc(5000, label("four")).unwrap();
        assert_eq!(again.bytes_mut().unwrap()[0], 0, "new memory");
        assert_eq!(a.stats().outside, 0, "and the old is freed");
    }

    /// Both kinds of files, where this process may have both.
    fn arenas(limit: u64) -> Vec<Arena> {
        let memfd = Arena::new(&Config { limit, backing: Some(Backing::Memfd) }).unwrap();
        match arena(limit) {
            other if other.backing() == Backing::Memfd => vec![memfd],
            other => vec![memfd, other],
        }
    }

    #[test]
    fn what_was_lent_is_filled_again_when_all_copies_of_the_descriptor_are_gone() {
        for a in arenas(1 << 20) {
            let mut r = a.alloc(5000, label("lent")).unwrap();
            r.bytes_mut().unwrap().fill(1);
            let region = r.freeze();
            let lent = region.lend().unwrap();
            // What a message to another process does.
            let copy = lent.try_clone().unwrap();
            drop(lent);
            drop(region);
            let mut other = a.alloc(5000, label("other")).unwrap();
            other.bytes_mut().unwrap().fill(9);
            assert_eq!(a.stats().outside, 8192, "{:?}", a.backing());
            let mut seen = vec![0; 5000];
            let copy = std::fs::File::from(copy);
            std::os::unix::fs::FileExt::read_exact_at(&copy, &mut seen, 0).unwrap();
            assert!(seen.iter().all(|b| *b == 1));
            drop(copy);
            let mut again = a.alloc(5000, label("again")).unwrap();
            assert_eq!(again.bytes_mut().unwrap()[0], 1, "the same pages");
            again.bytes_mut().unwrap().fill(2);
            assert_eq!(a.stats().outside, 0);
            // A second time: the name and the seals are there already.
            let region = again.freeze();
            drop(region.lend().unwrap());
            drop(region);
            assert_eq!(a.stats().idle, 8192, "given back at once");
        }
    }

    #[test]
    fn what_was_lent_and_never_given_back_is_not_filled_again() {
        for a in arenas(1 << 20) {
            let mut r = a.alloc(5000, label("lent")).unwrap();
            r.bytes_mut().unwrap().fill(1);
            let region = r.freeze();
            drop(region.lend().unwrap());
            region.expose();
            drop(region);
            let mut next = a.alloc(5000, label("next")).unwrap();
            assert_eq!(next.bytes_mut().unwrap()[0], 0, "new memory");
        }
    }

    #[test]
    fn nobody_writes_through_what_was_lent() {
        use std::os::fd::AsRawFd as _;
        use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
        for a in arenas(1 << 20) {
            let mut r = a.alloc(5000, label("lent")).unwrap();
            r.bytes_mut().unwrap().fill(1);
            let region = r.freeze();
            let lent = std::fs::File::from(region.lend().unwrap());
            assert!(lent.write_at(&[7], 0).is_err());
            assert!(lent.set_len(0).is_err());
            let path = format!("/proc/self/fd/{}", lent.as_raw_fd());
            let _ = std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666));
            // Root gets past every mode; what stops it is the seal, or the read-only mount.
            if let Ok(file) = std::fs::OpenOptions::new().read(true).write(true).open(&path) {
                assert!(file.write_at(&[7], 0).is_err(), "{:?}", a.backing());
                assert!(file.set_len(0).is_err() && file.set_len(9000).is_err());
                let mut options = memmap2::MmapOptions::new();
                assert!(options.len(5000).map_raw(file.as_raw_fd()).is_err());
            }
            assert!(region.bytes().unwrap().iter().all(|b| *b == 1));
        }
    }

    #[test]
    fn what_is_written_is_what_readers_and_this_process_see() {
        let a = arena(64 << 20);
        let bytes: Vec<u8> = (0..5_000_000u32).map(|i| ((i * 7) >> 3) as u8).collect();
        let mut r = a.alloc(bytes.len(), label("written")).unwrap();
        assert!(r.is_new());
        let (front, back) = bytes.split_at(2 << 20);
        r.write_at(back, front.len() as u64).unwrap();
        r.write_at(front, 0).unwrap();
        for (bytes, at) in [(&[1][..], 5_000_000), (&[1, 2], 4_999_999), (&[1], u64::MAX)] {
            let refused = r.write_at(bytes, at).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        }
        let region = r.freeze();
        let mut seen = vec![0; bytes.len()];
        std::os::unix::fs::FileExt::read_exact_at(&open(&region), &mut seen, 0).unwrap();
        assert!(seen == bytes);
        assert!(region.bytes().unwrap() == bytes);
        drop(region);
        a.sweep();
        assert_eq!(a.stats().used, 0, "it was shown, so it is not kept");
    }

    #[test]
    fn one_that_was_written_and_only_lent_is_filled_again_through_a_mapping() {
        for a in arenas(1 << 20) {
            let mut r = a.alloc(5000, label("written")).unwrap();
            r.write_at(&[1; 5000], 0).unwrap();
            let region = r.freeze();
            drop(region.lend().unwrap());
            drop(region);
            assert_eq!(a.stats().idle, 8192);
            let mut again = a.alloc(5000, label("again")).unwrap();
            assert!(!again.is_new());
            let bytes = again.bytes_mut().unwrap();
            assert!(bytes.iter().all(|b| *b == 1), "the same pages");
            bytes.fill(2);
            let lent = std::fs::File::from(again.freeze().lend().unwrap());
            let mut seen = vec![0; 5000];
            std::os::unix::fs::FileExt::read_exact_at(&lent, &mut seen, 0).unwrap();
            assert!(seen.iter().all(|b| *b == 2), "{:?}", a.backing());
        }
    }

    #[test]
    fn the_budget_holds_for_regions_that_only_readers_have() {
        let limit = 3 * page_size();
        let a = arena(limit);
        let kept: Vec<_> = (0..3)
            .map(|i| {
                let r = a.alloc(4096, label(&format!("batch/{i}"))).unwrap().freeze();
                open(&r)
            })
            .collect();
        let refused = a.alloc(4096, label("more")).unwrap_err();
        assert!(
            matches!(refused, AllocError::NoRoom { used, limit: l, .. } if used == limit && l == limit),
            "{refused}"
        );
        assert_eq!(a.holders().len(), 3);
        assert!(a.holders().iter().all(|h| h.outside && h.label.starts_with("batch/")));
        drop(kept);
        // Another size: the three must be noticed, freed, and their bytes given back.
        let mut big = a.alloc(limit as usize - 2000, label("big")).unwrap();
        big.bytes_mut().unwrap();
        assert_eq!(
            a.stats(),
            Stats { limit, used: limit, live: limit, outside: 0, idle: 0, regions: 1 }
        );
        drop(big);
        a.trim(Duration::ZERO);
        assert_eq!(a.stats(), Stats { limit, ..Stats::default() });
        let refused = a.alloc(limit as usize + 1, label("x")).unwrap_err();
        let AllocError::TooLarge { needed, .. } = refused else { panic!("{refused}") };
        assert_eq!(needed, 4 * page_size());
    }

    #[test]
    fn large_regions_lie_in_huge_pages_where_the_machine_can() {
        let a = arena(64 << 20);
        if a.backing() != Backing::HugeTmpfs {
            eprintln!("skipped: a private tmpfs needs CAP_SYS_ADMIN");
            return;
        }
        let mut r = a.alloc(5 << 20, label("large")).unwrap();
        let bytes = r.bytes_mut().unwrap();
        bytes.fill(9);
        let address = format!("{:x}-", bytes.as_ptr() as usize);
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mine = smaps.split_once(&address).unwrap().1;
        let huge = mine.lines().find(|l| l.starts_with("ShmemPmdMapped:")).unwrap();
        let kb: u64 = huge.split_whitespace().nth(1).unwrap().parse().unwrap();
        assert_eq!(kb, 6 << 10);
        assert_eq!(Arena::charge(5 << 20), 6 << 20);
    }
}
