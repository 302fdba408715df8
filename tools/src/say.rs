//! What is said on standard output and standard error. Nothing else in this program prints.

use std::fmt::Display;
use std::io::{self, Write};

/// Says a line on standard error. That it cannot be said changes nothing.
pub fn note(what: impl Display) {
    // In one piece, so that lines of several processes do not mix.
    let _ = io::stderr().lock().write_all(format!("batchfs: {what}\n").as_bytes());
}

/// Standard output, whose errors say what they are about.
pub fn out() -> Out {
    Out(io::stdout().lock())
}

/// See [`out`].
pub struct Out(io::StdoutLock<'static>);

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(unwritten)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(unwritten)
    }
}

fn unwritten(e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("standard output cannot be written: {e}"))
}

/// Whether somebody who read our standard output has read enough, as `head` does.
pub fn is_closed(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
}
