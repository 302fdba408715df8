//! Token streams from Parquet in this process: the source, its states, and its batches.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use batchfs_batch::{Error, LaneSpec, Mix, Provenance, TokenRows, TokenState, Tokens};
use batchfs_parquet::{Options, ParquetTokens};
use batchfs_region::Pool;
use batchfs_store::DType;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::room;
use crate::sys::{generation, of_block};
use crate::tensor::{DLTensor, Tensor};
use crate::{errors, gather};

/// Bytes of batches that came back which are kept for others.
const KEEP: u64 = 256 << 20;
/// How often somebody who waits looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(100);

/// What is said in a child made by `fork`.
pub const LEFT: &str = "this TokenLoader was made before a fork and its threads are in the parent; make one in this process";

/// The rows of a source, and memory for batches.
pub struct Rows {
    rows: Arc<TokenRows>,
    pool: Pool,
    born: u64,
}

impl Drop for Rows {
    fn drop(&mut self) {
        // In a child the threads do not exist, and their locks may be held for ever: it is leaked.
        if self.is_left() {
            std::mem::forget(self.rows.clone());
        }
    }
}

/// A step whose tokens are in memory, not yet Python's.
pub struct Step {
    number: u64,
    epoch: u64,
    tokens: Tensor,
    from: Provenance,
    pool: Pool,
}

impl Rows {
    /// Whether some of the source lies in object storage.
    pub fn is_far(&self) -> bool {
        self.rows.tokens().origins().iter().any(|origin| origin.contains("://"))
    }

    /// Whether its threads are in a parent of this process.
    pub fn is_left(&self) -> bool {
        self.born != generation()
    }

    /// Makes a step, without the interpreter.
    ///
    /// # Errors
    /// Those of the source.
    pub fn read(&self, number: u64) -> Result<Step, gather::Failure> {
        let spec = self.rows.lanes().spec();
        let bytes = (spec.rows() * spec.seq_len) as usize * size_of::<i32>();
        let mut block = self.pool.take(bytes)?;
        let from = self.rows.read(number, &mut block.bytes_mut()[..bytes])?;
        let shape = Box::new([spec.rows() as i64, spec.seq_len as i64]);
        let memory = of_block(room::Block::Host(block), bytes);
        let tokens = Tensor { memory, dtype: self.rows.dtype(), shape, readonly: false };
        let epoch = self.rows.lanes().epoch_of(number);
        Ok(Step { number, epoch, tokens, from, pool: self.pool.clone() })
    }
}

impl Step {
    /// As Python has it.
    ///
    /// # Errors
    /// `MemoryError`.
    pub fn batch(self, py: Python<'_>) -> PyResult<TokenBatch> {
        let Step { number, epoch, tokens, from, pool } = self;
        let numbers = |bytes: &[u8], dtype: DType| -> PyResult<Py<DLTensor>> {
            let mut block = pool.take(bytes.len())?;
            block.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
            let shape = Box::new([(bytes.len() / dtype.size()) as i64]);
            let memory = of_block(room::Block::Host(block), bytes.len());
            Py::new(py, DLTensor(Tensor { memory, dtype, shape, readonly: false }))
        };
        // Little-endian, as the host is: the store builds on no other.
        Ok(TokenBatch {
            step: number,
            epoch,
            tokens: Py::new(py, DLTensor(tokens))?,
            cu_seqlens: numbers(bytemuck::cast_slice(&from.cu_seqlens), DType::Int32)?,
            document_ids: numbers(bytemuck::cast_slice(&from.document_ids), DType::Int64)?,
            document_offsets: numbers(bytemuck::cast_slice(&from.document_offsets), DType::Int64)?,
        })
    }
}

/// The rows of a step, and where their tokens come from.
///
/// A *piece* is a run of tokens of a row that follow each other in one document; each row begins a
/// piece.
#[pyclass(frozen, get_all, weakref, module = "batchfs")]
pub struct TokenBatch {
    /// The step.
    step: u64,
    /// The epoch that the step's first token is in.
    epoch: u64,
    /// The tokens, `(lanes / world, seq_len)`, int32, or uint32 if the data are.
    tokens: Py<DLTensor>,
    /// Where each piece begins in the rows put one behind the other, and the end: int32 `(n + 1,)`.
    cu_seqlens: Py<DLTensor>,
    /// The document of each piece, counted through the dataset: int64 `(n,)`.
    document_ids: Py<DLTensor>,
    /// Where each piece begins in its document, in tokens: int64 `(n,)`.
    document_offsets: Py<DLTensor>,
}

#[pymethods]
impl TokenBatch {
    fn __repr__(&self) -> String {
        let shape = &self.tokens.get().0.shape;
        format!(
            "TokenBatch(step={}, epoch={}, tokens=({}, {}))",
            self.step, self.epoch, shape[0], shape[1]
        )
    }
}

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

fn raised(py: Python<'_>, error: &Error) -> PyErr {
    match error {
        Error::Store { source, .. } => errors::store(py, source),
        Error::Sample(why) => errors::sample(why),
        Error::Dataset(why) => PyValueError::new_err(why.clone()),
        Error::Budget { spec, needed, largest, limit } => PyValueError::new_err(format!(
            "{spec} needs {needed} bytes for the decoded row groups that one step can be made of ({largest}), and the budget is {limit}; give a larger budget=, or take a smaller window"
        )),
        other => PyRuntimeError::new_err(other.to_string()),
    }
}

/// Opens a source, or those of a mixture. On a thread of its own: listing and indexing can take
/// minutes.
fn open(
    places: &[(String, String)],
    mix: Option<Mix>,
    spec: LaneSpec,
    options: &Options,
    budget: Option<u64>,
    threads: usize,
) -> Result<TokenRows, Error> {
    let mut opened: Vec<(String, Arc<dyn batchfs_store::TokenSource>)> = Vec::new();
    for (name, uri) in places {
        let store = |source| Error::Store { item: uri.clone(), source };
        opened.push((name.clone(), Arc::new(ParquetTokens::open(uri, options).map_err(store)?)));
    }
    let tokens = match (mix, opened.pop()) {
        (Some(mix), last) => {
            opened.extend(last);
            Tokens::mixed(opened, mix, spec, budget, threads)?
        }
        (None, Some((_, source))) => Tokens::new(source, spec, budget, threads)?,
        (None, None) => return Err(Error::Dataset("there is no source".to_owned())),
    };
    TokenRows::new(tokens, spec)
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
        let (tell, told) = sync_channel(1);
        std::thread::Builder::new().name("open".to_owned()).spawn(move || {
            // Nobody is there to be told after a Ctrl-C.
            let _ = tell.send(open(&places, mix, spec, &options, budget, threads));
        })?;
        let mut told = told;
        let rows = loop {
            let waited;
            (waited, told) = py.detach(move || (told.recv_timeout(LOOK), told));
            match waited {
                Ok(opened) => break opened.map_err(|e| raised(py, &e))?,
                Err(RecvTimeoutError::Timeout) => py.check_signals()?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(PyRuntimeError::new_err(batchfs_store::ITSELF_FAILED));
                }
            }
        };
        let (rows, pool) = (Arc::new(rows), Pool::new(KEEP));
        Ok(TokenSource { rows: Arc::new(Rows { rows, pool, born: generation() }) })
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
