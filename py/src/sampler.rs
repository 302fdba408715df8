//! `Sampler`: the order, with a place in it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use batchfs_sampler::lanes::LaneSpec;
use batchfs_sampler::{Mode, Remainder, Sampler as Order, Spec};
use numpy::PyArray1;
use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

use crate::errors;
use crate::numbers::integer;
use crate::sys::indices_mut;

/// An order and the step that comes next. The last step of all is 2^64 - 1, after which nothing comes.
pub struct Place {
    order: Order,
    next: AtomicU64,
    /// The last step was taken.
    ended: AtomicBool,
}

/// There is no further step.
#[derive(Debug)]
pub struct Exhausted;

impl Exhausted {
    pub fn raised(&self) -> PyErr {
        PyOverflowError::new_err("the sampler has had its last step, 2^64 - 1")
    }
}

impl Place {
    fn take(&self) -> Result<u64, Exhausted> {
        if self.ended.load(Ordering::Acquire) {
            return Err(Exhausted);
        }
        let step = self.next.fetch_add(1, Ordering::AcqRel);
        if step == u64::MAX {
            self.ended.store(true, Ordering::Release);
        }
        Ok(step)
    }

    /// The next step and its ids.
    ///
    /// # Errors
    /// When there is none.
    pub fn draw(&self) -> Result<(u64, Vec<u64>), Exhausted> {
        let step = self.take()?;
        let mut ids = vec![0; self.order.local_batch() as usize];
        self.order.ids(step, &mut ids);
        Ok((step, ids))
    }

    /// The next step; `None` after the last.
    pub fn step(&self) -> Option<u64> {
        let ended = self.ended.load(Ordering::Acquire);
        (!ended).then(|| self.next.load(Ordering::Acquire))
    }

    /// Makes `step` the next one.
    pub fn seek(&self, step: u64) {
        self.next.store(step, Ordering::Release);
        self.ended.store(false, Ordering::Release);
    }

    pub fn records(&self) -> u64 {
        self.order.records()
    }
}

/// What `Sampler` has in fast code.
#[pyclass(frozen, subclass, weakref, module = "batchfs._native")]
pub struct Steps {
    place: Arc<Place>,
    indices: Py<PyArray1<u64>>,
}

impl Steps {
    pub fn place(&self) -> &Arc<Place> {
        &self.place
    }
}

fn spec(batch: u64, mode: u8, seed: u64, rank: u64, world: u64, remainder: &str) -> PyResult<Spec> {
    let mode = match mode {
        0 => Mode::Sequential,
        1 => Mode::Iid,
        2 => Mode::Cyclic,
        other => {
            return Err(PyValueError::new_err(format!(
                "mode {other} is not valid; it is Sampler.Mode.SEQUENTIAL, IID or CYCLIC"
            )));
        }
    };
    let remainder = match remainder {
        "drop" => Remainder::Drop,
        "carry" => Remainder::Carry,
        other => {
            let why = format!("remainder={other:?} is not valid; it is drop or carry");
            return Err(PyValueError::new_err(why));
        }
    };
    Ok(Spec { mode, batch, seed, remainder, rank, world })
}

#[pymethods]
impl Steps {
    #[new]
    #[pyo3(signature = (length, batch, mode, seed, rank, world, remainder))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        length: u64,
        batch: u64,
        mode: u8,
        seed: u64,
        rank: u64,
        world: u64,
        remainder: &str,
    ) -> PyResult<Steps> {
        let spec = spec(batch, mode, seed, rank, world, remainder)?;
        let order = Order::new(spec, length).map_err(|e| errors::sample(&e))?;
        // Iid batches may be as large as one likes; their buffer may not.
        let count =
            usize::try_from(order.local_batch()).ok().filter(|n| *n <= isize::MAX as usize / 8);
        let count =
            count.ok_or_else(|| PyValueError::new_err("the batch does not fit into memory"))?;
        let numpy = py.import("numpy")?;
        let made = numpy.call_method1("zeros", (count, "uint64"))?;
        let indices = made.cast_into::<PyArray1<u64>>()?.unbind();
        Ok(Steps {
            place: Arc::new(Place {
                order,
                next: AtomicU64::new(0),
                ended: AtomicBool::new(false),
            }),
            indices,
        })
    }

    /// The record ids of the next step: a uint64 array that is lent until the next call.
    fn next<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let step = self.place.take().map_err(|e| e.raised())?;
        let indices = self.indices.bind(py).clone();
        indices_mut(&indices, |ids| self.place.order.ids(step, ids));
        Ok(indices)
    }

    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __next__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        self.next(py)
    }

    /// The record ids of any step, in an array of its own. Changes nothing.
    fn at<'py>(
        &self,
        py: Python<'py>,
        step: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyArray1<u64>>> {
        let step = integer(step, "step", u64::MAX)?;
        let mut ids = vec![0; self.place.order.local_batch() as usize];
        self.place.order.ids(step, &mut ids);
        Ok(PyArray1::from_vec(py, ids))
    }

    /// Makes `step` the next one, at once.
    fn seek(&self, step: u64) -> PyResult<()> {
        self.place.seek(step);
        Ok(())
    }

    /// The next step.
    #[getter]
    fn step(&self) -> Option<u64> {
        self.place.step()
    }

    /// The spec, as a mount takes it.
    #[getter]
    fn spec(&self) -> String {
        self.place.order.spec().to_string()
    }

    /// The number of records that it draws from.
    #[getter]
    fn length(&self) -> u64 {
        self.place.order.records()
    }

    /// Records in a batch of this rank.
    #[getter]
    fn local_batch(&self) -> u64 {
        self.place.order.local_batch()
    }

    /// Steps of one cycle.
    #[getter]
    fn steps_per_cycle(&self) -> u64 {
        self.place.order.steps_per_cycle()
    }
}

/// The rows of a step of a spec of tokens, its seq_len, its lanes, and its canonical spelling.
///
/// Raises `ValueError` if it is none.
#[pyfunction]
pub fn parse_lanes(text: &str) -> PyResult<(u64, u64, u64, String)> {
    let spec: LaneSpec = text.parse().map_err(|e| errors::sample(&e))?;
    Ok((spec.rows(), spec.seq_len, spec.lanes, spec.to_string()))
}

/// The records in a batch of a spec, and its canonical spelling.
///
/// Raises `ValueError` if it is none.
#[pyfunction]
pub fn parse_spec(text: &str) -> PyResult<(u64, String)> {
    let spec: Spec = text.parse().map_err(|e| errors::sample(&e))?;
    Ok((spec.batch / spec.world, spec.to_string()))
}
