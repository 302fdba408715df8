//! Hands out descriptors of batches over a Unix socket. docs/dmabuf.md is the protocol.
//!
//! Nothing here waits for a client: requests are read while a client has room for replies, replies that
//! find none are kept, and what a client holds is bounded. Batches are made by an [`Exporter`] on
//! threads of its own.

mod connection;
mod folder;
pub(crate) mod message;
mod server;

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

pub use message::PROTOCOL;

use crate::exporter::Exporter;
use folder::Listening;
use server::Server;

/// Threads that answer: one that reads an index from a slow disk holds up no other client.
const THREADS: usize = 3;

/// Who may connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// This process's own user, and root.
    Own,
    /// Everybody.
    Others,
}

/// What one client may have, so that it takes nothing from others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Clients at a time.
    pub clients: u64,
    /// Requests of a client that are not answered, or whose answers it has not read.
    pub in_flight: usize,
    /// Descriptors that a client has not given back.
    pub leases: usize,
    /// Bytes of memory behind these.
    pub bytes: u64,
}

/// What the service is doing.
#[derive(Debug, Default)]
pub struct Figures {
    clients: AtomicU64,
    leases: AtomicU64,
    leased_bytes: AtomicU64,
    exports: AtomicU64,
    refusals: AtomicU64,
}

impl Figures {
    /// Name, whether it only grows, explanation, and value of each.
    pub fn all(&self) -> [(&'static str, bool, &'static str, u64); 5] {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        [
            ("clients", false, "Clients of the descriptor service", get(&self.clients)),
            ("leases", false, "Descriptors that clients have not given back", get(&self.leases)),
            ("leased_bytes", false, "Memory behind these", get(&self.leased_bytes)),
            ("exports", true, "Descriptors handed out", get(&self.exports)),
            ("refusals", true, "Requests that were refused", get(&self.refusals)),
        ]
    }
}

/// A service that runs until it is dropped.
pub struct Service {
    path: PathBuf,
    limits: Limits,
    server: Arc<Server>,
    threads: Vec<JoinHandle<()>>,
}

impl Service {
    /// Makes the socket and starts answering.
    ///
    /// # Errors
    /// If there is no folder to make the socket in, or no threads or descriptors can be had.
    pub fn start(
        exporter: Arc<dyn Exporter>,
        access: Access,
        limits: Limits,
    ) -> io::Result<Service> {
        let listening = Listening::new(access == Access::Others)?;
        let path = listening.path();
        let server = Arc::new(Server::new(listening, exporter, access, limits)?);
        let mut service = Service { path, limits, server, threads: Vec::new() };
        for i in 0..THREADS {
            let server = service.server.clone();
            let thread = std::thread::Builder::new().name(format!("service-{i}"));
            service.threads.push(thread.spawn(move || server.run())?);
        }
        Ok(service)
    }

    /// The socket's path.
    pub fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// What one client may have.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// What it is doing.
    pub fn figures(&self) -> &Arc<Figures> {
        self.server.figures()
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        self.server.stop();
        for thread in self.threads.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the service panicked");
            }
        }
        self.server.end();
    }
}
