//! Where a `Loader` gets its record ids from.

use std::sync::Arc;

use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::sampler::{Place, Steps};
use crate::shards::Readers;

/// A sampler of ours, asked without the interpreter, or any object with `next()`.
pub enum Drawer {
    Ours(Arc<Place>),
    Theirs { object: Py<PyAny>, seeks: bool },
}

/// The record ids of a batch, and their step if the sampler has any.
pub struct Drawn {
    pub ids: Vec<u64>,
    pub step: Option<u64>,
}

static SAMPLER: PyOnceLock<Py<PyType>> = PyOnceLock::new();

impl Drawer {
    pub fn new(sampler: &Bound<'_, PyAny>) -> PyResult<Drawer> {
        let py = sampler.py();
        // Not of subclasses, which may have a `next` of their own.
        let class = SAMPLER.import(py, "batchfs.sampler", "Sampler")?;
        if sampler.get_type().is(class)
            && let Ok(steps) = sampler.cast::<Steps>()
        {
            return Ok(Drawer::Ours(steps.get().place().clone()));
        }
        sampler.getattr(intern!(py, "next"))?;
        let seeks = sampler.hasattr(intern!(py, "seek"))?;
        Ok(Drawer::Theirs { object: sampler.clone().unbind(), seeks })
    }

    /// The ids of the next batch.
    ///
    /// # Errors
    /// What the sampler raises, `StopIteration` at its end; `IndexError` and `TypeError` for what
    /// are no record ids.
    pub fn draw(&self, readers: &Readers) -> PyResult<Drawn> {
        match self {
            Drawer::Ours(place) => {
                let (step, ids) = place.draw().map_err(|e| e.raised())?;
                Ok(Drawn { ids, step: Some(step) })
            }
            Drawer::Theirs { object, .. } => Python::attach(|py| {
                let drawn = object.bind(py).call_method0(intern!(py, "next"))?;
                Ok(Drawn { ids: readers.indices().many(&drawn)?, step: None })
            }),
        }
    }

    /// The number of records that it draws from, if it says so.
    pub fn records(&self) -> Option<u64> {
        match self {
            Drawer::Ours(place) => Some(place.records()),
            Drawer::Theirs { .. } => None,
        }
    }

    pub fn step(&self) -> Option<u64> {
        match self {
            Drawer::Ours(place) => place.step(),
            Drawer::Theirs { .. } => None,
        }
    }

    /// Makes `step` the next one.
    ///
    /// # Errors
    /// `RuntimeError` if the sampler cannot; what its `seek` raises.
    pub fn seek(&self, step: u64) -> PyResult<()> {
        match self {
            Drawer::Ours(place) => {
                place.seek(step);
                Ok(())
            }
            Drawer::Theirs { object, seeks: true } => {
                Python::attach(|py| object.call_method1(py, intern!(py, "seek"), (step,)).map(drop))
            }
            Drawer::Theirs { seeks: false, .. } => Err(PyRuntimeError::new_err(
                "the sampler has no seek(step), so that no position can be gone back to; put it where it should be and make a new Loader",
            )),
        }
    }
}
