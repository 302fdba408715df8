//! How a mount goes to the background, and what it keeps of whoever started it: nothing.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::Stdio;

use anyhow::Context as _;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

use crate::hidden::{self, StorageOptions};
use crate::sys::Inherited;
use crate::{program, say};

/// What the daemon says on its standard output, in front of all else, when the mount answers.
const READY: &[u8] = b"ready\n";

/// How a start ended.
pub enum Start {
    /// The mount answers; this is what the daemon says of it.
    Answers(String),
    /// There is no mount, and the daemon has said why. The code to exit with.
    Failed(u8),
}

/// Starts this program again as the daemon, with these arguments of `batchfs mount`, and waits until the
/// mount answers. `storage` are the options of object storage, which are not told by arguments.
///
/// A new program rather than a fork: nothing is inherited half-made.
pub fn start(args: &[OsString], storage: &StorageOptions) -> anyhow::Result<Start> {
    let mut command = program::again()?;
    // In front, since a `--` may follow.
    command.args(["mount", "--daemon"]);
    if storage.is_empty() {
        command.stdin(Stdio::null());
    } else {
        command.arg(hidden::FLAG).stdin(hidden::stdin(storage)?);
    }
    command.args(hidden::without(args)).stdout(Stdio::piped());
    let mut daemon = command.spawn().context("cannot start the daemon")?;
    let mut said = Vec::new();
    if let Some(mut stdout) = daemon.stdout.take() {
        stdout.read_to_end(&mut said).context("cannot hear the daemon")?;
    }
    if let Some(line) = said.strip_prefix(READY) {
        return Ok(Start::Answers(String::from_utf8_lossy(line).trim_end().to_owned()));
    }
    let status = daemon.wait()?;
    if let Some(signal) = status.signal() {
        say::note(format_args!(
            "the daemon was killed by signal {signal} before the mount answered"
        ));
    }
    // Otherwise it has said why on standard error, which it shares with us.
    let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1);
    Ok(Start::Failed(code.max(1)))
}

/// Says a line about a mount that is there, whether this can be said or not.
pub fn tell(line: &str) {
    let mut out = say::out();
    if let Err(e) = writeln!(out, "{line}").and_then(|()| out.flush())
        && e.kind() != std::io::ErrorKind::BrokenPipe
    {
        say::note(format_args!("{line}, but {e}"));
    }
}

/// What a daemon has of its caller until its mount answers.
pub struct Tether {
    inherited: Inherited,
    null: File,
    log: Option<File>,
}

impl Tether {
    /// To be called first of all; `log` is where standard error is to go. All that can fail later
    /// fails here.
    pub fn new(inherited: Inherited, log: Option<&File>) -> anyhow::Result<Tether> {
        // A caller who is killed while it waits wants no mount.
        let _ = set_pdeathsig(Signal::SIGTERM);
        let null = File::options().read(true).write(true).open("/dev/null");
        Ok(Tether {
            inherited,
            null: null.context("/dev/null: cannot be opened")?,
            log: log.map(File::try_clone).transpose()?,
        })
    }

    /// Says that the mount answers, and lets go of the caller: terminal, folder, descriptors. The
    /// mount is there, and nothing of this is worth ending it.
    pub fn cut(self, line: &str) {
        let _ = set_pdeathsig(None);
        let _ = nix::unistd::setsid();
        let _ = std::env::set_current_dir("/");
        self.inherited.close();
        let _ = nix::unistd::dup2_stderr(self.log.as_ref().unwrap_or(&self.null));
        let mut out = std::io::stdout().lock();
        let _ = out.write_all(READY).and_then(|()| writeln!(out, "{line}"));
        let _ = out.flush();
        // Its end is the end of the message.
        let _ = nix::unistd::dup2_stdout(&self.null);
    }
}
