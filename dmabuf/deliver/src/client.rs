//! The other end of the service, for programs in Rust.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use serde_json::Value;

pub use crate::service::message::Descriptor;
use crate::service::message::{PROTOCOL, REPLY, Request};
use crate::sys::socket::{receive, send};

/// Leases that fit into a request in any case.
const MOST_OWED: usize = 100;

fn text(request: &Request) -> io::Result<Vec<u8>> {
    serde_json::to_vec(request).map_err(io::Error::other)
}

/// Why there is no batch.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The service says no.
    #[error("{message}")]
    Refused {
        /// Its errno.
        errno: i32,
        /// Its reason.
        message: String,
    },
    /// The connection is no more, or never was.
    #[error("the descriptor service cannot be reached: {0}")]
    Gone(#[from] io::Error),
    /// The other end does not speak the protocol.
    #[error("the descriptor service answered something else: {0}")]
    Strange(String),
}

/// A batch that the service handed out.
#[derive(Debug)]
pub struct Export {
    /// What it is.
    pub descriptor: Descriptor,
    /// Its file, read-only.
    pub file: OwnedFd,
}

/// What to export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// A spec, or nothing for the mount's own.
    pub view: String,
    /// Name of a stream, or `index`, or `all`.
    pub stream: String,
    /// The step.
    pub step: u64,
    /// `npy`, `safetensors`, `arrow`, or nothing for the bare file.
    pub face: String,
    /// `dmabuf`, or nothing for a `memfd`.
    pub kind: String,
}

/// A connection to a service. Requests may be sent ahead; replies come in any order. Threads may
/// share it to give leases back, and not to wait for replies at the same time.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    last: AtomicU64,
    /// Leases that could not be given back yet.
    owed: Mutex<Vec<u64>>,
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// What a packet of the service is.
#[derive(Debug)]
pub enum Reply {
    /// A batch.
    Export(Export),
    /// An answer to something else.
    Other(Value),
}

impl Client {
    /// Connects to the service whose socket, or a link to it, is at `path`.
    ///
    /// # Errors
    /// If nobody listens there.
    pub fn connect(path: &Path) -> io::Result<Client> {
        // Links may be where addresses are too long.
        let path = std::fs::read_link(path).unwrap_or_else(|_| path.to_owned());
        let kind = SockType::SeqPacket;
        let socket = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
        connect(socket.as_raw_fd(), &UnixAddr::new(&path)?)?;
        Ok(Client { socket, last: AtomicU64::new(0), owed: Mutex::default() })
    }

    /// What the service says of itself and of the data.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn hello(&self) -> Result<Value, ClientError> {
        self.ask("hello")
    }

    /// What this client has, and what the service is doing.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn stats(&self) -> Result<Value, ClientError> {
        self.ask("stats")
    }

    fn ask(&self, op: &str) -> Result<Value, ClientError> {
        let sent = self.send(Request { op: Some(op.to_owned()), ..Request::default() });
        let id = sent.map_err(|e| self.farewell(e))?;
        match self.receive()? {
            (got, Reply::Other(answer)) if got == Some(id) => Ok(answer),
            other => Err(ClientError::Strange(format!("{other:?}"))),
        }
    }

    /// Asks for a batch, gives back `release`, and does not wait. Returns the request's number.
    ///
    /// # Errors
    /// If the service is gone.
    pub fn request(&self, wanted: &Wanted, mut release: Vec<u64>) -> io::Result<u64> {
        let mut owed = self.owed();
        let count = owed.len().min(MOST_OWED.saturating_sub(release.len()));
        release.extend(owed.drain(..count));
        drop(owed);
        self.send(Request {
            op: Some("export".to_owned()),
            view: wanted.view.clone(),
            stream: wanted.stream.clone(),
            step: Some(wanted.step),
            face: wanted.face.clone(),
            kind: wanted.kind.clone(),
            release,
            ..Request::default()
        })
    }

    /// Gets a batch.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn export(&self, wanted: &Wanted) -> Result<Export, ClientError> {
        let id = self.request(wanted, Vec::new()).map_err(|e| self.farewell(e))?;
        self.exported(id)
    }

    /// Gets a batch, unless a signal comes before it does. That is [`ClientError::Gone`] with the kind
    /// `Interrupted`, and the client has to be dropped: the next reply is of this request.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn export_unless_interrupted(&self, wanted: &Wanted) -> Result<Export, ClientError> {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let id = self.request(wanted, Vec::new()).map_err(|e| self.farewell(e))?;
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::NONE).map_err(io::Error::from)?;
        self.exported(id)
    }

    fn exported(&self, id: u64) -> Result<Export, ClientError> {
        match self.receive()? {
            (got, Reply::Export(export)) if got == Some(id) => Ok(export),
            other => Err(ClientError::Strange(format!("{other:?}"))),
        }
    }

    /// Why nothing more can be sent: who is turned away is told so.
    fn farewell(&self, error: io::Error) -> ClientError {
        match error.kind() {
            io::ErrorKind::BrokenPipe => self.receive().err().unwrap_or(error.into()),
            _ => error.into(),
        }
    }

    /// Gives leases back: what they stand for is closed and unmapped, and no page of it is kept.
    /// Does not wait: while the service does not read, they are kept for the next request.
    ///
    /// # Errors
    /// If the service is gone.
    pub fn release(&self, leases: Vec<u64>) -> io::Result<()> {
        let mut owed = self.owed();
        owed.extend(leases);
        let request = Request {
            version: Some(PROTOCOL),
            op: Some("release".to_owned()),
            release: owed.iter().take(MOST_OWED).copied().collect(),
            ..Request::default()
        };
        match send(&self.socket, &text(&request)?, None) {
            Ok(()) => {
                let sent = request.release.len();
                owed.drain(..sent);
                Ok(())
            }
            Err(Errno::EAGAIN) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    fn owed(&self) -> MutexGuard<'_, Vec<u64>> {
        self.owed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, request: Request) -> io::Result<u64> {
        let id = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.put(&Request { version: Some(PROTOCOL), id: Some(id), ..request })?;
        Ok(id)
    }

    fn put(&self, request: &Request) -> io::Result<()> {
        let text = text(request)?;
        loop {
            match send(&self.socket, &text, None) {
                // The service has other things to do; it reads on when it answers.
                Err(Errno::EAGAIN) => self.wait_for_room()?,
                done => return Ok(done?),
            }
        }
    }

    fn wait_for_room(&self) -> io::Result<()> {
        use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Waits for the next reply; with it comes the number of the request.
    ///
    /// # Errors
    /// See [`ClientError`]; a refusal is one of the oldest request that is not answered yet, unless
    /// several were sent ahead.
    pub fn receive(&self) -> Result<(Option<u64>, Reply), ClientError> {
        let mut room = vec![0; REPLY];
        let packet = receive(&self.socket, &mut room, true)?;
        if packet.len == 0 {
            return Err(ClientError::Gone(io::ErrorKind::ConnectionReset.into()));
        }
        room.truncate(packet.len);
        if let Some(file) = packet.file {
            let descriptor: Descriptor =
                serde_json::from_slice(&room).map_err(|e| ClientError::Strange(e.to_string()))?;
            return Ok((descriptor.id, Reply::Export(Export { descriptor, file })));
        }
        let value: Value =
            serde_json::from_slice(&room).map_err(|e| ClientError::Strange(e.to_string()))?;
        if let Some(error) = value.get("error") {
            let errno = error.get("code").and_then(Value::as_i64).unwrap_or_default() as i32;
            let message = error.get("message").and_then(Value::as_str).unwrap_or_default();
            return Err(ClientError::Refused { errno, message: message.to_owned() });
        }
        if let Some(lease) = value.get("lease").and_then(Value::as_u64) {
            // The kernel could not give the descriptor to this process.
            self.release(vec![lease])?;
            let message =
                "this process has no descriptor left for the batch; raise its `ulimit -n`";
            return Err(ClientError::Refused {
                errno: Errno::EMFILE as i32,
                message: message.to_owned(),
            });
        }
        Ok((value.get("id").and_then(Value::as_u64), Reply::Other(value)))
    }
}
