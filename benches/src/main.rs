//! The compiled half of the benchmark harness.
//!
//! Reads one JSON request per line from standard input and answers each with one JSON line, so
//! that the Python half can take turns between this process and the peers within one run. Times
//! are nanoseconds, measured here, around the work alone.

mod gather;
mod ids;
mod latency;
mod memory;
mod packed;
mod reader;
mod tokens;
mod write;

use std::collections::HashMap;
use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;

use serde::Deserialize;
use serde_json::{Value, json};

/// What can be asked for.
#[derive(Debug, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case")]
enum Request {
    /// Writes a store from a `.npy` file.
    Write { npy: PathBuf, dest: PathBuf, how: write::How },
    /// Opens a store, the same data as `.npy`, and a file of record ids (u64), 256 per batch.
    Open { name: String, store: PathBuf, npy: PathBuf, ids: PathBuf },
    /// Gathers the batches `start..start + count` of the file of ids.
    Gather { name: String, how: gather::How, start: usize, count: usize },
    /// Gathers single records, the first id of each batch.
    One { name: String, start: usize, count: usize },
    /// Opens a store that is compressed, ragged or both, and a file of record ids.
    OpenPacked { name: String, store: PathBuf, ids: PathBuf },
    /// As `Gather`, from such a store, on all threads or on one.
    GatherPacked { name: String, all: bool, start: usize, count: usize },
    /// As `Dump`, of such a store.
    DumpPacked { name: String, all: bool, start: usize, path: PathBuf },
    /// Writes the buffer of the last gather to a file, for comparison.
    Dump { name: String, how: gather::How, start: usize, path: PathBuf },
    /// Draws ids, `runs` times the steps `0..steps`, and gives the mean per step of each run.
    Ids { spec: String, records: u64, runs: usize, steps: u64 },
    /// Writes the ids of the steps `start..start + count` of a spec to a file.
    Plan { spec: String, records: u64, start: u64, count: u64, path: PathBuf },
    /// Times system calls on a path.
    Latency { what: latency::What, path: PathBuf, count: usize },
    /// Times open, read of one byte and close of the files `start..start + count` of a folder.
    Fresh { dir: PathBuf, suffix: String, start: u64, count: u64, pause_us: u64 },
    /// Times requests to the descriptor service, until the descriptor is there.
    Export { socket: PathBuf, stream: String, step: u64, count: usize },
    /// Times a byte's way to another thread and back, over a socket.
    RoundTrip { count: usize, pause_us: u64 },
    /// Fills the rows of epochs of tokens.
    Tokens {
        source: PathBuf,
        column: String,
        spec: String,
        budget: Option<u64>,
        start: u64,
        passes: u64,
    },
    /// Reads and sums the files `start..start + count` of a folder, as u64 words.
    Sum { dir: PathBuf, suffix: String, skip: usize, start: u64, count: u64, how: reader::How },
}

#[derive(Default)]
struct State {
    open: HashMap<String, gather::Loaded>,
    packed: HashMap<String, packed::Packed>,
}

impl State {
    fn get(&mut self, name: &str) -> anyhow::Result<&mut gather::Loaded> {
        self.open.get_mut(name).ok_or_else(|| anyhow::anyhow!("{name} is not open"))
    }

    fn packed(&mut self, name: &str) -> anyhow::Result<&mut packed::Packed> {
        self.packed.get_mut(name).ok_or_else(|| anyhow::anyhow!("{name} is not open"))
    }

    fn answer(&mut self, request: Request) -> anyhow::Result<Value> {
        Ok(match request {
            Request::Write { npy, dest, how } => write::write(&npy, &dest, &how)?,
            Request::Open { name, store, npy, ids } => {
                self.open.insert(name, gather::Loaded::open(&store, &npy, &ids)?);
                json!({})
            }
            Request::Gather { name, how, start, count } => {
                json!({ "ns": self.get(&name)?.time(how, start, count)? })
            }
            Request::One { name, start, count } => {
                json!({ "ns": self.get(&name)?.time_one(start, count)? })
            }
            Request::Dump { name, how, start, path } => {
                json!({ "ids": self.get(&name)?.dump(how, start, &path)? })
            }
            Request::OpenPacked { name, store, ids } => {
                self.packed.insert(name, packed::Packed::open(&store, &ids)?);
                json!({})
            }
            Request::GatherPacked { name, all, start, count } => {
                json!({ "ns": self.packed(&name)?.time(all, start, count)? })
            }
            Request::DumpPacked { name, all, start, path } => {
                self.packed(&name)?.dump(all, start, &path)?;
                json!({})
            }
            Request::Ids { spec, records, runs, steps } => {
                json!({ "ns": ids::time(&spec, records, runs, steps)? })
            }
            Request::Plan { spec, records, start, count, path } => {
                ids::plan(&spec, records, start, count, &path)?;
                json!({})
            }
            Request::Latency { what, path, count } => {
                json!({ "ns": latency::time(what, &path, count)? })
            }
            Request::Fresh { dir, suffix, start, count, pause_us } => {
                json!({ "ns": latency::fresh(&dir, &suffix, start, count, pause_us)? })
            }
            Request::Export { socket, stream, step, count } => {
                json!({ "ns": latency::exports(&socket, &stream, step, count)? })
            }
            Request::RoundTrip { count, pause_us } => {
                json!({ "ns": latency::round_trips(count, pause_us)? })
            }
            Request::Tokens { source, column, spec, budget, start, passes } => {
                tokens::run(&source, column, &spec, budget, start, passes)?
            }
            Request::Sum { dir, suffix, skip, start, count, how } => {
                let (ns, sums) = reader::sum(&dir, &suffix, skip, start, count, how)?;
                json!({ "ns": ns, "sums": sums })
            }
        })
    }
}

fn main() -> anyhow::Result<()> {
    // As the daemon does.
    batchfs_store::keep_freed_memory();
    let mut state = State::default();
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let answer = serde_json::from_str(&line?).map_err(Into::into).and_then(|r| state.answer(r));
        let answer = answer.unwrap_or_else(|e| json!({ "error": format!("{e:#}") }));
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
