//! Files in object storage.

mod address;
mod ahead;
mod client;
mod list;
mod patience;
mod read;
mod retry;
mod said;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use batchfs_store::{Error, Result};
use bytes::Bytes;
use object_store::path::Path;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

use crate::place::{File, Place, bad_file};
use ahead::Ahead;
use client::{Client, settings};
use retry::Jitter;

/// A listing of very many keys takes its time.
const LISTING: Duration = Duration::from_secs(300);
const PARALLEL: usize = 16;

/// A bucket's prefix, or one object.
pub(crate) struct Remote {
    inner: Arc<Inner>,
    runtime: Runtime,
    ahead: Ahead,
}

struct Inner {
    client: Client,
    prefix: Path,
    origin: String,
    /// What must not be shown to anybody.
    secrets: Vec<String>,
    /// Bytes that came, of ranges that broke off, too.
    came: AtomicU64,
    slots: Semaphore,
    jitter: Jitter,
}

impl Remote {
    /// Opens `source`, such as `s3://bucket/prefix`. `options` come before the environment.
    pub(crate) fn new(source: &str, options: &BTreeMap<String, String>) -> Result<Remote> {
        let url = address::parse(source)?;
        let invalid = |why: String| bad_file(source.to_owned(), why);
        let own: BTreeMap<String, String> =
            options.iter().map(|(key, value)| (key.to_lowercase(), value.clone())).collect();
        let settings = settings(&own);
        let secrets = settings
            .iter()
            .filter(|(key, value)| {
                let secret = ["key", "secret", "token", "sas", "password", "credential"];
                value.len() >= 4 && secret.iter().any(|part| key.contains(part))
            })
            .map(|(_, value)| value.clone())
            .collect();
        let (client, prefix) = Client::new(&url, &own, settings).map_err(invalid)?;
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
            came: AtomicU64::new(0),
            slots: Semaphore::new(PARALLEL),
            jitter: Jitter::default(),
        });
        Ok(Remote { inner, runtime, ahead: Ahead::default() })
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
        let coming = self.ahead.take(file, &range);
        self.runtime.block_on(async {
            if let Some(task) = coming {
                // What failed before anybody wanted it may be right by now.
                let early = task.is_finished();
                match task.await {
                    Ok(Err(_)) if early => {}
                    Ok(done) => return done,
                    Err(_) => {}
                }
            }
            self.inner.read(file, range, &AtomicBool::default()).await
        })
    }

    fn announce(&self, ranges: Vec<(File, Range<u64>)>) {
        let fetch = |file: File, range, begun: Arc<AtomicBool>| {
            let inner = self.inner.clone();
            async move { inner.read(&file, range, &begun).await }
        };
        self.ahead.replace(ranges, self.runtime.handle(), fetch);
    }

    fn parallel(&self) -> usize {
        PARALLEL
    }

    fn received(&self) -> u64 {
        self.inner.came.load(Ordering::Relaxed)
    }
}
