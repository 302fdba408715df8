//! SIGINT, SIGTERM and SIGHUP: they end the process at any time, and leave no mount behind.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use batchfs_mount::Stopper;
use nix::sys::signal::{SigSet, Signal};

use crate::say;

/// How far the process is, which says what a signal does.
enum Phase {
    /// Nothing is mounted: it ends the process.
    Starting,
    /// The mount is being made, which takes no time: it waits for that.
    Mounting { asked: u32 },
    /// It is for the mount.
    Serving(Stopper),
}

/// The one who waits for signals.
pub struct Signals(Arc<Mutex<Phase>>);

impl Signals {
    /// Takes these signals from now on, on a thread of its own. To be called before any other
    /// thread is made, so that all of them leave these signals to that one.
    pub fn watch() -> anyhow::Result<Signals> {
        let signals: SigSet =
            [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().collect();
        signals.thread_block()?;
        let phase = Arc::new(Mutex::new(Phase::Starting));
        let theirs = phase.clone();
        std::thread::Builder::new().name("signals".to_owned()).spawn(move || {
            while let Ok(signal) = signals.wait() {
                match &mut *lock(&theirs) {
                    Phase::Starting => {
                        say::note(format_args!("ended by {signal} before anything was mounted"));
                        std::process::exit(128 + signal as i32);
                    }
                    Phase::Mounting { asked } => *asked += 1,
                    Phase::Serving(stopper) => stopper.stop(),
                }
            }
        })?;
        Ok(Signals(phase))
    }

    /// From here on a signal no longer ends the process by itself.
    pub fn mounting(&self) {
        *lock(&self.0) = Phase::Mounting { asked: 0 };
    }

    /// From here on signals are for the mount, as are those that came meanwhile.
    pub fn serving(&self, stopper: Stopper) {
        let mut phase = lock(&self.0);
        if let Phase::Mounting { asked } = *phase {
            (0..asked).for_each(|_| stopper.stop());
        }
        *phase = Phase::Serving(stopper);
    }
}

fn lock(phase: &Mutex<Phase>) -> MutexGuard<'_, Phase> {
    phase.lock().unwrap_or_else(PoisonError::into_inner)
}
