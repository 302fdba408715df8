//! What `.batchfs/errors` shows: the reasons behind errnos.

use std::collections::{HashMap, VecDeque};
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// Lines that are kept.
const LINES: usize = 256;

/// Lines of one kind that are taken within a `SPAN`, so that a program that asks for the same
/// missing thing again and again does not push out the rest.
const BURST: u32 = 5;

const SPAN: Duration = Duration::from_secs(60);

/// The last errors, newest last.
#[derive(Default)]
pub(crate) struct ErrorLog(Mutex<Log>);

#[derive(Default)]
struct Log {
    lines: VecDeque<String>,
    spans: HashMap<&'static str, (Instant, u32)>,
}

impl ErrorLog {
    /// Adds a line. `kind` names lines that share a limit; real failures have none.
    pub(crate) fn add(&self, kind: Option<&'static str>, message: impl Display) {
        let mut log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(kind) = kind {
            let now = Instant::now();
            let (since, count) = log.spans.entry(kind).or_insert((now, 0));
            if now.duration_since(*since) >= SPAN {
                (*since, *count) = (now, 0);
            }
            *count += 1;
            if *count > BURST {
                return;
            }
        }
        if log.lines.len() >= LINES {
            log.lines.pop_front();
        }
        let time = humantime::format_rfc3339_millis(SystemTime::now());
        // One error is one line, and nothing that a terminal obeys, whatever a name may hold.
        let message = message.to_string().replace(char::is_control, " ");
        tracing::info!("{message}");
        log.lines.push_back(format!("{time} {message}\n"));
    }

    pub(crate) fn text(&self) -> String {
        let log = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        log.lines.iter().map(String::as_str).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_is_last_and_floods_of_one_kind_are_held_back() {
        let log = ErrorLog::default();
        for i in 0..100 {
            log.add(Some("no face"), format!("flood {i}"));
        }
        log.add(None, "a real one\nin two lines\u{1b}[31m\u{85}");
        let text = log.text();
        assert_eq!(text.lines().count(), 6);
        assert!(text.lines().next().unwrap().ends_with(" flood 0"));
        assert!(text.ends_with(" a real one in two lines [31m \n"));
        for i in 0..300 {
            log.add(None, i);
        }
        assert_eq!(log.text().lines().count(), LINES);
        assert!(log.text().ends_with(" 299\n"));
    }
}
