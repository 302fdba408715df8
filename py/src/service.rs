//! The client of a mount's descriptor service.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use batchfs_dmabuf::client::{Client, ClientError, Descriptor, Wanted};
use pyo3::exceptions::{PyKeyError, PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::sys::{self, Memory};
use crate::tensor::{DLTensor, Tensor, elements};
use crate::{dtypes, errors};

/// Connections to a service. Each call has one for itself, and makes one if none is idle.
#[pyclass(frozen, module = "batchfs._native")]
pub struct Service {
    path: PathBuf,
    idle: Mutex<Idle>,
}

#[derive(Default)]
struct Idle {
    closed: bool,
    /// A child made by `fork` must not speak on its parent's connections.
    generation: u64,
    clients: Vec<Arc<Client>>,
}

/// To be given back when nothing of the batch is left in this process.
struct Lease {
    number: u64,
    client: Arc<Client>,
    generation: u64,
}

impl Drop for Lease {
    fn drop(&mut self) {
        // In a child the lease is the parent's, who may have the batch still.
        if self.generation == sys::generation() {
            // Without the service there is nothing to be given back.
            let _ = self.client.release(vec![self.number]);
        }
    }
}

impl Service {
    fn take(&self) -> io::Result<Arc<Client>> {
        // Held for ever in a child whose parent had it at the fork: never waited for.
        if let Ok(mut idle) = self.idle.try_lock() {
            if idle.closed {
                return Err(io::Error::other("this client is closed"));
            }
            if idle.generation != sys::generation() {
                *idle = Idle { generation: sys::generation(), ..Idle::default() };
            }
            if let Some(client) = idle.clients.pop() {
                return Ok(client);
            }
        }
        Client::connect(&self.path).map(Arc::new)
    }

    fn give_back(&self, client: Arc<Client>) {
        if let Ok(mut idle) = self.idle.try_lock()
            && !idle.closed
            && idle.generation == sys::generation()
        {
            idle.clients.push(client);
        }
    }

    fn with<T>(
        &self,
        ask: impl Fn(&Client) -> Result<T, ClientError>,
    ) -> Result<(T, Arc<Client>), ClientError> {
        let mut fresh = false;
        loop {
            let client = self.take()?;
            match ask(&client) {
                Err(ClientError::Gone(e)) if fresh || e.kind() == io::ErrorKind::Interrupted => {
                    return Err(e.into());
                }
                // The daemon may have been started again meanwhile.
                Err(ClientError::Gone(_)) => {
                    fresh = true;
                    if let Ok(mut idle) = self.idle.try_lock() {
                        idle.clients.clear();
                    }
                }
                // What comes next on it may be an answer to something else.
                Err(strange @ ClientError::Strange(_)) => return Err(strange),
                Err(refused) => {
                    self.give_back(client);
                    return Err(refused);
                }
                Ok(got) => {
                    self.give_back(client.clone());
                    return Ok((got, client));
                }
            }
        }
    }

    fn fetch(&self, wanted: &Wanted) -> Result<(Descriptor, OwnedFd, Lease), ClientError> {
        let generation = sys::generation();
        let (export, client) = self.with(|client| client.export_unless_interrupted(wanted))?;
        let number = export.descriptor.lease;
        Ok((export.descriptor, export.file, Lease { number, client, generation }))
    }

    /// Calls `work`, which waits, without the interpreter, and again after a signal that raised nothing.
    fn waiting<T: Send>(
        py: Python<'_>,
        work: impl Fn() -> Result<T, ClientError> + Sync,
    ) -> PyResult<Result<T, ClientError>> {
        loop {
            match py.detach(&work) {
                Err(ClientError::Gone(e)) if e.kind() == io::ErrorKind::Interrupted => {
                    py.check_signals()?;
                }
                done => return Ok(done),
            }
        }
    }

    fn raised(&self, error: &ClientError) -> PyErr {
        match error {
            ClientError::Refused { errno, message } => {
                PyOSError::new_err((*errno, message.clone()))
            }
            ClientError::Gone(e) => errors::os(&self.path, "cannot be reached", e),
            ClientError::Strange(_) => PyOSError::new_err(error.to_string()),
        }
    }
}

/// The tensors of a batch in the mapped file.
fn tensors(
    descriptor: &Descriptor,
    whole: &Memory,
    write: bool,
) -> PyResult<Vec<(String, DLTensor)>> {
    let one = |t: &batchfs_dmabuf::Tensor| {
        let dtype = dtypes::named(&t.dtype)?;
        let shape: Option<Vec<i64>> = t.shape.iter().map(|d| i64::try_from(*d).ok()).collect();
        let made = shape.and_then(|shape| {
            let bytes = elements(&shape)?.checked_mul(dtype.size())?;
            let memory = whole.part(usize::try_from(t.offset).ok()?, bytes)?;
            Some(Tensor { memory, dtype, shape: shape.into(), readonly: !write })
        });
        let made = made.ok_or_else(|| {
            PyValueError::new_err(format!("tensor {} does not lie in the file", t.name))
        })?;
        Ok((t.name.clone(), DLTensor(made)))
    };
    descriptor.tensors.iter().map(one).collect()
}

fn mapped(
    descriptor: &Descriptor,
    file: &File,
    write: bool,
    lease: impl Send + Sync + 'static,
) -> io::Result<Memory> {
    let len = usize::try_from(descriptor.size).map_err(io::Error::other)?;
    sys::lent_file(file, len, write, lease)
}

#[pymethods]
impl Service {
    #[new]
    fn new(path: PathBuf) -> Service {
        let idle = Idle { generation: sys::generation(), ..Idle::default() };
        Service { path, idle: Mutex::new(idle) }
    }

    /// What the service says of itself, as JSON.
    fn hello(&self, py: Python<'_>) -> PyResult<String> {
        let got = py.detach(|| self.with(Client::hello)).map_err(|e| self.raised(&e))?;
        Ok(got.0.to_string())
    }

    /// What this client has and the service does, as JSON.
    fn stats(&self, py: Python<'_>) -> PyResult<String> {
        let got = py.detach(|| self.with(Client::stats)).map_err(|e| self.raised(&e))?;
        Ok(got.0.to_string())
    }

    /// The tensors of a batch, with their names; `None` if the service does not give it, for whatever
    /// reason.
    fn batch(
        &self,
        py: Python<'_>,
        view: String,
        stream: String,
        step: u64,
        write: bool,
    ) -> PyResult<Option<Vec<(String, DLTensor)>>> {
        let wanted = Wanted { view, stream, step, ..Wanted::default() };
        let got = Service::waiting(py, || {
            let (descriptor, file, lease) = self.fetch(&wanted)?;
            let memory = mapped(&descriptor, &File::from(file), write, lease)?;
            Ok((descriptor, memory))
        })?;
        got.ok().map(|(descriptor, memory)| tensors(&descriptor, &memory, write)).transpose()
    }

    /// A batch with its descriptor.
    fn export(
        &self,
        py: Python<'_>,
        view: String,
        stream: String,
        step: u64,
        face: String,
    ) -> PyResult<Export> {
        let wanted = Wanted { view, stream, step, face, ..Wanted::default() };
        let got = Service::waiting(py, || self.fetch(&wanted))?.map_err(|e| self.raised(&e))?;
        let (descriptor, file, lease) = got;
        let held = Some((File::from(file), Arc::new(lease)));
        Ok(Export { descriptor, held: Mutex::new(held) })
    }

    /// Closes the connections that are idle, and makes no more. Others end with their batches.
    fn close(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        *idle = Idle { closed: true, ..Idle::default() };
    }
}

/// A batch that was handed out, and its descriptor.
#[pyclass(frozen, weakref, module = "batchfs._native")]
pub struct Export {
    descriptor: Descriptor,
    held: Mutex<Option<(File, Arc<Lease>)>>,
}

impl Export {
    fn held<T>(&self, then: impl FnOnce(&File, &Arc<Lease>) -> PyResult<T>) -> PyResult<T> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        match &*held {
            Some((file, lease)) => then(file, lease),
            None => Err(PyValueError::new_err("this export was released")),
        }
    }
}

#[pymethods]
impl Export {
    /// All of the descriptor, as JSON.
    fn descriptor(&self) -> String {
        serde_json::to_string(&self.descriptor).unwrap_or_default()
    }

    /// The descriptor, which stays this object's.
    fn fileno(&self) -> PyResult<RawFd> {
        self.held(|file, _| Ok(file.as_raw_fd()))
    }

    /// One of its tensors, in a mapping of its own.
    fn tensor(&self, py: Python<'_>, name: &str, write: bool) -> PyResult<DLTensor> {
        let memory = self.held(|file, lease| {
            let made = py.detach(|| mapped(&self.descriptor, file, write, lease.clone()));
            made.map_err(|e| PyOSError::new_err(format!("cannot map the batch: {e}")))
        })?;
        let all = tensors(&self.descriptor, &memory, write)?;
        let found = all.into_iter().find(|(n, _)| n == name);
        found.map(|(_, t)| t).ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }

    /// Closes the descriptor. The batch is given back when its tensors are gone, too.
    fn release(&self) {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(held);
    }
}
