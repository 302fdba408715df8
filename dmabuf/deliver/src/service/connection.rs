//! One client: what it asked for, what it has, and what it has not read yet.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd as _, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use batchfs_region::Arena;
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::socket::{Shutdown, shutdown};
use serde_json::json;

use super::message::{self, Descriptor, PROTOCOL, REPLY, REQUEST, Request};
use super::server::Server;
use crate::exporter::{Exported, Exports, Kind, Refusal};
use crate::sys::socket::{receive, send};

/// Packets that are read of one client before others have their turn.
const TURN: usize = 16;

/// Views that are kept for a client.
const VIEWS: usize = 8;

pub(crate) struct Connection {
    pub(crate) token: u64,
    pub(crate) socket: OwnedFd,
    /// Whether it may have pages that others see and it can write.
    trusted: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    gone: bool,
    /// A thread reads its requests.
    reading: bool,
    /// What the kernel is asked to watch, until it tells.
    watched: Watched,
    /// Exports under way.
    pending: usize,
    /// Replies that found no room.
    unsent: VecDeque<Packet>,
    leases: HashMap<u64, Lease>,
    bytes: u64,
    last: u64,
    /// By spec, the last used at the end.
    views: Vec<(String, Arc<dyn Exports>)>,
}

struct Watched(EpollFlags);

impl Default for Watched {
    fn default() -> Watched {
        Watched(EpollFlags::empty())
    }
}

struct Lease {
    exported: Exported,
    bytes: u64,
}

struct Packet {
    text: Vec<u8>,
    file: Option<OwnedFd>,
    /// Request and lease, for one with a descriptor.
    about: Option<(Option<u64>, u64)>,
}

impl Connection {
    pub(crate) fn new(token: u64, socket: OwnedFd, trusted: bool) -> Connection {
        Connection { token, socket, trusted, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The kernel told of something; it watches no more until it is asked again.
    pub(crate) fn ready(self: &Arc<Self>, server: &Arc<Server>, what: EpollFlags) {
        let mut state = self.lock();
        state.watched.0 = EpollFlags::empty();
        if state.reading {
            return;
        }
        state.reading = true;
        self.flush(server, &mut state);
        let mut alive = !state.gone;
        drop(state);
        if alive && what.intersects(EpollFlags::EPOLLHUP | EpollFlags::EPOLLERR) {
            self.take_back(server);
            alive = false;
        }
        alive = alive && self.read(server);
        let mut state = self.lock();
        state.reading = false;
        if alive && !state.gone {
            self.watch(server, &mut state);
        } else {
            drop(state);
            self.end(server);
        }
    }

    /// Reads requests and answers them; false if there will be no more.
    fn read(self: &Arc<Self>, server: &Arc<Server>) -> bool {
        let mut room = [0; REQUEST];
        for _ in 0..TURN {
            if !self.lock().has_room(server) {
                return true;
            }
            match receive(&self.socket, &mut room, false) {
                Ok(packet) if packet.len == 0 => return false,
                Ok(packet) if packet.cut => {
                    let why = format!("a request has at most {REQUEST} bytes");
                    self.refuse(server, None, &Refusal::new(Errno::EMSGSIZE, why));
                }
                Ok(packet) => self.answer(server, room.get(..packet.len).unwrap_or_default()),
                Err(e) => return e.kind() == std::io::ErrorKind::WouldBlock,
            }
        }
        true
    }

    /// What a client said before it went: only what it gave back is of interest.
    fn take_back(&self, server: &Server) {
        let mut room = [0; REQUEST];
        while let Ok(packet) = receive(&self.socket, &mut room, false)
            && packet.len > 0
        {
            if let Ok(request) = Request::parse(room.get(..packet.len).unwrap_or_default()) {
                let _ = self.give_back(server, &request.release);
            }
        }
    }

    fn answer(self: &Arc<Self>, server: &Arc<Server>, packet: &[u8]) {
        let request = match Request::parse(packet) {
            Ok(request) => request,
            Err((id, refusal)) => return self.refuse(server, id, &refusal),
        };
        let id = request.id;
        let refused = self.give_back(server, &request.release).err();
        let fields = match (request.op.as_deref(), refused) {
            (_, Some(refusal)) => return self.refuse(server, id, &refusal),
            (Some("export"), None) => return self.export(server, request),
            (Some("release"), None) => json!({}),
            (Some("hello"), None) => server.hello(),
            (Some("stats"), None) => self.stats(server),
            (op, None) => {
                let op = op.unwrap_or("");
                let why = format!(
                    "there is no request {op:?}; there are hello, export, release and stats"
                );
                return self.refuse(server, id, &Refusal::new(Errno::EOPNOTSUPP, why));
            }
        };
        // Who gives no number wants no answer.
        if id.is_some() {
            self.reply(server, message::answer(id, fields));
        }
    }

    fn stats(&self, server: &Server) -> serde_json::Value {
        let state = self.lock();
        let mine = json!({
            "leases": state.leases.len(),
            "bytes": state.bytes,
            "in_flight": state.pending + state.unsent.len(),
        });
        drop(state);
        let mut all = serde_json::Map::new();
        for (name, _, _, value) in server.figures().all() {
            all.insert(name.to_owned(), value.into());
        }
        json!({ "client": mine, "service": all })
    }

    fn export(self: &Arc<Self>, server: &Arc<Server>, request: Request) {
        let id = request.id;
        let Some(step) = request.step else {
            let why = "an export names a step";
            return self.refuse(server, id, &Refusal::new(Errno::EINVAL, why));
        };
        let kind = match request.kind.as_str() {
            "" | "memfd" => Kind::Memfd,
            "dmabuf" => Kind::DmaBuf { shared: self.trusted },
            other => {
                let why = format!("there is no kind {other:?}; there are memfd and dmabuf");
                return self.refuse(server, id, &Refusal::new(Errno::EINVAL, why));
            }
        };
        let allowed = self.lock().may_have_more(server);
        let view = allowed.and_then(|()| self.view(server, &request.view));
        let view = match view {
            Ok(view) => view,
            Err(refusal) => return self.refuse(server, id, &refusal),
        };
        self.lock().pending += 1;
        let (me, server) = (self.clone(), Arc::downgrade(server));
        let then = Box::new(move |made| {
            if let Some(server) = server.upgrade() {
                me.exported(&server, id, made);
            }
        });
        view.export(&request.stream, step, &request.face, kind, then);
    }

    /// The view with this spec, which is kept.
    fn view(&self, server: &Server, spec: &str) -> Result<Arc<dyn Exports>, Refusal> {
        let mut state = self.lock();
        if let Some(at) = state.views.iter().position(|(s, _)| s == spec) {
            let found = state.views.remove(at);
            let view = found.1.clone();
            state.views.push(found);
            return Ok(view);
        }
        drop(state);
        let view = server.exporter.view(spec)?;
        let mut state = self.lock();
        let old = (state.views.len() >= VIEWS).then(|| state.views.remove(0));
        state.views.push((spec.to_owned(), view.clone()));
        drop(state);
        drop(old);
        Ok(view)
    }

    /// An export is there, or is not to be had.
    fn exported(
        self: &Arc<Self>,
        server: &Arc<Server>,
        id: Option<u64>,
        made: Result<Exported, Refusal>,
    ) {
        let lent = made.and_then(|exported| match exported.lend() {
            // In this order, so that nobody has it open any more when it is given back.
            Ok(file) => Ok((file, exported)),
            Err(e) => {
                let errno = Errno::from_raw(e.raw_os_error().unwrap_or(0));
                let why = format!("{}: no descriptor for it: {e}", exported.label);
                Err(Refusal::new(errno, why))
            }
        });
        let mut state = self.lock();
        state.pending -= 1;
        if state.gone {
            return;
        }
        let packet = lent.and_then(|(file, exported)| {
            state.last += 1;
            let lease = state.last;
            let descriptor = Descriptor {
                version: PROTOCOL,
                id,
                lease,
                kind: exported.kind().to_owned(),
                size: exported.size(),
                shared: exported.is_shared(),
                tensors: exported.tensors.clone(),
            };
            let text = serde_json::to_vec(&descriptor).unwrap_or_default();
            if text.len() > REPLY {
                let why = format!(
                    "{}: its description takes {} bytes, and a reply has at most {REPLY}; ask for streams one by one",
                    exported.label,
                    text.len()
                );
                return Err(Refusal::new(Errno::EMSGSIZE, why));
            }
            let bytes = Arena::charge(descriptor.size);
            state.bytes += bytes;
            state.leases.insert(lease, Lease { exported, bytes });
            let figures = server.figures();
            figures.leases.fetch_add(1, Ordering::Relaxed);
            figures.leased_bytes.fetch_add(bytes, Ordering::Relaxed);
            figures.exports.fetch_add(1, Ordering::Relaxed);
            Ok(Packet { text, file: Some(file), about: Some((id, lease)) })
        });
        match packet {
            Ok(packet) => self.put(server, &mut state, packet),
            Err(refusal) => {
                server.figures().refusals.fetch_add(1, Ordering::Relaxed);
                let text = message::refused(id, &refusal);
                self.put(server, &mut state, Packet { text, file: None, about: None });
            }
        }
        let gone = state.gone;
        drop(state);
        if gone {
            self.end(server);
        }
    }

    /// The client has done with these, and promises to keep nothing of them.
    fn give_back(&self, server: &Server, leases: &[u64]) -> Result<(), Refusal> {
        if leases.is_empty() {
            return Ok(());
        }
        let mut state = self.lock();
        let found: Vec<Lease> = leases.iter().filter_map(|l| state.leases.remove(l)).collect();
        let bytes: u64 = found.iter().map(|l| l.bytes).sum();
        state.bytes -= bytes;
        drop(state);
        server.returned(found.len() as u64, bytes);
        let unknown = leases.len() - found.len();
        server.let_go(found.into_iter().map(|l| l.exported));
        match unknown {
            0 => Ok(()),
            n => {
                let why = format!("{n} of the leases are not this client's, or given back already");
                Err(Refusal::new(Errno::EINVAL, why))
            }
        }
    }

    pub(crate) fn refuse(self: &Arc<Self>, server: &Arc<Server>, id: Option<u64>, why: &Refusal) {
        server.figures().refusals.fetch_add(1, Ordering::Relaxed);
        self.reply(server, message::refused(id, why));
    }

    fn reply(&self, server: &Server, text: Vec<u8>) {
        let mut state = self.lock();
        self.put(server, &mut state, Packet { text, file: None, about: None });
    }

    fn put(&self, server: &Server, state: &mut State, packet: Packet) {
        state.unsent.push_back(packet);
        self.flush(server, state);
        if !state.reading {
            self.watch(server, state);
        }
    }

    /// Sends what finds room.
    fn flush(&self, server: &Server, state: &mut State) {
        while let Some(packet) = state.unsent.front_mut() {
            let file = packet.file.as_ref().map(|f| f.as_fd());
            match send(&self.socket, &packet.text, file) {
                Ok(()) => drop(state.unsent.pop_front()),
                Err(Errno::EAGAIN) => return,
                // Too many descriptors of this user are under way, to clients that do not read them.
                Err(e @ (Errno::ETOOMANYREFS | Errno::EMSGSIZE | Errno::ENOBUFS))
                    if packet.about.is_some() =>
                {
                    let (id, lease) = packet.about.take().unwrap_or_default();
                    let why = format!("the descriptor cannot be sent: {e}");
                    packet.text = message::refused(id, &Refusal::new(e, why));
                    packet.file = None;
                    server.figures().refusals.fetch_add(1, Ordering::Relaxed);
                    if let Some(lease) = state.leases.remove(&lease) {
                        state.bytes -= lease.bytes;
                        server.returned(1, lease.bytes);
                    }
                }
                Err(_) => {
                    state.gone = true;
                    return;
                }
            }
        }
    }

    /// Asks the kernel to watch what is of interest now.
    pub(crate) fn watch_first(&self, server: &Server) {
        let mut state = self.lock();
        self.watch(server, &mut state);
    }

    fn watch(&self, server: &Server, state: &mut State) {
        let mut wanted = EpollFlags::EPOLLONESHOT;
        if state.has_room(server) {
            wanted |= EpollFlags::EPOLLIN | EpollFlags::EPOLLRDHUP;
        }
        if !state.unsent.is_empty() {
            wanted |= EpollFlags::EPOLLOUT;
        }
        if state.gone {
            // To be told at once, by its end.
            let _ = shutdown(std::os::fd::AsRawFd::as_raw_fd(&self.socket), Shutdown::Both);
        }
        if wanted != state.watched.0 && server.watch(self, wanted) {
            state.watched.0 = wanted;
        }
    }

    /// Frees everything that the client has. It gave no promise, so nothing is filled again.
    pub(crate) fn end(&self, server: &Server) {
        let mut state = self.lock();
        state.gone = true;
        let _ = shutdown(std::os::fd::AsRawFd::as_raw_fd(&self.socket), Shutdown::Both);
        let leases = std::mem::take(&mut state.leases);
        let rest = (std::mem::take(&mut state.unsent), std::mem::take(&mut state.views));
        let bytes = std::mem::take(&mut state.bytes);
        drop(state);
        for lease in leases.values() {
            lease.exported.abandon();
        }
        server.returned(leases.len() as u64, bytes);
        drop(rest);
        server.let_go(leases.into_values().map(|l| l.exported));
        server.forget(self.token);
    }
}

impl State {
    fn has_room(&self, server: &Server) -> bool {
        self.pending + self.unsent.len() < server.limits.in_flight
    }

    fn may_have_more(&self, server: &Server) -> Result<(), Refusal> {
        let limits = &server.limits;
        if self.leases.len() + self.pending >= limits.leases {
            let why = format!(
                "a client has at most {} descriptors at a time; release some",
                limits.leases
            );
            return Err(Refusal::new(Errno::EDQUOT, why));
        }
        if self.bytes >= limits.bytes {
            let why = format!(
                "the batches that this client has not released take {} bytes, and it may have {}; release some",
                self.bytes, limits.bytes
            );
            return Err(Refusal::new(Errno::EDQUOT, why));
        }
        Ok(())
    }
}
