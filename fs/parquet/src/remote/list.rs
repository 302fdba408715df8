//! The files below a prefix.

use std::time::SystemTime;

use batchfs_store::Result;
use futures_util::TryStreamExt as _;
use object_store::{Error as StoreError, ObjectMeta, ObjectStore as _, ObjectStoreExt as _};

use super::Inner;
use super::retry::{Tries, Try};
use crate::place::{File, has_suffix, is_data};

impl Inner {
    /// Lists the files, all of them again if an answer breaks off: what came before may have changed.
    pub(super) async fn list(&self) -> Result<Vec<File>> {
        let mut tries = Tries::default();
        loop {
            match self.list_once().await {
                Ok(files) => return Ok(files),
                Err(failed) => tries.wait(self, failed).await?,
            }
        }
    }

    async fn list_once(&self) -> Result<Vec<File>, Try> {
        let (number, store) = self.client.now();
        let failed =
            |error: StoreError| Try::of(&error, number, self.failed("", "cannot list", &error));
        let mut files = Vec::new();
        // What looks like a file can be one.
        if has_suffix(self.prefix.as_ref()) {
            match store.head(&self.prefix).await {
                Ok(meta) => return Ok(vec![describe(String::new(), &meta)]),
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let mut found = store.list(Some(&self.prefix));
        while let Some(meta) = found.try_next().await.map_err(failed)? {
            let key = meta.location.as_ref();
            let key = match self.prefix.as_ref() {
                "" => key,
                prefix => match key.strip_prefix(prefix).and_then(|key| key.strip_prefix('/')) {
                    Some(key) => key,
                    None => continue,
                },
            };
            if is_data(key) {
                files.push(describe(key.to_owned(), &meta));
            }
        }
        files.sort_by(|a, b| a.key.as_bytes().cmp(b.key.as_bytes()));
        Ok(files)
    }
}

fn describe(key: String, meta: &ObjectMeta) -> File {
    let time: SystemTime = meta.last_modified.into();
    let modified = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0, |time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let version = match &meta.e_tag {
        Some(etag) => format!("etag {etag}"),
        // To the second: that is what answers to reads have.
        None => format!("time {}", modified / 1_000_000_000),
    };
    // A listing and an answer to a read may differ below the second.
    File { key, size: meta.size, version, modified: modified / 1_000_000_000 * 1_000_000_000 }
}

/// Whether this is the version of the file that was listed. Some servers list no ETags.
pub(super) fn is_same(file: &File, meta: &ObjectMeta) -> bool {
    let now = describe(String::new(), meta);
    let tag = match file.version.strip_prefix("etag ") {
        Some(tag) if meta.e_tag.is_some() => meta.e_tag.as_deref() == Some(tag),
        _ => now.modified == file.modified,
    };
    now.size == file.size && tag
}
