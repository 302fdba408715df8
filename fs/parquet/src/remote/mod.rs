//! Files in object storage.

mod client;
mod list;
mod patience;
mod read;
mod retry;
mod said;

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use batchfs_store::{Error, Result};
use bytes::Bytes;
use object_store::path::Path;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use url::Url;

use crate::place::{File, Place, bad_file};
use client::{Client, settings};
use retry::Jitter;

/// A listing of very many keys takes its time.
const LISTING: Duration = Duration::from_secs(300);
const PARALLEL: usize = 16;
/// Bytes that are fetched ahead of those who decode them.
const AHEAD: u64 = 128 << 20;
/// What nobody came for within this time is dropped.
const STALE: Duration = Duration::from_secs(30);

/// A bucket's prefix, or one object.
pub(crate) struct Remote {
    inner: Arc<Inner>,
    runtime: Runtime,
    ahead: Mutex<VecDeque<Ahead>>,
}

struct Inner {
    client: Client,
    prefix: Path,
    origin: String,
    /// What must not be shown to anybody.
    secrets: Vec<String>,
    received: AtomicU64,
    /// Bytes that came, of ranges that are not whole yet, too.
    came: AtomicU64,
    slots: Semaphore,
    jitter: Jitter,
}

/// A range that is on its way.
struct Ahead {
    key: String,
    begin: u64,
    len: u64,
    since: Instant,
    task: JoinHandle<Result<Bytes>>,
}

impl Remote {
    /// Opens `source`, such as `s3://bucket/prefix`. `options` come before the environment.
    pub(crate) fn new(source: &str, options: &BTreeMap<String, String>) -> Result<Remote> {
        let invalid = |why: String| bad_file(source.to_owned(), why);
        let url = Url::parse(source)
            .map_err(|e| invalid(format!("is no address: {e}; write one as s3://bucket/folder")))?;
        if !url.username().is_empty() || url.password().is_some() {
            let mut shown = url.clone();
            // Neither fails for an address that has a host.
            let _ = shown.set_username("");
            let _ = shown.set_password(None);
            let why = "has a user or a password in the address; put them in the environment";
            return Err(bad_file(shown.to_string(), why));
        }
        let settings = settings(options);
        let secrets = settings
            .iter()
            .filter(|(key, value)| {
                let secret = ["key", "secret", "token", "sas", "password", "credential"];
                value.len() >= 4 && secret.iter().any(|part| key.contains(part))
            })
            .map(|(_, value)| value.clone())
            .collect();
        let (client, prefix) = Client::new(&url, options, settings).map_err(invalid)?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("fetch")
            .enable_all()
            .build()
            .map_err(Error::io(source, "cannot start threads to reach it"))?;
        let inner = Arc::new(Inner {
            client,
            prefix,
            origin: source.trim_end_matches('/').to_owned(),
            secrets,
            received: AtomicU64::new(0),
            came: AtomicU64::new(0),
            slots: Semaphore::new(PARALLEL),
            jitter: Jitter::default(),
        });
        Ok(Remote { inner, runtime, ahead: Mutex::default() })
    }
}

impl Place for Remote {
    fn origin(&self) -> &str {
        &self.inner.origin
    }

    fn name(&self, key: &str) -> String {
        self.inner.name(key)
    }

    fn list(&self) -> Result<Vec<File>> {
        let work = async { tokio::time::timeout(LISTING, self.inner.list()).await };
        match self.runtime.block_on(work) {
            Ok(files) => files,
            Err(_) => Err(self.inner.late("", "cannot list", LISTING)),
        }
    }

    fn read(&self, file: &File, range: Range<u64>) -> Result<Bytes> {
        let coming = {
            let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
            let at = ahead.iter().position(|a| a.key == file.key && a.begin == range.start);
            at.and_then(|at| ahead.remove(at))
        };
        self.runtime.block_on(async {
            if let Some(Ahead { task, .. }) = coming {
                // What failed before anybody wanted it may be right by now.
                let early = task.is_finished();
                match task.await {
                    Ok(Err(_)) if early => {}
                    Ok(done) => return done,
                    Err(_) => {}
                }
            }
            self.inner.read(file, range).await
        })
    }

    fn announce(&self, ranges: Vec<(File, Range<u64>)>) {
        let mut ahead = self.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        for (file, range) in ranges {
            let len = range.end - range.start;
            if ahead.iter().any(|a| a.key == file.key && a.begin == range.start) {
                continue;
            }
            // What was announced and then not read, after a jump, goes after a while.
            ahead.retain(|a| a.since.elapsed() < STALE || !a.task.is_finished());
            if ahead.iter().map(|a| a.len).sum::<u64>() + len > AHEAD {
                break;
            }
            let (inner, key, begin) = (self.inner.clone(), file.key.clone(), range.start);
            let task = self.runtime.spawn(async move { inner.read(&file, range).await });
            ahead.push_back(Ahead { key, begin, len, since: Instant::now(), task });
        }
    }

    fn parallel(&self) -> usize {
        PARALLEL
    }

    fn received(&self) -> u64 {
        self.inner.received.load(Ordering::Relaxed)
    }
}
