//! Readers that wait for an answer, and do not want it any more.
//!
//! The kernel lets nobody who waits for a FUSE server go before it has answered, whatever signal
//! comes, and its own word for that (FUSE_INTERRUPT) does not reach us through fuser. So while
//! somebody waits, we look at what signals wait for him, and answer EINTR.

use std::fs;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use fuser::{Errno, ReplyAttr, ReplyEntry, ReplyOpen, Request};

/// How often those who wait are looked at.
const LOOK: Duration = Duration::from_millis(100);
/// What a look at one of them may take of that time: of very many each is looked at less often.
const EACH: Duration = Duration::from_micros(500);

/// An answer that can say no.
pub(crate) trait Reply: Send + 'static {
    fn refuse(self, errno: Errno);
}

impl Reply for ReplyOpen {
    fn refuse(self, errno: Errno) {
        self.error(errno);
    }
}

impl Reply for ReplyEntry {
    fn refuse(self, errno: Errno) {
        self.error(errno);
    }
}

impl Reply for ReplyAttr {
    fn refuse(self, errno: Errno) {
        self.error(errno);
    }
}

/// An answer that is given once, by whoever takes it first.
pub(crate) struct Held<R>(Arc<Mutex<Option<R>>>);

impl<R> Held<R> {
    pub(crate) fn new(reply: R) -> Held<R> {
        Held(Arc::new(Mutex::new(Some(reply))))
    }

    /// The answer; `None` if the reader was let go.
    pub(crate) fn take(&self) -> Option<R> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn is_open(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }
}

impl<R> Clone for Held<R> {
    fn clone(&self) -> Held<R> {
        Held(self.0.clone())
    }
}

/// What the looker needs of a [`Held`].
trait Waiter: Send {
    fn waits(&self) -> bool;
    fn let_go(&self);
}

impl<R: Reply> Waiter for Held<R> {
    fn waits(&self) -> bool {
        self.is_open()
    }

    fn let_go(&self) {
        if let Some(reply) = self.take() {
            reply.refuse(Errno::EINTR);
        }
    }
}

struct One {
    /// The thread that waits.
    thread: u32,
    /// A signal of the whole process was there at the last look.
    seen: bool,
    held: Box<dyn Waiter>,
}

/// Those who wait.
#[derive(Default)]
pub(crate) struct Waiting(Arc<Inner>);

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    come: Condvar,
}

#[derive(Default)]
struct State {
    all: Vec<One>,
    /// There is a thread that looks.
    looks: bool,
    stop: bool,
}

impl Waiting {
    /// Looks after the reader of `request`, if he waits for `held` still.
    pub(crate) fn watch<R: Reply>(&self, request: &Request, held: Held<R>) {
        // A reader in another namespace of processes has no number here.
        if request.pid() == 0 || !held.is_open() {
            return;
        }
        let one = One { thread: request.pid(), seen: false, held: Box::new(held) };
        let mut state = self.0.lock();
        state.all.push(one);
        if !state.looks {
            let inner = self.0.clone();
            let job = thread::Builder::new().name("waiting".to_owned());
            // Without the thread they wait until they are answered.
            state.looks = job.spawn(move || inner.look()).is_ok();
        } else if state.all.len() == 1 {
            self.0.come.notify_one();
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.lock().stop = true;
        self.0.come.notify_one();
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Whole at each point where something could panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn look(&self) {
        let mut state = self.lock();
        loop {
            let idle = |state: &mut State| !state.stop && state.all.is_empty();
            state = self.come.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
            if state.stop {
                return;
            }
            let pause = LOOK.max(EACH.saturating_mul(state.all.len() as u32));
            drop(state);
            thread::sleep(pause);
            state = self.lock();
            let mut all = std::mem::take(&mut state.all);
            drop(state);
            all.retain_mut(|one| {
                if !one.held.waits() {
                    return false;
                }
                let wanted = fs::read_to_string(format!("/proc/{}/status", one.thread))
                    .map_or(Signal::None, |status| pending(&status));
                let now = match wanted {
                    Signal::None => false,
                    Signal::Own => true,
                    Signal::Shared => one.seen,
                };
                one.seen = wanted == Signal::Shared;
                if now {
                    one.held.let_go();
                }
                !now
            });
            state = self.lock();
            state.all.extend(all);
        }
    }
}

/// A signal that waits for a thread and is worth an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Signal {
    None,
    /// It is for this thread, or ends the process.
    Own,
    /// Any thread of the process may take it, and one that does not wait is faster.
    Shared,
}

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

/// What does not end a process that has no handler for it.
const HARMLESS: u64 = bit(libc::SIGCHLD)
    | bit(libc::SIGCONT)
    | bit(libc::SIGSTOP)
    | bit(libc::SIGTSTP)
    | bit(libc::SIGTTIN)
    | bit(libc::SIGTTOU)
    | bit(libc::SIGURG)
    | bit(libc::SIGWINCH);

/// Those whose handlers are there to end something. Others, such as those of profilers, interrupt no
/// open of a file anywhere.
const ENDING: u64 = bit(libc::SIGHUP)
    | bit(libc::SIGINT)
    | bit(libc::SIGQUIT)
    | bit(libc::SIGALRM)
    | bit(libc::SIGTERM);

/// Reads what `/proc/<thread>/status` says of signals.
fn pending(status: &str) -> Signal {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
    };
    let (own, shared) = (mask("SigPnd:"), mask("ShdPnd:"));
    let open = !mask("SigBlk:") & !mask("SigIgn:");
    let caught = mask("SigCgt:");
    let deadly = open & !caught & !HARMLESS;
    let handled = open & caught & ENDING;
    if (own | shared) & deadly != 0 || own & handled != 0 {
        Signal::Own
    } else if shared & handled != 0 {
        Signal::Shared
    } else {
        Signal::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(own: u64, shared: u64, blocked: u64, ignored: u64, caught: u64) -> Signal {
        pending(&format!(
            "Name:\tcat\nSigQ:\t1/9\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\nSigCgt:\t{caught:016x}\n"
        ))
    }

    #[test]
    fn signals_that_end_something_are_told_from_others() {
        let (kill, int, term) = (bit(libc::SIGKILL), bit(libc::SIGINT), bit(libc::SIGTERM));
        assert_eq!((kill, int, term), (0x100, 0x2, 0x4000));
        assert_eq!(status(0, 0, 0, 0, 0), Signal::None);
        assert_eq!(status(kill, 0, 0, 0, 0), Signal::Own);
        assert_eq!(status(0, term, 0, 0, 0), Signal::Own);
        assert_eq!(status(int, 0, 0, 0, int), Signal::Own);
        assert_eq!(status(0, int, 0, 0, int), Signal::Shared);
        for signal in [int, term] {
            assert_eq!(status(signal, 0, signal, 0, 0), Signal::None, "blocked");
            assert_eq!(status(0, signal, 0, signal, 0), Signal::None, "ignored");
        }
        let (child, profiler) = (bit(libc::SIGCHLD), bit(libc::SIGPROF));
        assert_eq!(status(child, child, 0, 0, 0), Signal::None);
        assert_eq!(status(child, child, 0, 0, child), Signal::None);
        assert_eq!(status(profiler, profiler, 0, 0, profiler), Signal::None);
        assert_eq!(status(profiler, 0, 0, 0, 0), Signal::Own, "it has no handler");
        assert_eq!(pending("Name:\tcat\n"), Signal::None);
    }

    struct Said(std::sync::mpsc::Sender<&'static str>);

    impl Reply for Said {
        fn refuse(self, _: Errno) {
            let _ = self.0.send("interrupted");
        }
    }

    #[test]
    fn an_answer_is_given_once() {
        let (tell, told) = std::sync::mpsc::channel();
        let held = Held::new(Said(tell));
        let other = held.clone();
        assert!(other.waits());
        assert!(held.take().is_some() && held.take().is_none());
        assert!(!other.waits());
        other.let_go();
        drop((held, other));
        assert!(told.recv().is_err(), "nothing was said a second time");
        let (tell, told) = std::sync::mpsc::channel();
        Held::new(Said(tell)).let_go();
        assert_eq!(told.recv().unwrap(), "interrupted");
    }
}
