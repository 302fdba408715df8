//! A thread that reads steps of tokens, so that whoever waits for one can leave.
//!
//! It has nothing to do with the interpreter, which therefore can end while a source does not answer.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::gather::Failure;
use crate::tokens::{Rows, Step};

/// How often somebody who waits looks whether it is still wanted.
const LOOK: Duration = Duration::from_millis(100);

/// Reads the steps of a source, one at a time.
pub struct Reader {
    rows: Arc<Rows>,
    /// Some of the source is not on this machine. A thread costs some microseconds a step, and who
    /// reads files here is not kept waiting.
    far: bool,
    thread: Mutex<Option<Thread>>,
}

struct Thread {
    ask: Sender<u64>,
    told: Receiver<Result<Step, Failure>>,
}

impl Thread {
    fn start(rows: Arc<Rows>) -> std::io::Result<Thread> {
        let (ask, asked) = channel();
        let (tell, told) = channel();
        std::thread::Builder::new().name("read".to_owned()).spawn(move || {
            // It ends when nobody asks, or waits, any more.
            while let Ok(step) = asked.recv() {
                if tell.send(rows.read(step)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Thread { ask, told })
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // In a child the thread does not exist, and locks of the channels may be held for ever.
        if self.rows.is_left() {
            std::mem::forget(std::mem::take(&mut self.thread));
        }
    }
}

impl Reader {
    pub fn new(rows: Arc<Rows>) -> Reader {
        let far = rows.is_far();
        Reader { rows, far, thread: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Option<Thread>> {
        // Whole at each point where something could panic.
        self.thread.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads a step, unless `gone` says that nobody waits for it any more.
    ///
    /// # Errors
    /// Those of the source, as exceptions.
    pub fn read(&self, step: u64, gone: &dyn Fn() -> bool) -> PyResult<Step> {
        let raised = |failure: Failure| Python::attach(|py| failure.raised(py));
        if !self.far {
            return self.rows.read(step).map_err(raised);
        }
        let kept = self.kept().take();
        let thread = kept.map_or_else(|| Thread::start(self.rows.clone()), Ok)?;
        let failed = || PyRuntimeError::new_err(batchfs_store::ITSELF_FAILED);
        thread.ask.send(step).map_err(|_| failed())?;
        loop {
            match thread.told.recv_timeout(LOOK) {
                Ok(read) => {
                    *self.kept() = Some(thread);
                    return read.map_err(raised);
                }
                // The thread is left to itself.
                Err(RecvTimeoutError::Timeout) if gone() => {
                    return Err(PyRuntimeError::new_err("this TokenLoader is closed"));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(failed()),
            }
        }
    }
}
