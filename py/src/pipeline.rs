//! What a `Loader` or a `TokenLoader` runs: batches of one step after the other, in the background
//! or at once.
//!
//! A batch is a ticket. Tickets are taken in the order of the draws, one at a time, and only while
//! fewer than `workers + prefetch` of them are undelivered: that bounds the batches that are alive.
//! They are gathered side by side, and delivered in their order unless that is not wanted.
//!
//! Lock order: plan, then the interpreter, then state. Nobody waits for `plan` with the interpreter.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::{PyKeyboardInterrupt, PyRuntimeError, PyStopIteration, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::draw::{Drawer, Drawn};
use crate::feed::{Feed, Made};
use crate::shards::Readers;
use crate::sys::generation;
use crate::tokens::TokenSource;

/// How often a consumer that waits looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(100);

/// A consumer who had to wait after as many batches in a row that were ready is an irregular one.
const REGULAR: u32 = 4;

struct State {
    /// Changes when the position is set: what was under way then is thrown away.
    run: u64,
    taken: u64,
    delivered: u64,
    /// Batches delivered in earlier lives, by a loaded state.
    before: u64,
    /// The sampler's step after the last delivered one, where it has steps.
    step: Option<u64>,
    /// The ticket that this step is of, plus one: several threads may deliver at once.
    newest: u64,
    ready: BTreeMap<u64, (PyResult<Made>, Option<u64>)>,
    /// What was drawn for a batch whose making Ctrl-C broke off, without threads: it comes next.
    again: Option<(u64, Drawn)>,
    /// The ticket for which the sampler had nothing more.
    end: Option<u64>,
    /// Consumers that wait for a batch.
    waiting: u64,
    /// How many large batches are made ahead.
    ahead: u64,
    /// Batches in a row that were ready when they were asked for.
    prompt: u32,
    paused: bool,
    stopped: bool,
}

/// A batch that is to be made.
struct Ticket<'a> {
    run: u64,
    number: u64,
    /// What the sampler says.
    drawn: PyResult<Drawn>,
    plan: Turn<'a>,
}

/// The plan's lock: no other ticket is taken while this is held.
pub struct Turn<'a> {
    holder: &'a AtomicU64,
    _guard: MutexGuard<'a, ()>,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        // Before the guard lets go.
        self.holder.store(0, Ordering::Release);
    }
}

enum Popped {
    Batch(PyResult<Made>),
    NotYet,
    End,
}

/// A batch made without threads.
struct Now {
    run: u64,
    number: u64,
    /// What it was made of; `None` if the sampler failed, or it was made before.
    drawn: Option<Drawn>,
    made: PyResult<Made>,
    step: Option<u64>,
}

/// The threads' work and the consumer's side of a loader.
#[pyclass(frozen, module = "batchfs._native")]
pub struct Pipeline {
    feed: Feed,
    workers: usize,
    window: u64,
    /// Workers that there are no cores for: copies come no sooner by them.
    beyond_cores: u64,
    ordered: bool,
    born: u64,
    /// Held while a ticket is taken, and while a large batch is gathered.
    plan: Mutex<()>,
    /// The process that holds it, by its `generation` plus one; 0 for none.
    holder: AtomicU64,
    state: Mutex<State>,
    /// Signalled when there may be room for another ticket.
    room: Condvar,
    /// Signalled when something is ready, or nothing more comes.
    filled: Condvar,
}

impl Pipeline {
    fn state(&self) -> MutexGuard<'_, State> {
        // Whole at each point where something could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn plan(&self) -> Turn<'_> {
        let guard = self.plan.lock().unwrap_or_else(PoisonError::into_inner);
        self.holder.store(generation() + 1, Ordering::Release);
        Turn { holder: &self.holder, _guard: guard }
    }

    /// In a child made by `fork` the threads do not exist, and locks may be held for ever.
    fn check_fork(&self) -> PyResult<()> {
        let holder = self.holder.load(Ordering::Acquire);
        let held_by_parent = holder != 0 && holder != generation() + 1;
        if self.is_left() || held_by_parent {
            return Err(PyRuntimeError::new_err(self.feed.left()));
        }
        Ok(())
    }

    /// Whether its threads are in a parent of this process.
    fn is_left(&self) -> bool {
        self.born != generation() && (self.workers > 0 || self.feed.has_threads())
    }

    /// The next ticket; `None` at the end of all.
    fn draw(&self) -> Option<Ticket<'_>> {
        loop {
            let plan = self.plan();
            let mut state = self.state();
            while !state.stopped
                && !state.paused
                && (state.end.is_some() || state.taken - state.delivered >= self.allowed(&state))
            {
                if self.workers == 0 {
                    return None;
                }
                state = self.room.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
            if state.stopped {
                return None;
            }
            if state.paused {
                // Whoever sets the position needs the plan.
                drop(plan);
                let wait = |s: &mut State| s.paused && !s.stopped;
                let woken = self.room.wait_while(state, wait);
                drop(woken.unwrap_or_else(PoisonError::into_inner));
                continue;
            }
            let run = state.run;
            if let Some((number, drawn)) = state.again.take() {
                return Some(Ticket { run, number, drawn: Ok(drawn), plan });
            }
            let ticket = state.taken;
            state.taken += 1;
            drop(state);
            let drawn = self.feed.draw();
            if let Err(e) = &drawn
                && Python::attach(|py| e.is_instance_of::<PyStopIteration>(py))
            {
                let mut state = self.state();
                state.end = Some(ticket);
                drop(state);
                self.filled.notify_all();
                continue;
            }
            return Some(Ticket { run, number: ticket, drawn, plan });
        }
    }

    /// How many batches may be alive that were not delivered. Where none is made ahead there is one
    /// for each consumer who waits.
    ///
    /// Large ones are made by all threads: another one ready would only take up memory, unless
    /// consumers come so irregularly that they had to wait now and then.
    fn allowed(&self, state: &State) -> u64 {
        match self.window {
            0 => state.waiting,
            most if self.workers == 0 || !self.feed.only_copies() => most,
            most if self.feed.is_large() => most.min(state.ahead + state.waiting.min(1)),
            // The one that was just delivered is still the consumer's when the next is begun.
            most => (most - self.beyond_cores).saturating_sub(1).max(1),
        }
    }

    fn made(&self, drawn: &Drawn, plan: Turn<'_>) -> PyResult<Made> {
        // A consumer must not wait for a thread that is gone.
        let made = catch_unwind(AssertUnwindSafe(|| {
            self.feed.make(drawn, self.workers == 0, plan, &|| self.state().stopped)
        }));
        let failed = || PyRuntimeError::new_err(batchfs_store::ITSELF_FAILED);
        made.unwrap_or_else(|_| Err(failed()))
    }

    fn run(&self) {
        while let Some(Ticket { run, number, drawn, plan }) = self.draw() {
            let made = match drawn {
                Ok(drawn) => (self.made(&drawn, plan), drawn.step),
                Err(e) => {
                    drop(plan);
                    (Err(e), None)
                }
            };
            let mut state = self.state();
            let mut late = None;
            if state.run == run && !state.stopped {
                state.ready.insert(number, made);
            } else {
                late = Some(made);
            }
            drop(state);
            drop(late);
            self.filled.notify_all();
        }
    }

    /// The ticket that is delivered next, if it is ready.
    fn due(&self, state: &State) -> Option<u64> {
        let first = state.ready.first_key_value().map(|(ticket, _)| *ticket);
        first.filter(|ticket| !self.ordered || *ticket == state.delivered)
    }

    /// Waits until there is something to deliver, or nothing more, or for some time.
    fn wait(&self) {
        let mut state = self.state();
        if self.due(&state).is_some() || state.is_over() {
            state.prompt = state.prompt.saturating_add(1);
            return;
        }
        // Where each one is waited for, more of them ahead would not be made any sooner.
        if std::mem::take(&mut state.prompt) >= REGULAR {
            state.ahead = state.ahead.saturating_add(1).min(self.window.max(1));
        }
        state.waiting += 1;
        if self.window == 0 {
            self.room.notify_all();
        }
        let waits = |s: &mut State| self.due(s).is_none() && !s.is_over();
        let woken = self.filled.wait_timeout_while(state, LOOK, waits);
        woken.unwrap_or_else(PoisonError::into_inner).0.waiting -= 1;
    }

    fn pop(&self) -> Popped {
        let mut state = self.state();
        if state.stopped {
            return Popped::End;
        }
        let Some(ticket) = self.due(&state) else {
            return if state.is_over() { Popped::End } else { Popped::NotYet };
        };
        let Some((outcome, step)) = state.ready.remove(&ticket) else { return Popped::NotYet };
        state.deliver(ticket, step);
        drop(state);
        self.room.notify_all();
        Popped::Batch(outcome)
    }

    /// Without threads: the whole of it, here.
    fn now(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        let Some(now) = py.detach(|| self.make_now()) else { return Ok(None) };
        let broken_off = |e: &PyErr| e.is_instance_of::<PyKeyboardInterrupt>(py);
        let Now { run, number, drawn, made, step } = now;
        let interrupt = match made {
            Err(e) if broken_off(&e) => Err((e, None)),
            made => match py.check_signals() {
                Ok(()) => Ok(made),
                Err(e) => Err((e, Some(made))),
            },
        };
        let mut state = self.state();
        // Another thread may have set the position meanwhile.
        let counts = state.run == run && !state.stopped;
        match interrupt {
            Ok(made) => {
                if counts {
                    state.deliver(number, step);
                }
                drop(state);
                self.feed.told(py, made?).map(Some)
            }
            // It was not delivered, and comes next.
            Err((e, made)) => {
                let mut late = None;
                match (made, drawn) {
                    (Some(made), _) if counts => late = state.ready.insert(number, (made, step)),
                    (Some(made), _) => late = Some((made, step)),
                    (None, Some(drawn)) if counts => state.again = Some((number, drawn)),
                    _ => state.taken = state.taken.saturating_sub(1).max(state.delivered),
                }
                drop(state);
                drop(late);
                Err(e)
            }
        }
    }

    fn make_now(&self) -> Option<Now> {
        let mut state = self.state();
        let run = state.run;
        if !state.stopped
            && let Some((number, (made, step))) = state.ready.pop_first()
        {
            return Some(Now { run, number, drawn: None, made, step });
        }
        drop(state);
        let Ticket { run, number, drawn, plan } = self.draw()?;
        Some(match drawn {
            Ok(drawn) => {
                let made = self.made(&drawn, plan);
                Now { run, number, step: drawn.step, drawn: Some(drawn), made }
            }
            Err(e) => {
                drop(plan);
                Now { run, number, step: None, drawn: None, made: Err(e) }
            }
        })
    }

    /// At most `window` batches are alive that were not delivered.
    fn with(feed: Feed, workers: usize, window: u64, ordered: bool) -> Pipeline {
        let state = State {
            run: 0,
            taken: 0,
            delivered: 0,
            before: 0,
            step: feed.step(),
            newest: 0,
            ready: BTreeMap::new(),
            again: None,
            end: None,
            waiting: 0,
            ahead: 1,
            prompt: 0,
            paused: false,
            stopped: false,
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Pipeline {
            feed,
            workers,
            window,
            beyond_cores: (workers.saturating_sub(cores) as u64).min(window),
            ordered,
            born: generation(),
            plan: Mutex::new(()),
            holder: AtomicU64::new(0),
            state: Mutex::new(state),
            room: Condvar::new(),
            filled: Condvar::new(),
        }
    }
}

impl State {
    /// Nothing more comes.
    fn is_over(&self) -> bool {
        self.stopped || self.end == Some(self.delivered)
    }

    fn deliver(&mut self, ticket: u64, step: Option<u64>) {
        self.delivered += 1;
        if ticket >= self.newest {
            self.newest = ticket + 1;
            self.step = step.or(self.step).map(|step| step.saturating_add(1));
        }
    }
}

#[pymethods]
impl Pipeline {
    #[new]
    #[pyo3(signature = (streams, sampler, *, workers, prefetch, transform, ordered))]
    fn new(
        streams: &Bound<'_, PyDict>,
        sampler: &Bound<'_, PyAny>,
        workers: usize,
        prefetch: u64,
        transform: Option<Py<PyAny>>,
        ordered: bool,
    ) -> PyResult<Pipeline> {
        let readers = Readers::new(streams)?;
        let drawer = Drawer::new(sampler)?;
        if let Some(records) = drawer.records()
            && records > readers.records()
        {
            return Err(PyValueError::new_err(format!(
                "the sampler draws from {records} records, but the streams have only {}",
                readers.records()
            )));
        }
        let feed = Feed::records(readers, drawer, transform);
        let window = match workers {
            0 => u64::MAX,
            workers => prefetch.saturating_add(workers as u64),
        };
        Ok(Pipeline::with(feed, workers, window, ordered))
    }

    /// The steps of a token source, up to `prefetch` of them made ahead by a thread, which is to
    /// `work`. With 0 it makes those that somebody waits for, so that a wait can be interrupted.
    #[staticmethod]
    fn tokens(source: &TokenSource, prefetch: u64) -> Pipeline {
        Pipeline::with(Feed::tokens(source), 1, prefetch, true)
    }

    /// Views at each position.
    #[getter]
    fn shard_count(&self) -> usize {
        self.feed.shards()
    }

    /// Makes batches until the end of all: what each thread does.
    fn work(&self, py: Python<'_>) {
        py.detach(|| self.run());
    }

    /// The next batch; `None` at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        self.check_fork()?;
        if self.workers == 0 {
            return self.now(py);
        }
        loop {
            py.detach(|| self.wait());
            // Before anything is taken, which Ctrl-C would throw away otherwise.
            py.check_signals()?;
            match self.pop() {
                Popped::Batch(made) => return self.feed.told(py, made?).map(Some),
                Popped::End => return Ok(None),
                Popped::NotYet => {}
            }
        }
    }

    /// Ends the threads' work, whatever they are at. Nothing is delivered any more.
    fn stop(&self, py: Python<'_>) {
        if self.is_left() {
            return;
        }
        let left = py.detach(|| {
            let mut state = self.state();
            state.stopped = true;
            let left = std::mem::take(&mut state.ready);
            drop(state);
            self.room.notify_all();
            self.filled.notify_all();
            left
        });
        drop(left);
    }

    /// Batches delivered, and the sampler's next step if it has any.
    fn position(&self, py: Python<'_>) -> PyResult<(u64, Option<u64>)> {
        self.check_fork()?;
        if !self.ordered && self.workers > 1 {
            return Err(PyRuntimeError::new_err(
                "with ordered=False and several workers there is no position to go on from; use ordered=True",
            ));
        }
        Ok(py.detach(|| {
            let state = self.state();
            (state.before + state.delivered, state.step)
        }))
    }

    /// Goes on from a position. What was made ahead is thrown away.
    fn set_position(&self, py: Python<'_>, delivered: u64, step: Option<u64>) -> PyResult<()> {
        self.check_fork()?;
        let target = step.unwrap_or(delivered);
        let left = py.detach(|| {
            self.state().paused = true;
            self.room.notify_all();
            let plan = self.plan();
            let sought = self.feed.seek(target);
            let mut state = self.state();
            state.paused = false;
            let mut left = BTreeMap::new();
            if sought.is_ok() {
                left = std::mem::take(&mut state.ready);
                state.again = None;
                state.run += 1;
                (state.taken, state.delivered, state.before) = (0, 0, delivered);
                (state.step, state.newest, state.end) = (self.feed.step(), 0, None);
            }
            drop(state);
            drop(plan);
            self.room.notify_all();
            self.filled.notify_all();
            sought.map(|()| left)
        });
        drop(left?);
        Ok(())
    }

    /// Batches that are made or being made and not delivered.
    #[getter]
    fn undelivered(&self, py: Python<'_>) -> u64 {
        py.detach(|| {
            let state = self.state();
            state.taken - state.delivered
        })
    }
}
