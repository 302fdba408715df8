//! How a token source is opened while Python waits.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use batchfs_batch::{Error, LaneSpec, Mix, TokenRows, Tokens};
use batchfs_parquet::{Options, ParquetTokens};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

use crate::errors;

/// How often somebody who waits looks for Ctrl-C.
const LOOK: Duration = Duration::from_millis(100);

/// Opens a source, or those of a mixture, and goes on to look for Ctrl-C: listing and indexing can take
/// minutes. On a thread of its own, which ends soon after nobody waits any more.
pub(super) fn open(
    py: Python<'_>,
    places: Vec<(String, String)>,
    mix: Option<Mix>,
    spec: LaneSpec,
    mut options: Options,
    budget: Option<u64>,
    threads: usize,
) -> PyResult<TokenRows> {
    let stop = Stop(Arc::default());
    options.stop = Some(stop.0.clone());
    let (tell, mut told) = sync_channel(1);
    std::thread::Builder::new().name("open".to_owned()).spawn(move || {
        // Nobody is there to be told after a Ctrl-C.
        let _ = tell.send(open_all(places, mix, spec, &options, budget, threads));
    })?;
    loop {
        let waited;
        (waited, told) = py.detach(move || (told.recv_timeout(LOOK), told));
        match waited {
            Ok(opened) => return opened.map_err(|e| raised(py, &e)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err(batchfs_store::ITSELF_FAILED));
            }
        }
    }
}

/// Is set when whoever waits is gone.
struct Stop(Arc<AtomicBool>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn open_all(
    places: Vec<(String, String)>,
    mix: Option<Mix>,
    spec: LaneSpec,
    options: &Options,
    budget: Option<u64>,
    threads: usize,
) -> Result<TokenRows, Error> {
    let open = |(name, uri): (String, String)| match ParquetTokens::open(&uri, options) {
        Ok(source) => Ok((name, Arc::new(source) as Arc<dyn batchfs_store::TokenSource>)),
        Err(source) => Err(Error::Store { item: uri, source }),
    };
    let sources = places.into_iter().map(open).collect::<Result<Vec<_>, Error>>()?;
    TokenRows::new(Tokens::of(sources, mix, spec, budget, threads)?, spec)
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
