//! The threads that accept clients and answer them.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{Shutdown, getsockopt, shutdown, sockopt::PeerCredentials};
use serde_json::json;

use super::connection::Connection;
use super::folder::Listening;
use super::message::{self, REPLY, REQUEST};
use super::{Access, Figures, Limits};
use crate::exporter::{Exported, Exporter, Refusal};
use crate::sys::socket::{accept, receive, send};

/// Tokens of events that are no client's.
const LISTENER: u64 = 0;
const STOP: u64 = 1;
const FIRST: u64 = 2;

/// How often it is looked whether dma-bufs were let go outside.
const LOOK: Duration = Duration::from_millis(200);

/// Clients that are accepted before those that are there have their turn.
const TURN: usize = 64;

pub(crate) struct Server {
    listening: Listening,
    epoll: Epoll,
    stop: EventFd,
    stopping: AtomicBool,
    pub(super) exporter: Arc<dyn Exporter>,
    access: Access,
    pub(super) limits: Limits,
    figures: Arc<Figures>,
    clients: Mutex<Clients>,
    /// Closed when there is no other descriptor, to be able to turn a client away.
    spare: Mutex<Option<OwnedFd>>,
    /// dma-bufs that no client has any more, and a device, or somebody whom it was passed to, has.
    outside: Mutex<Outside>,
}

struct Outside {
    held: Vec<Exported>,
    /// When the kernel was asked for them.
    asked: Instant,
}

struct Clients {
    next: u64,
    all: HashMap<u64, Arc<Connection>>,
}

impl Server {
    pub(super) fn new(
        listening: Listening,
        exporter: Arc<dyn Exporter>,
        access: Access,
        limits: Limits,
    ) -> io::Result<Server> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        epoll.add(&stop, EpollEvent::new(EpollFlags::EPOLLIN, STOP))?;
        let once = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
        epoll.add(&listening.socket, EpollEvent::new(once, LISTENER))?;
        Ok(Server {
            listening,
            epoll,
            stop,
            stopping: AtomicBool::new(false),
            exporter,
            access,
            limits,
            figures: Arc::default(),
            clients: Mutex::new(Clients { next: FIRST, all: HashMap::new() }),
            spare: Mutex::new(spare()),
            outside: Mutex::new(Outside { held: Vec::new(), asked: Instant::now() }),
        })
    }

    pub(super) fn figures(&self) -> &Arc<Figures> {
        &self.figures
    }

    fn clients(&self) -> MutexGuard<'_, Clients> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers until it is stopped.
    pub(super) fn run(self: &Arc<Self>) {
        let mut events = [EpollEvent::empty()];
        while !self.stopping.load(Ordering::Acquire) {
            let wait = match self.look_outside() {
                true => EpollTimeout::try_from(LOOK).unwrap_or(EpollTimeout::MAX),
                false => EpollTimeout::NONE,
            };
            match self.epoll.wait(&mut events, wait) {
                Ok(0) | Err(Errno::EINTR) => continue,
                Ok(_) => {}
                Err(e) => {
                    tracing::error!("the descriptor service ends: {e}");
                    return;
                }
            }
            match events[0].data() {
                STOP if self.stopping.load(Ordering::Acquire) => return,
                STOP => {
                    let _ = self.stop.read();
                    // The end may have been said in the same word.
                    if self.stopping.load(Ordering::Acquire) {
                        let _ = self.stop.write(1);
                    }
                }
                LISTENER => self.accept(),
                token => {
                    let client = self.clients().all.get(&token).cloned();
                    if let Some(client) = client {
                        client.ready(self, events[0].events());
                    }
                }
            }
        }
    }

    fn accept(self: &Arc<Self>) {
        for _ in 0..TURN {
            match accept(&self.listening.socket) {
                Ok(socket) => self.admit(socket),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EMFILE | Errno::ENFILE) => {
                    if !self.turn_away() {
                        break;
                    }
                }
                Err(_) => {}
            }
        }
        let once = EpollFlags::EPOLLIN | EpollFlags::EPOLLONESHOT;
        if let Err(e) =
            self.epoll.modify(&self.listening.socket, &mut EpollEvent::new(once, LISTENER))
        {
            tracing::error!("the descriptor service accepts no more clients: {e}");
        }
    }

    /// Answers a client that there is no descriptor for. False if that was not possible either.
    fn turn_away(&self) -> bool {
        let mut reserve = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        drop(reserve.take());
        let there = accept(&self.listening.socket).map(|socket| {
            let why = "the daemon has no descriptor left; raise its `ulimit -Hn`";
            turn_away(&socket, &Refusal::new(Errno::EMFILE, why));
        });
        *reserve = spare();
        self.figures.refusals.fetch_add(1, Ordering::Relaxed);
        if there.is_err() {
            // Else the clients that wait are told of again and again.
            std::thread::sleep(Duration::from_millis(10));
        }
        there.is_ok()
    }

    fn admit(self: &Arc<Self>, socket: OwnedFd) {
        let refused = |why: &Refusal| {
            self.figures.refusals.fetch_add(1, Ordering::Relaxed);
            turn_away(&socket, why);
        };
        let me = nix::unistd::geteuid().as_raw();
        let uid = getsockopt(&socket, PeerCredentials).map(|c| c.uid());
        let trusted = uid.is_ok_and(|uid| uid == me || uid == 0);
        if self.access == Access::Own && !trusted {
            let why = "this mount is another user's, and was made without --allow-other";
            return refused(&Refusal::new(Errno::EACCES, why));
        }
        let mut clients = self.clients();
        if clients.all.len() as u64 >= self.limits.clients {
            drop(clients);
            let why = format!("there are {} clients, as many as may be", self.limits.clients);
            return refused(&Refusal::new(Errno::EUSERS, why));
        }
        let token = clients.next;
        clients.next += 1;
        let client = Arc::new(Connection::new(token, socket, trusted));
        let none = EpollEvent::new(EpollFlags::EPOLLONESHOT, token);
        if let Err(e) = self.epoll.add(&client.socket, none) {
            tracing::warn!("a client cannot be watched: {e}");
            return;
        }
        clients.all.insert(token, client.clone());
        self.figures.clients.fetch_add(1, Ordering::Relaxed);
        drop(clients);
        client.watch_first(self);
    }

    /// What a client is told of the service.
    pub(super) fn hello(&self) -> serde_json::Value {
        let mut about = self.exporter.about();
        about["pid"] = std::process::id().into();
        about["limits"] = json!({
            "in_flight": self.limits.in_flight,
            "leases": self.limits.leases,
            "bytes": self.limits.bytes,
            "request": REQUEST,
            "reply": REPLY,
        });
        about
    }

    /// Watches a client for something, once.
    pub(super) fn watch(&self, client: &Connection, what: EpollFlags) -> bool {
        let mut event = EpollEvent::new(what, client.token);
        // Fails only if the client was forgotten.
        self.epoll.modify(&client.socket, &mut event).is_ok()
    }

    /// These are no client's any more. What others still have stays in memory, and counts, until they
    /// have let go: the kernel tells nobody of it, so that it is asked now and then.
    pub(super) fn let_go(&self, exported: impl Iterator<Item = Exported>) {
        let held: Vec<Exported> = exported.filter(Exported::is_held).collect();
        if !held.is_empty() {
            self.outside().held.extend(held);
            // Another thread may wait without an end.
            let _ = self.stop.write(1);
        }
    }

    fn outside(&self) -> MutexGuard<'_, Outside> {
        self.outside.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees what was let go outside; whether something is left. They may be many: requests that come
    /// meanwhile do not wait for each to be looked at again.
    fn look_outside(&self) -> bool {
        let mut outside = self.outside();
        if outside.held.is_empty() || outside.asked.elapsed() < LOOK {
            return !outside.held.is_empty();
        }
        let all = std::mem::take(&mut outside.held);
        let (held, free): (Vec<_>, Vec<_>) = all.into_iter().partition(Exported::is_held);
        *outside = Outside { held, asked: Instant::now() };
        let left = !outside.held.is_empty();
        drop(outside);
        drop(free);
        left
    }

    /// Leases came back.
    pub(super) fn returned(&self, leases: u64, bytes: u64) {
        self.figures.leases.fetch_sub(leases, Ordering::Relaxed);
        self.figures.leased_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// A client is gone.
    pub(super) fn forget(&self, token: u64) {
        let gone = self.clients().all.remove(&token);
        if let Some(client) = gone {
            let _ = self.epoll.delete(&client.socket);
            self.figures.clients.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Makes [`run`](Self::run) return, in all threads.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        // Fails only if it was done very often.
        let _ = self.stop.write(1);
    }

    /// Ends all clients.
    pub(super) fn end(&self) {
        let all: Vec<_> = self.clients().all.values().cloned().collect();
        for client in all {
            client.end(self);
        }
    }
}

fn turn_away(socket: &OwnedFd, why: &Refusal) {
    // Requests that nobody read when it is closed would take the reason from the client.
    let _ = shutdown(socket.as_raw_fd(), Shutdown::Read);
    let mut request = [0; 1];
    while receive(socket, &mut request, false).is_ok_and(|packet| packet.len > 0) {}
    // Who does not read it is turned away all the same.
    let _ = send(socket, &message::refused(None, why), None);
}

fn spare() -> Option<OwnedFd> {
    std::fs::File::open("/dev/null").ok().map(OwnedFd::from)
}
