//! The other end of the service, for programs in Rust.

use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use serde_json::Value;

pub use crate::service::message::Descriptor;
use crate::service::message::{PROTOCOL, REPLY, Request};
use crate::sys::socket::{receive, send};

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
}

/// A connection to a service. Requests may be sent ahead; replies come in any order.
#[derive(Debug)]
pub struct Client {
    socket: OwnedFd,
    last: u64,
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
        Ok(Client { socket, last: 0 })
    }

    /// What the service says of itself and of the data.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn hello(&mut self) -> Result<Value, ClientError> {
        self.ask("hello")
    }

    /// What this client has, and what the service is doing.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn stats(&mut self) -> Result<Value, ClientError> {
        self.ask("stats")
    }

    fn ask(&mut self, op: &str) -> Result<Value, ClientError> {
        let id = self.send(Request { op: Some(op.to_owned()), ..Request::default() })?;
        match self.receive()? {
            (got, Reply::Other(answer)) if got == Some(id) => Ok(answer),
            other => Err(ClientError::Strange(format!("{other:?}"))),
        }
    }

    /// Asks for a batch, gives back `release`, and does not wait. Returns the request's number.
    ///
    /// # Errors
    /// If the service is gone.
    pub fn request(&mut self, wanted: &Wanted, release: Vec<u64>) -> io::Result<u64> {
        self.send(Request {
            op: Some("export".to_owned()),
            view: wanted.view.clone(),
            stream: wanted.stream.clone(),
            step: Some(wanted.step),
            face: wanted.face.clone(),
            release,
            ..Request::default()
        })
    }

    /// Gets a batch.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn export(&mut self, wanted: &Wanted) -> Result<Export, ClientError> {
        let id = self.request(wanted, Vec::new())?;
        match self.receive()? {
            (got, Reply::Export(export)) if got == Some(id) => Ok(export),
            other => Err(ClientError::Strange(format!("{other:?}"))),
        }
    }

    /// Gives leases back: what they stand for is closed and unmapped, and no page of it is kept.
    ///
    /// # Errors
    /// If the service is gone.
    pub fn release(&mut self, leases: Vec<u64>) -> io::Result<()> {
        let request = Request {
            version: Some(PROTOCOL),
            op: Some("release".to_owned()),
            release: leases,
            ..Request::default()
        };
        self.put(&request)
    }

    fn send(&mut self, request: Request) -> io::Result<u64> {
        self.last += 1;
        let id = self.last;
        self.put(&Request { version: Some(PROTOCOL), id: Some(id), ..request })?;
        Ok(id)
    }

    fn put(&self, request: &Request) -> io::Result<()> {
        let text = serde_json::to_vec(request).map_err(io::Error::other)?;
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
    pub fn receive(&mut self) -> Result<(Option<u64>, Reply), ClientError> {
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
        Ok((value.get("id").and_then(Value::as_u64), Reply::Other(value)))
    }
}
