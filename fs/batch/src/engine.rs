use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use batchfs_region::{AllocError, Arena, Region, RegionMut};
use rayon::ThreadPool;

use crate::face::Making;
use crate::fillers::Fillers;
use crate::gather::{Failure, gather};
use crate::slots::{Ahead, Found, Job, Slot, Slots, Then};
use crate::write::write;
use crate::{Error, Key, Layout, Metrics, View};

/// How long an open waits for room.
const PATIENCE: Duration = Duration::from_secs(5);

/// How often those that wait look again: readers that unmap tell nobody.
const RETRY: Duration = Duration::from_millis(10);

/// How often readers' regions are looked after when nobody waits.
const SWEEP: Duration = Duration::from_secs(1);

/// Without an open for this long, what nobody has open is dropped.
const IDLE: Duration = Duration::from_secs(10);

/// Regions unused for this long are given back to the system.
const TRIM: Duration = Duration::from_secs(5);

/// A region of this size that a reader waits for is filled by several threads.
const WORTH_A_POOL: u64 = 8 << 20;

/// A region of records that lie in the source as they are is light to fill below this size.
const LIGHT: u64 = 2 << 20;

/// How an engine is made.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads that gather; 0 takes as many as there are cores.
    pub threads: usize,
}

/// Makes regions and keeps those in use: the one way from a [`Key`] to its bytes.
///
/// Opens in step order are prefetched. Everything lives within the arena's byte budget.
pub struct Engine {
    inner: Arc<Inner>,
    threads: Vec<JoinHandle<()>>,
}

struct Inner {
    arena: Arena,
    pool: ThreadPool,
    metrics: Metrics,
    open: AtomicUsize,
    /// Regions are shown to readers outside, so that each is filled once only.
    shown: AtomicBool,
    state: Mutex<State>,
    /// Signalled when there is something to fill.
    work: Condvar,
    /// The same, for spare threads, which do nothing else than what somebody waits for.
    wanted: Condvar,
    /// Signalled when the clock has to run: somebody waits for room, or the end.
    clock: Condvar,
}

struct State {
    slots: Slots,
    fillers: Fillers,
    last_open: Instant,
    /// A reader has closed something since somebody found no room.
    room_made: bool,
    stop: bool,
}

/// A region that somebody has open. While it lives, its bytes neither change nor move.
pub struct Batch {
    region: Region,
    key: Key,
    inner: Arc<Inner>,
}

impl Engine {
    /// An engine with its threads.
    ///
    /// # Errors
    /// If threads cannot be started.
    pub fn new(arena: Arena, options: &Options) -> std::io::Result<Engine> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let count = if options.threads == 0 { cores } else { options.threads };
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|i| format!("gather-{i}"))
            .build()
            .map_err(std::io::Error::other)?;
        let state = Mutex::new(State {
            // Those who read what was filled need a core, too: with all of them filling, small batches
            // come later.
            slots: Slots::new(cores - 1),
            fillers: Fillers::new(count),
            last_open: Instant::now(),
            room_made: false,
            stop: false,
        });
        let inner = Arc::new(Inner {
            arena,
            pool,
            metrics: Metrics::default(),
            open: AtomicUsize::new(0),
            shown: AtomicBool::new(false),
            state,
            work: Condvar::new(),
            wanted: Condvar::new(),
            clock: Condvar::new(),
        });
        let mut engine = Engine { inner, threads: Vec::new() };
        for i in 0..count {
            let inner = engine.inner.clone();
            let job = thread::Builder::new().name(format!("fill-{i}"));
            engine.threads.push(job.spawn(move || inner.fill_for_ever())?);
        }
        let inner = engine.inner.clone();
        let clock = thread::Builder::new().name("clock".to_owned());
        engine.threads.push(clock.spawn(move || inner.keep_time())?);
        Ok(engine)
    }

    /// Gets the region of `key` and passes it to `then`: at once on this thread if it is ready,
    /// else later on another one.
    ///
    /// An open that finds no room waits some seconds at most and then fails with
    /// [`Error::NoRoom`].
    pub fn open<F>(&self, key: Key, view: &Arc<View>, then: F)
    where
        F: FnOnce(Result<Batch, Arc<Error>>) + Send + 'static,
    {
        let inner = self.inner.clone();
        let pinned: Then = Box::new(move |region| {
            then(region.map(|region| {
                inner.open.fetch_add(1, Ordering::Relaxed);
                Batch { region, key, inner }
            }));
        });
        self.inner.open(key, view, pinned);
    }

    /// As [`open`](Engine::open), but waits for the region.
    ///
    /// # Errors
    /// What made it impossible.
    pub fn wait(&self, key: Key, view: &Arc<View>) -> Result<Batch, Arc<Error>> {
        let (tell, told) = std::sync::mpsc::sync_channel(1);
        self.open(key, view, move |batch| {
            // Fails only if the receiver is gone, which waits below.
            let _ = tell.send(batch);
        });
        told.recv().unwrap_or_else(|_| Err(Arc::new(Error::Stopped { item: view.name(key) })))
    }

    /// Says that regions are going to be [shown](Region::expose) to readers outside. New memory is
    /// then filled in the way that is fastest where it is used once.
    pub fn show_regions(&self) {
        self.inner.shown.store(true, Ordering::Relaxed);
    }

    /// Whether anybody has something of the view with this number open, or waits for it.
    pub fn in_use(&self, view: u16) -> bool {
        self.inner.lock().slots.in_use(view)
    }

    /// Gives up everything that is kept of the view with this number, which nobody will open again.
    /// Returns false as long as something of it is still in use: the number must not be given to
    /// another view yet.
    pub fn retire(&self, view: u16) -> bool {
        let (gone, dropped) = self.inner.lock().slots.retire(view);
        drop(dropped);
        gone
    }

    /// Counters since the start.
    pub fn metrics(&self) -> &Metrics {
        &self.inner.metrics
    }

    /// Handles that are open now.
    pub fn open_handles(&self) -> usize {
        self.inner.open.load(Ordering::Relaxed)
    }

    /// The memory in use.
    pub fn arena(&self) -> &Arena {
        &self.inner.arena
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.inner.lock().stop = true;
        self.inner.work.notify_all();
        self.inner.wanted.notify_all();
        self.inner.clock.notify_all();
        let me = thread::current().id();
        for thread in self.threads.drain(..) {
            // Whoever was called back may have been the engine's last owner: a thread of its own
            // cannot wait for itself, and ends when it returns from here.
            if thread.thread().id() != me && thread.join().is_err() {
                tracing::error!("a thread of the engine panicked");
            }
        }
        // None is started any more: the clock has ended.
        let spares = self.inner.lock().fillers.take();
        for thread in spares {
            if thread.thread().id() != me && thread.join().is_err() {
                tracing::error!("a thread of the engine panicked");
            }
        }
        let mut state = self.inner.lock();
        let keys: Vec<Key> = state.slots.map.keys().copied().collect();
        let mut left = Vec::new();
        for key in keys {
            if let Some(Slot::Coming { view, .. }) = state.slots.map.get(&key) {
                let item = view.name(key);
                left.push((item, state.slots.failed(key)));
            }
        }
        drop(state);
        for (item, waiters) in left {
            refuse(waiters, Error::Stopped { item });
        }
    }
}

fn refuse(waiters: Vec<Then>, error: Error) {
    let error = Arc::new(error);
    waiters.into_iter().for_each(|then| then(Err(error.clone())));
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Slots are whole at each point where a method could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open(&self, key: Key, view: &Arc<View>, then: Then) {
        let mut state = self.lock();
        state.last_open = Instant::now();
        Metrics::add(&self.metrics.opens, 1);
        let found = state.slots.open(key, view, then);
        let spares = state.fillers.spares();
        drop(state);
        // Also for what was to be filled ahead, which the others may have no time for.
        if spares > 0 && !matches!(found, Found::Ready(..)) {
            self.wanted.notify_one();
        }
        match found {
            Found::Ready(region, then) => {
                Metrics::add(&self.metrics.hits, 1);
                then(Ok(region));
            }
            Found::Coming => Metrics::add(&self.metrics.joined, 1),
            Found::Missing => {
                self.work.notify_one();
                Metrics::add(&self.metrics.misses, 1);
            }
        }
        // After the reader was answered: looking ahead and waking threads takes longer than that.
        let (next, dropped) = self.lock().slots.look_ahead(key);
        Metrics::add(&self.metrics.prefetches_unused, dropped.len() as u64);
        // Sizes of ragged batches are read from the index, which can take its time: not under the lock.
        let sized = |key: Key| {
            let size = view.layout(key).ok()?.size;
            let light = size < LIGHT && view.only_copies(key.item);
            Some(Ahead { key, bytes: Arena::charge(size), light })
        };
        let next: Vec<Ahead> = next.into_iter().map_while(sized).collect();
        let mut state = self.lock();
        let (queued, quiet) = state.slots.fill_ahead(&next, view, self.arena.limit() / 2);
        state.slots.opened(key.view);
        drop(state);
        Metrics::add(&self.metrics.prefetches_unused, quiet.len() as u64);
        drop(quiet);
        for _ in 0..queued.min(self.pool.current_num_threads()) {
            self.work.notify_one();
        }
    }

    fn fill_for_ever(&self) {
        let mut state = self.lock();
        while !state.stop {
            state = match state.slots.next_job() {
                Some(job) => self.work_on(job, state),
                None => self.work.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// What a spare thread does, until there was nothing to do for a while.
    fn fill_meanwhile(&self) {
        let mut state = self.lock();
        while !state.stop {
            state = if let Some(job) = state.slots.next_wanted() {
                self.work_on(job, state)
            } else {
                let idle = |state: &mut State| !state.stop && state.slots.demand.is_empty();
                let woken = self.wanted.wait_timeout_while(state, IDLE, idle);
                let (state, woken) = woken.unwrap_or_else(PoisonError::into_inner);
                if woken.timed_out() {
                    let mut state = state;
                    state.fillers.ended();
                    return;
                }
                state
            };
        }
    }

    fn work_on<'a>(&'a self, job: Job, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let Job { key, view, light } = job;
        // Only tokens come from places that may not answer.
        let far = view.dataset().tokens().is_some();
        if far {
            state.fillers.begin(key, Instant::now());
        }
        drop(state);
        // A panic must not leave a reader waiting for ever.
        let filled = catch_unwind(AssertUnwindSafe(|| self.fill(key, &view)));
        if filled.is_err() {
            self.fail(key, Error::Bug { item: view.name(key) });
        }
        drop(view);
        let mut state = self.lock();
        if far {
            state.fillers.end(key);
        }
        if light {
            state.slots.light_done();
        }
        state
    }

    /// Answers those who wait for `key` with `error`.
    fn fail(&self, key: Key, error: Error) {
        let waiters = self.lock().slots.failed(key);
        Metrics::add(&self.metrics.failures, waiters.len() as u64);
        refuse(waiters, error);
    }

    /// Makes the region of `key` and hands it to those who wait.
    fn fill(&self, key: Key, view: &Arc<View>) {
        match self.make(key, view) {
            Ok(Some(region)) => {
                let waiters = self.lock().slots.filled(key, region.clone());
                if waiters.is_empty() {
                    Metrics::add(&self.metrics.prefetches, 1);
                }
                waiters.into_iter().for_each(|then| then(Ok(region.clone())));
            }
            Ok(None) => {}
            Err(error) => self.fail(key, error),
        }
    }

    /// `None` if it has to wait for its turn, or, for a prefetch, is given up.
    fn make(&self, key: Key, view: &Arc<View>) -> Result<Option<Region>, Error> {
        let gathered = |layout: &Layout| match self.room(key, view, layout)? {
            Some(region) => self.copy(key, view, layout, region).map(Some),
            None => Ok(None),
        };
        let layout = view.layout(key)?;
        if view.making(key) == Making::Gathered {
            if layout.size == 0 {
                return Err(Error::Empty { item: view.name(key) });
            }
            return gathered(&layout);
        }
        let file = if layout.size == 0 {
            view.render(key, &layout, &[])?
        } else {
            let Some(bare) = gathered(&layout)? else { return Ok(None) };
            let bytes = bare.bytes().map_err(|source| Error::Memory {
                item: view.name(key),
                source: AllocError::Os { len: layout.size, source },
            })?;
            view.render(key, &layout, bytes)?
        };
        // The bare region has been given back, so that a file that is no larger finds room.
        gathered(&Layout::whole(file))
    }

    fn copy(
        &self,
        key: Key,
        view: &View,
        layout: &Layout,
        mut region: RegionMut,
    ) -> Result<Region, Error> {
        // What was rendered has no arrays to fill: drawing the ids again would be for nothing.
        let ids = if layout.arrays.is_empty() { Vec::new() } else { view.plan(key)? };
        // What nobody waits for yet is filled by one thread: several such jobs run side by side, and
        // the threads of the pool spend as much time looking for work as a small batch takes.
        let wanted = self.lock().slots.is_wanted(key);
        let split = wanted && layout.size >= WORTH_A_POOL && self.pool.current_num_threads() > 1;
        // Writing is for new memory alone, and its kernel lock lets one thread at a time.
        let filled = if self.shown.load(Ordering::Relaxed) && region.is_new() && !split {
            write(view, key.number, &ids, layout, &mut region)
        } else {
            region.bytes_mut().map_err(Failure::Region).and_then(|out| {
                gather(view, key.number, &ids, layout, out, wanted.then_some(&self.pool))
            })
        };
        filled.map_err(|failure| match failure {
            Failure::Store(source) => Error::Store { item: view.name(key), source },
            Failure::Pieces { needed, room } => {
                Error::TooManyPieces { item: view.name(key), needed, room }
            }
            Failure::Region(source) => {
                let source = AllocError::Os { len: layout.size, source };
                Error::Memory { item: view.name(key), source }
            }
        })?;
        Metrics::add(&self.metrics.gathered_bytes, layout.size);
        Ok(region.freeze())
    }

    /// A region for `key`, made room for if need be. `None` if it has to wait for its turn, or,
    /// for a prefetch, is given up.
    fn room(&self, key: Key, view: &View, layout: &Layout) -> Result<Option<RegionMut>, Error> {
        let item = || view.name(key);
        let len = usize::try_from(layout.size).unwrap_or(usize::MAX);
        let label: Arc<str> = item().into();
        loop {
            let (needed, used, limit) = match self.arena.alloc(len, label.clone()) {
                Ok(region) => return Ok(Some(region)),
                Err(AllocError::TooLarge { needed, limit }) => {
                    return Err(Error::TooLarge { item: item(), needed, limit });
                }
                Err(AllocError::NoRoom { needed, used, limit }) => (needed, used, limit),
                Err(source) => return Err(Error::Memory { item: item(), source }),
            };
            let mut state = self.lock();
            let wanted = state.slots.is_wanted(key);
            let evicted = state.slots.evict(wanted);
            if let Some((region, unopened)) = evicted {
                drop(state);
                drop(region);
                Metrics::add(&self.metrics.prefetches_unused, unopened.into());
                continue;
            }
            if !wanted {
                // Checked under the same lock: nobody waits for it.
                state.slots.failed(key);
                return Ok(None);
            }
            let now = Instant::now();
            let since = state.slots.blocked_since(key);
            if since.is_none() {
                Metrics::add(&self.metrics.waits, 1);
            }
            if since.is_some_and(|since| now.duration_since(since) >= PATIENCE) {
                drop(state);
                let holders = self.arena.holders();
                let holders = holders.into_iter().filter(|h| h.label != label).collect();
                return Err(Error::NoRoom {
                    item: item(),
                    needed,
                    used,
                    limit,
                    waited: PATIENCE,
                    holders,
                });
            }
            state.slots.block(key, now);
            drop(state);
            self.clock.notify_one();
            return Ok(None);
        }
    }

    /// Starts threads for opens that wait though nothing else is done than to wait for a source.
    fn help(self: &Arc<Self>, state: &mut State) {
        for i in 0..state.fillers.missing(state.slots.demand.len(), Instant::now()) {
            let inner = self.clone();
            let spare = thread::Builder::new().name(format!("spare-{i}"));
            match spare.spawn(move || inner.fill_meanwhile()) {
                Ok(handle) => state.fillers.started(handle),
                Err(e) => {
                    tracing::warn!("cannot start a thread beside those that wait: {e}");
                    return;
                }
            }
        }
    }

    /// Lets those that found no room try again, and drops what has long been unused.
    fn keep_time(self: &Arc<Self>) {
        let mut state = self.lock();
        let mut swept = Instant::now();
        while !state.stop {
            let woken = if state.slots.blocked.is_empty() {
                self.clock
                    .wait_timeout_while(state, SWEEP, |s| !s.stop && s.slots.blocked.is_empty())
            } else {
                self.clock.wait_timeout_while(state, RETRY, |s| !s.stop && !s.room_made)
            };
            state = woken.unwrap_or_else(PoisonError::into_inner).0;
            if state.stop {
                break;
            }
            state.room_made = false;
            let again = std::mem::take(&mut state.slots.blocked);
            if !again.is_empty() {
                state.slots.demand.extend(again);
                self.work.notify_all();
                self.wanted.notify_all();
            }
            if swept.elapsed() >= SWEEP {
                swept = Instant::now();
                let idle = state.last_open.elapsed() >= IDLE;
                let dropped = if idle { state.slots.evict_all() } else { Vec::new() };
                drop(state);
                drop(dropped);
                self.arena.sweep();
                self.arena.trim(TRIM);
                state = self.lock();
                self.help(&mut state);
            }
        }
    }
}

impl Batch {
    /// The region; its file is what readers map, see [`Region::expose`].
    pub fn region(&self) -> &Region {
        &self.region
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        self.inner.open.fetch_sub(1, Ordering::Relaxed);
        let mut state = self.inner.lock();
        let dropped = state.slots.unpin(self.key);
        let waiting = !state.slots.blocked.is_empty();
        state.room_made |= waiting;
        drop(state);
        drop(dropped);
        if waiting {
            self.inner.clock.notify_one();
        }
    }
}
