//! Where a pipeline's batches come from: sampled records, or the steps of a token source.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::exceptions::{PyRuntimeError, PyStopIteration};
use pyo3::intern;
use pyo3::prelude::*;

use crate::draw::{Drawer, Drawn};
use crate::pipeline::Turn;
use crate::reader::Reader;
use crate::shards::{Readers, Shard};
use crate::tokens::{Step, TokenSource};

/// A batch of this many bytes is large.
const LARGE: u64 = 4 << 20;

/// A batch that is there.
pub enum Made {
    /// Gathered, not yet Python's.
    Shards(Vec<Shard>),
    /// The same of tokens.
    Step(Step),
    /// What a transform made of it.
    Object(Py<PyAny>),
}

/// What a pipeline asks for one batch after the other.
pub enum Feed {
    Records(Box<Records>),
    Tokens {
        reader: Reader,
        /// The next step; `None` after the last one that there is.
        next: Mutex<Option<u64>>,
    },
}

pub struct Records {
    readers: Readers,
    drawer: Drawer,
    /// A weak reference to what has it: a transform may be a method of whoever has the loader,
    /// which could not be forgotten otherwise.
    transform: Option<Py<PyAny>>,
    /// Whether the last batch was large.
    large: AtomicBool,
}

impl Feed {
    pub fn records(readers: Readers, drawer: Drawer, transform: Option<Py<PyAny>>) -> Feed {
        Feed::Records(Box::new(Records {
            readers,
            drawer,
            transform,
            large: AtomicBool::new(false),
        }))
    }

    pub fn tokens(source: &TokenSource) -> Feed {
        Feed::Tokens { reader: Reader::new(source.rows()), next: Mutex::new(Some(0)) }
    }

    /// Whether it has threads of its own, which a child made by `fork` lacks.
    pub fn has_threads(&self) -> bool {
        matches!(self, Feed::Tokens { .. })
    }

    /// Whether batches are so large that they are made one at a time.
    pub fn is_large(&self) -> bool {
        match self {
            Feed::Records(records) => records.large.load(Ordering::Relaxed),
            Feed::Tokens { .. } => false,
        }
    }

    /// Whether batches are copies of records with nothing to be done after, so that none takes much
    /// longer than another.
    pub fn only_copies(&self) -> bool {
        matches!(self, Feed::Records(records) if records.transform.is_none())
    }

    /// What is said in such a child.
    pub fn left(&self) -> &'static str {
        match self {
            Feed::Records(_) => {
                "this Loader was made before a fork and its threads are in the parent; make a Loader in this process, or use workers=0"
            }
            Feed::Tokens { .. } => crate::tokens::LEFT,
        }
    }

    /// Views at each position.
    pub fn shards(&self) -> usize {
        match self {
            Feed::Records(records) => records.readers.shards(),
            Feed::Tokens { .. } => 1,
        }
    }

    /// What the next batch is made of.
    ///
    /// # Errors
    /// See [`Drawer::draw`]; `StopIteration` at the end.
    pub fn draw(&self) -> PyResult<Drawn> {
        match self {
            Feed::Records(records) => records.drawer.draw(&records.readers),
            Feed::Tokens { next, .. } => {
                let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
                let step = next.ok_or_else(|| PyStopIteration::new_err(()))?;
                *next = step.checked_add(1);
                Ok(Drawn { ids: Vec::new(), step: Some(step) })
            }
        }
    }

    /// Makes a batch, without the interpreter but for a transform. `alone` is said if no other thread
    /// makes one. As long as `turn` is held, nobody draws or makes the next one. Once `gone` says that
    /// nobody wants it, a source that does not answer is not waited for.
    ///
    /// # Errors
    /// Those of the data, and of the transform.
    pub fn make(
        &self,
        drawn: &Drawn,
        alone: bool,
        turn: Turn<'_>,
        gone: &dyn Fn() -> bool,
    ) -> PyResult<Made> {
        match self {
            Feed::Records(records) => records.make(&drawn.ids, alone, turn),
            Feed::Tokens { reader, .. } => {
                drop(turn);
                reader.read(drawn.step.unwrap_or(0), gone).map(Made::Step)
            }
        }
    }

    /// A batch as Python has it.
    ///
    /// # Errors
    /// If Python has no memory.
    pub fn told(&self, py: Python<'_>, made: Made) -> PyResult<Py<PyAny>> {
        match (made, self) {
            (Made::Shards(shards), Feed::Records(records)) => {
                Ok(records.readers.list(py, shards)?.unbind().into_any())
            }
            (Made::Shards(_), Feed::Tokens { .. }) => Ok(py.None()),
            (Made::Step(step), _) => Ok(Py::new(py, step.batch(py)?)?.into_any()),
            (Made::Object(object), _) => Ok(object),
        }
    }

    /// The next step, where there are steps.
    pub fn step(&self) -> Option<u64> {
        match self {
            Feed::Records(records) => records.drawer.step(),
            Feed::Tokens { next, .. } => *next.lock().unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// Makes `step` the next one.
    ///
    /// # Errors
    /// See [`Drawer::seek`].
    pub fn seek(&self, step: u64) -> PyResult<()> {
        match self {
            Feed::Records(records) => records.drawer.seek(step),
            Feed::Tokens { next, .. } => {
                *next.lock().unwrap_or_else(PoisonError::into_inner) = Some(step);
                Ok(())
            }
        }
    }
}

impl Records {
    fn make(&self, ids: &[u64], alone: bool, turn: Turn<'_>) -> PyResult<Made> {
        let shards = self.gather(ids, alone, turn)?;
        let Some(transform) = &self.transform else { return Ok(Made::Shards(shards)) };
        Python::attach(|py| {
            let held = transform.bind(py).call0()?;
            if held.is_none() {
                return Err(PyRuntimeError::new_err("this Loader is gone"));
            }
            let list = self.readers.list(py, shards)?;
            let made = held.call_method1(intern!(py, "call"), (list,))?;
            Ok(Made::Object(made.unbind()))
        })
    }

    /// Small batches are gathered side by side, by one thread each. Large ones come one at a time, by
    /// all threads: several at once would wait for the same memory, and take up more of it. They come
    /// in order, so that none has to be kept until an earlier one is there.
    fn gather(&self, ids: &[u64], alone: bool, turn: Turn<'_>) -> PyResult<Vec<Shard>> {
        let bytes = self.readers.record_bytes().saturating_mul(ids.len() as u64);
        let large = bytes >= LARGE;
        self.large.store(large, Ordering::Relaxed);
        if large {
            return self.readers.gather(ids, true);
        }
        drop(turn);
        self.readers.gather(ids, alone)
    }
}
