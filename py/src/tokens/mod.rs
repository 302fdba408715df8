//! Token streams from Parquet in this process: the source, its states, and its batches.

mod batch;
mod open;
mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;

use batchfs_batch::{LaneSpec, Mix, TokenState};
use batchfs_parquet::Options;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

pub use self::batch::TokenBatch;
use self::open::open;
pub use self::rows::{Rows, Step};
use crate::errors;

/// What is said in a child made by `fork`.
pub const LEFT: &str = "this TokenLoader was made before a fork and its threads are in the parent; make one in this process";

/// Rows of tokens under a spec: what a `TokenLoader` has below it.
#[pyclass(frozen, module = "batchfs._native")]
pub struct TokenSource {
    rows: Arc<Rows>,
}

impl TokenSource {
    pub fn rows(&self) -> Arc<Rows> {
        self.rows.clone()
    }
}

#[pymethods]
impl TokenSource {
    #[new]
    #[pyo3(signature = (places, spec, *, mix, column, budget, threads, storage_options))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        places: Vec<(String, String)>,
        spec: &str,
        mix: Option<&str>,
        column: String,
        budget: Option<u64>,
        threads: usize,
        storage_options: BTreeMap<String, String>,
    ) -> PyResult<TokenSource> {
        let spec: LaneSpec = spec.parse().map_err(|e| errors::sample(&e))?;
        let mix: Option<Mix> = mix.map(str::parse).transpose().map_err(|e| errors::sample(&e))?;
        let options = Options { column, storage: storage_options, ..Options::default() };
        let rows = open(py, places, mix, spec, options, budget, threads)?;
        Ok(TokenSource { rows: Arc::new(Rows::new(rows)) })
    }

    /// Where the data are; without anything secret.
    #[getter]
    fn origin(&self) -> String {
        self.rows.rows.tokens().source().origin().to_owned()
    }

    /// The spec in its canonical spelling.
    #[getter]
    fn spec(&self) -> String {
        self.rows.rows.lanes().spec().to_string()
    }

    /// Tokens of an epoch.
    #[getter]
    fn epoch_tokens(&self) -> u64 {
        self.rows.rows.lanes().epoch_tokens()
    }

    /// Documents of an epoch.
    #[getter]
    fn documents(&self) -> u64 {
        self.rows.rows.tokens().documents()
    }

    /// Shape of a step's rows.
    #[getter]
    fn shape(&self) -> (u64, u64) {
        let spec = self.rows.rows.lanes().spec();
        (spec.rows(), spec.seq_len)
    }

    /// The name of a token's dtype.
    #[getter]
    fn dtype(&self) -> &'static str {
        self.rows.rows.dtype().name()
    }

    /// The epoch that a step's first token is in.
    fn epoch_of(&self, step: u64) -> u64 {
        self.rows.rows.lanes().epoch_of(step)
    }

    /// The first step of an epoch; `None` beyond the last step that there is.
    fn first_step(&self, epoch: u64) -> Option<u64> {
        self.rows.rows.lanes().first_step(epoch)
    }

    /// The state of a run whose next step is `step`.
    fn state<'py>(&self, py: Python<'py>, step: u64) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &TokenState::new(&self.rows.rows, step).to_bytes())
    }

    /// The step of a state, and what it differs in from this source, if anything.
    ///
    /// Raises `ValueError` for what is no state, or one of another version.
    fn read_state(&self, bytes: &[u8]) -> PyResult<(u64, Option<String>)> {
        let state = TokenState::from_bytes(bytes);
        let state = state.map_err(|e| PyValueError::new_err(e.to_string()))?;
        Ok((state.step(), state.check(&self.rows.rows).err().map(|e| e.to_string())))
    }

    /// Counters: bytes received, row groups decoded, those found in memory, bytes in memory, budget.
    fn figures(&self, py: Python<'_>) -> PyResult<BTreeMap<&'static str, u64>> {
        if self.rows.is_left() {
            return Err(PyRuntimeError::new_err(LEFT));
        }
        let figures = py.detach(|| self.rows.rows.tokens().figures());
        Ok(BTreeMap::from([
            ("received_bytes", figures.received),
            ("row_groups_decoded", figures.decoded),
            ("row_group_hits", figures.hits),
            ("budget_used_bytes", figures.used),
            ("budget_limit_bytes", figures.budget),
        ]))
    }
}

/// Joins the states of all ranks, which have to be at the same step of the same run.
///
/// Raises `ValueError` if they are not, naming what differs.
#[pyfunction]
pub fn merge<'py>(py: Python<'py>, parts: Vec<Vec<u8>>) -> PyResult<Bound<'py, PyBytes>> {
    let read = |(at, bytes): (usize, &Vec<u8>)| {
        TokenState::from_bytes(bytes).map_err(|e| PyValueError::new_err(format!("part {at}: {e}")))
    };
    let parts: Vec<TokenState> = parts.iter().enumerate().map(read).collect::<PyResult<_>>()?;
    let merged = TokenState::merge(&parts).map_err(|e| PyValueError::new_err(e.to_string()))?;
    Ok(PyBytes::new(py, &merged.to_bytes()))
}
