//! Ranges of files, asked for again when their bodies break off.

use std::cmp::Ordering::{Equal, Greater, Less};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use batchfs_store::{Error, Result};
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::{Error as StoreError, GetOptions, GetRange, ObjectStore as _};

use super::Inner;
use super::ahead::AHEAD;
use super::list::is_same;
use super::patience::within;
use super::retry::{Tries, Try};
use super::said::BROKEN_SERVER;
use crate::place::{CHANGED, File, bad_file};

/// How long a range may take, with all that was tried, beside what its bytes take at least.
const PATIENCE: Duration = Duration::from_secs(45);

impl Inner {
    /// Reads a range, again if its body breaks off. Notes in `begun` that it has its turn.
    pub(super) async fn read(
        &self,
        file: &File,
        range: Range<u64>,
        begun: &AtomicBool,
    ) -> Result<Bytes> {
        let all = || self.came.load(Ordering::Relaxed);
        // While others have all slots, what comes to them counts; then what comes for this range.
        let (before, since) = (all(), AtomicU64::new(u64::MAX));
        let own = AtomicU64::new(0);
        let came = || {
            let queued = since.load(Ordering::Relaxed).min(all());
            queued.saturating_sub(before) + own.load(Ordering::Relaxed)
        };
        let work = async {
            let _slot = self.slots.acquire().await;
            begun.store(true, Ordering::Relaxed);
            since.store(all(), Ordering::Relaxed);
            let mut tries = Tries::default();
            loop {
                match self.read_once(file, range.clone(), &own).await {
                    Ok(bytes) => return Ok(bytes),
                    Err(failed) => tries.wait(self, failed).await?,
                }
            }
        };
        match within(PATIENCE, came, work).await {
            Some(done) => done,
            None => Err(self.late(&file.key, "cannot read", PATIENCE)),
        }
    }

    async fn read_once(
        &self,
        file: &File,
        range: Range<u64>,
        own: &AtomicU64,
    ) -> Result<Bytes, Try> {
        let failed = |error: &StoreError| self.failed(&file.key, "cannot read", error);
        let path = self.path(&file.key).map_err(|e| Try::Final(failed(&e)))?;
        let pinned = file.version.strip_prefix("etag ").map(str::to_owned);
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: pinned,
            ..GetOptions::default()
        };
        let (number, store) = self.client.now();
        let got = store.get_opts(&path, options).await;
        let got = got.map_err(|e| Try::of(&e, number, failed(&e)))?;
        // Not every server heeds the condition.
        if !is_same(file, &got.meta) {
            return Err(Try::Final(bad_file(self.name(&file.key), CHANGED)));
        }
        let wanted = range.end - range.start;
        let mut body = got.into_stream();
        // A server can say anything; what it says is believed up to some size.
        let mut bytes = Vec::with_capacity(usize::try_from(wanted.min(AHEAD)).unwrap_or(0));
        while let Some(part) = body.try_next().await.map_err(|e| Try::Again(failed(&e)))? {
            self.came.fetch_add(part.len() as u64, Ordering::Relaxed);
            own.fetch_add(part.len() as u64, Ordering::Relaxed);
            bytes.extend_from_slice(&part);
            if bytes.len() as u64 > wanted {
                break;
            }
        }
        let (kind, more) = match (bytes.len() as u64).cmp(&wanted) {
            Equal => return Ok(bytes.into()),
            Less => (io::ErrorKind::UnexpectedEof, ""),
            Greater => (io::ErrorKind::InvalidData, " or more"),
        };
        let why = format!("{}{more} bytes came instead of {wanted}; {BROKEN_SERVER}", bytes.len());
        let path = self.name(&file.key).into();
        let source = io::Error::new(kind, why);
        Err(Try::Again(Error::Io { path, action: "cannot read", source }))
    }
}
