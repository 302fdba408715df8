//! Files in object storage.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use batchfs_store::{Error, Result};
use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientOptions, Error as StoreError, GetOptions, GetRange, ObjectMeta,
    ObjectStore, ObjectStoreExt as _, ObjectStoreScheme, RetryConfig,
};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use url::Url;

use crate::place::{CHANGED, File, Place, bad_file, has_suffix, is_data};

const CONNECT: Duration = Duration::from_secs(5);
/// A server that sends nothing for so long counts as stuck.
const SILENCE: Duration = Duration::from_secs(10);
/// How long a range may take, with all that was tried, beside what its bytes take at least.
const PATIENCE: Duration = Duration::from_secs(45);
/// Bytes a second that a slow connection has at least; one with fewer counts as stuck.
const PACE: u64 = 32 << 10;
/// A listing of very many keys takes its time.
const LISTING: Duration = Duration::from_secs(300);
/// How often a body that broke off is asked for again.
const ATTEMPTS: u32 = 4;
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
    store: Box<dyn ObjectStore>,
    prefix: Path,
    origin: String,
    /// What must not be shown to anybody.
    secrets: Vec<String>,
    received: AtomicU64,
    /// Bytes that came, of ranges that are not whole yet, too.
    came: AtomicU64,
    slots: Semaphore,
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
        let url = Url::parse(source).map_err(|e| invalid(format!("is no address: {e}")))?;
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
        let (scheme, path) = ObjectStoreScheme::parse(&url).map_err(|e| invalid(e.to_string()))?;
        let store: Box<dyn ObjectStore> = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                Box::new(s3(&url, options, &settings).map_err(&invalid)?)
            }
            other => {
                let settings = defaults(&other, &url).chain(settings.clone());
                object_store::parse_url_opts(&url, settings).map_err(|e| invalid(e.to_string()))?.0
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("fetch")
            .enable_all()
            .build()
            .map_err(Error::io(source, "cannot start threads to reach it"))?;
        let inner = Arc::new(Inner {
            store,
            prefix: path,
            origin: source.trim_end_matches('/').to_owned(),
            secrets,
            received: AtomicU64::new(0),
            came: AtomicU64::new(0),
            slots: Semaphore::new(PARALLEL),
        });
        Ok(Remote { inner, runtime, ahead: Mutex::default() })
    }
}

/// What the environment and then the options say.
fn settings(options: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let ours = ["AWS_", "GOOGLE_", "AZURE_"];
    let environment = std::env::vars_os().filter_map(|(key, value)| {
        let (key, value) = (key.into_string().ok()?, value.into_string().ok()?);
        let wanted = ours.iter().any(|prefix| key.starts_with(prefix)) && !value.is_empty();
        wanted.then(|| (key.to_lowercase(), value))
    });
    let options = options.iter().map(|(key, value)| (key.to_lowercase(), value.clone()));
    environment.chain(options).collect()
}

/// What holds for other stores than S3 if nobody says otherwise.
fn defaults(scheme: &ObjectStoreScheme, url: &Url) -> impl Iterator<Item = (String, String)> {
    let seconds = |limit: Duration| format!("{} s", limit.as_secs());
    let mut all = vec![
        ("connect_timeout", seconds(CONNECT)),
        ("read_timeout", seconds(SILENCE)),
        // Of a whole answer, however large: that is for `PATIENCE` to say.
        ("timeout", seconds(LISTING)),
    ];
    if *scheme == ObjectStoreScheme::Http && url.scheme() == "http" {
        all.push(("allow_http", "true".to_owned()));
    }
    all.into_iter().map(|(key, value)| (key.to_owned(), value))
}

fn s3(
    url: &Url,
    options: &BTreeMap<String, String>,
    settings: &[(String, String)],
) -> Result<object_store::aws::AmazonS3, String> {
    for key in options.keys() {
        if key.parse::<AmazonS3ConfigKey>().is_err() && key != "allow_http" {
            return Err(format!(
                "there is no storage option {key:?}; those of S3 are endpoint, region, access_key_id, secret_access_key, session_token, skip_signature, virtual_hosted_style_request and others"
            ));
        }
    }
    let client = ClientOptions::new()
        .with_connect_timeout(CONNECT)
        .with_read_timeout(SILENCE)
        .with_timeout_disabled();
    // First, so that settings of the client come before these.
    let mut builder = AmazonS3Builder::new().with_url(url.to_string()).with_client_options(client);
    let mut named = false;
    let set = |name: &str| settings.iter().any(|(key, _)| key.trim_start_matches("aws_") == name);
    for (key, value) in settings {
        // A plain address was asked for, and nobody else is to decide about that.
        if key.contains("endpoint") && value.starts_with("http://") {
            builder = builder.with_allow_http(true);
        }
        if let Ok(key) = key.parse::<AmazonS3ConfigKey>() {
            named |= matches!(
                key,
                AmazonS3ConfigKey::AccessKeyId
                    | AmazonS3ConfigKey::SkipSignature
                    | AmazonS3ConfigKey::WebIdentityTokenFile
                    | AmazonS3ConfigKey::ContainerCredentialsRelativeUri
                    | AmazonS3ConfigKey::ContainerCredentialsFullUri
                    | AmazonS3ConfigKey::MetadataEndpoint
            );
            builder = builder.with_config(key, value);
        }
    }
    if !named && set("profile") {
        return Err("AWS_PROFILE is set, and profiles are not read; put AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment, for example by `eval $(aws configure export-credentials --format env)`".to_owned());
    }
    if set("container_credentials_full_uri") && !set("container_authorization_token_file") {
        return Err("AWS_CONTAINER_CREDENTIALS_FULL_URI is set, and is read only together with AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE; set that, too, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY".to_owned());
    }
    if !named && set("ec2_metadata_disabled") {
        return Err(NO_CREDENTIALS.to_owned());
    }
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(4),
            base: 2.0,
        },
        max_retries: if named { 8 } else { 1 },
        retry_timeout: Duration::from_secs(if named { 20 } else { 5 }),
    };
    builder.with_retry(retry).build().map_err(|e| e.to_string())
}

const NO_CREDENTIALS: &str = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or for a public bucket --storage-option skip_signature=true";

impl Inner {
    fn name(&self, key: &str) -> String {
        if key.is_empty() { self.origin.clone() } else { format!("{}/{key}", self.origin) }
    }

    fn path(&self, key: &str) -> Result<Path, StoreError> {
        if key.is_empty() {
            return Ok(self.prefix.clone());
        }
        let full = format!("{}/{key}", self.prefix);
        Ok(Path::parse(full)?)
    }

    /// The error as ours. Nothing secret is in it.
    fn failed(&self, key: &str, action: &'static str, error: &StoreError) -> Error {
        let mut why = error.to_string();
        let mut cause = std::error::Error::source(error);
        while let Some(next) = cause {
            let said = next.to_string();
            if !why.contains(&said) {
                why = format!("{why}: {said}");
            }
            cause = next.source();
        }
        // What a server says can have a token in it that is not among the settings.
        why = in_words(&why);
        for secret in &self.secrets {
            why = why.replace(secret, "***");
        }
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        let kind = match error {
            StoreError::NotFound { .. } => io::ErrorKind::NotFound,
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => {
                io::ErrorKind::PermissionDenied
            }
            StoreError::Precondition { .. } => return bad_file(self.name(key), CHANGED),
            // The address of a cloud machine's own credentials, which is asked last.
            _ if why.contains("//169.254.169.254/") => {
                return Error::Io {
                    path: self.name(key).into(),
                    action,
                    source: io::Error::new(io::ErrorKind::PermissionDenied, NO_CREDENTIALS),
                };
            }
            // An answer came, though not the one that was wanted, and how long it was tried is said, too.
            _ if why.replace("retry_timeout", "").contains("imeout")
                || why.contains("imed out") =>
            {
                io::ErrorKind::TimedOut
            }
            _ => io::ErrorKind::Other,
        };
        Error::Io { path: self.name(key).into(), action, source: io::Error::new(kind, why) }
    }

    fn late(&self, key: &str, action: &'static str, limit: Duration) -> Error {
        let why = format!("no answer within {} seconds", limit.as_secs());
        let source = io::Error::new(io::ErrorKind::TimedOut, why);
        Error::Io { path: self.name(key).into(), action, source }
    }

    async fn list(&self) -> Result<Vec<File>> {
        let failed = |error: StoreError| self.failed("", "cannot list", &error);
        let mut files = Vec::new();
        // What looks like a file can be one.
        if has_suffix(self.prefix.as_ref()) {
            match self.store.head(&self.prefix).await {
                Ok(meta) => return Ok(vec![describe(String::new(), &meta)]),
                Err(StoreError::NotFound { .. }) => {}
                Err(error) => return Err(failed(error)),
            }
        }
        let mut found = self.store.list(Some(&self.prefix));
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

    /// Reads a range, again if its body breaks off.
    async fn read(&self, file: &File, range: Range<u64>) -> Result<Bytes> {
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
            since.store(all(), Ordering::Relaxed);
            let mut attempt = 0;
            loop {
                match self.read_once(file, range.clone(), &own).await {
                    Ok(bytes) => {
                        self.received.fetch_add(bytes.len() as u64, Ordering::Relaxed);
                        return Ok(bytes);
                    }
                    Err(Try::Final(error)) => return Err(error),
                    Err(Try::Again(error)) if attempt + 1 >= ATTEMPTS => return Err(error),
                    Err(Try::Again(error)) => {
                        tracing::debug!("{error}; asking again");
                        // Different readers wait for different times.
                        let jitter = range.start.wrapping_mul(0x9e37_79b9) % 100;
                        let wait = (100 + jitter) << attempt;
                        tokio::time::sleep(Duration::from_millis(wait)).await;
                        attempt += 1;
                    }
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
        let failed = |error: StoreError| self.failed(&file.key, "cannot read", &error);
        let path = self.path(&file.key).map_err(|e| Try::Final(failed(e)))?;
        let pinned = file.version.strip_prefix("etag ").map(str::to_owned);
        let options = GetOptions {
            range: Some(GetRange::Bounded(range.clone())),
            if_match: pinned,
            ..GetOptions::default()
        };
        let got = self.store.get_opts(&path, options).await.map_err(|e| Try::Final(failed(e)))?;
        // Not every server heeds the condition.
        if !is_same(file, &got.meta) {
            return Err(Try::Final(bad_file(self.name(&file.key), CHANGED)));
        }
        let wanted = range.end - range.start;
        let mut body = got.into_stream();
        // A server can say anything; what it says is believed up to some size.
        let mut bytes = Vec::with_capacity(usize::try_from(wanted.min(AHEAD)).unwrap_or(0));
        while let Some(part) = body.try_next().await.map_err(|e| Try::Again(failed(e)))? {
            self.came.fetch_add(part.len() as u64, Ordering::Relaxed);
            own.fetch_add(part.len() as u64, Ordering::Relaxed);
            bytes.extend_from_slice(&part);
        }
        if bytes.len() as u64 != wanted {
            let why = format!("{} bytes came instead of {wanted}", bytes.len());
            let source = io::Error::new(io::ErrorKind::UnexpectedEof, why);
            let path = self.name(&file.key).into();
            return Err(Try::Again(Error::Io { path, action: "cannot read", source }));
        }
        Ok(bytes.into())
    }
}

/// The code and the message of each answer of a server in `text`, instead of its XML.
fn in_words(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(begin) = ["<?xml", "<Error"].iter().filter_map(|tag| rest.find(tag)).min() {
        let (before, body) = rest.split_at(begin);
        let end = ["</ErrorResponse>", "</Error>"].iter().find_map(|tag| {
            let at = body.find(tag)?;
            Some(at + tag.len())
        });
        let (body, after) = body.split_at(end.unwrap_or(body.len()));
        let part = |name: &str| {
            let (_, inner) = body.split_once(&format!("<{name}>"))?;
            Some(inner.split_once('<')?.0.trim())
        };
        let parts = [part("Code"), part("Message")];
        let parts: Vec<&str> =
            parts.into_iter().flatten().filter(|part| !part.is_empty()).collect();
        out.push_str(before);
        out.push_str(&parts.join(", "));
        rest = after;
    }
    out.push_str(rest);
    out
}

/// Waits for `work` as long as `patience`, and a second more for each [`PACE`] bytes of those that
/// `came` meanwhile. `None` if that was not enough.
async fn within<T>(
    patience: Duration,
    came: impl Fn() -> u64,
    work: impl Future<Output = T>,
) -> Option<T> {
    let begin = tokio::time::Instant::now();
    let mut work = std::pin::pin!(work);
    loop {
        let end = begin + patience + Duration::from_millis(came().saturating_mul(1000) / PACE);
        if let Ok(done) = tokio::time::timeout_at(end, &mut work).await {
            return Some(done);
        }
        if end >= begin + patience + Duration::from_millis(came().saturating_mul(1000) / PACE) {
            return None;
        }
    }
}

enum Try {
    Again(Error),
    Final(Error),
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
fn is_same(file: &File, meta: &ObjectMeta) -> bool {
    let now = describe(String::new(), meta);
    let tag = match file.version.strip_prefix("etag ") {
        Some(tag) if meta.e_tag.is_some() => meta.e_tag.as_deref() == Some(tag),
        _ => now.modified == file.modified,
    };
    now.size == file.size && tag
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

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(30);

    #[test]
    fn what_is_slow_is_waited_for_and_what_is_stuck_is_not() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        // Each time some bytes come, until all is there, which takes longer than anybody's patience.
        let trickle = |each: u64, times: u64| {
            let came = AtomicU64::new(0);
            let work = async {
                for _ in 0..times {
                    tokio::time::sleep(SHORT / 3).await;
                    came.fetch_add(each, Ordering::Relaxed);
                }
                came.load(Ordering::Relaxed)
            };
            runtime.block_on(async { within(SHORT, || came.load(Ordering::Relaxed), work).await })
        };
        assert_eq!(trickle(1000 * PACE, 20), Some(20_000 * PACE));
        assert_eq!(trickle(0, 1_000_000), None);
        assert_eq!(trickle(1, 1_000_000), None);
    }

    #[test]
    fn answers_are_told_without_what_else_is_in_them() {
        let xml = "<?xml version=\"1.0\"?>\n<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message><Token-0>FwoGZXIvYXdzEJr</Token-0></Error>";
        let said = in_words(&format!("after 2 tries: 400 Bad Request: {xml}: 400: {xml}"));
        let told = "ExpiredToken, The provided token has expired.";
        assert_eq!(said, format!("after 2 tries: 400 Bad Request: {told}: 400: {told}"));
        let sts = "403: <ErrorResponse xmlns=\"x\"><Error><Type>Sender</Type><Code>InvalidIdentityToken</Code></Error><RequestId>1</RequestId></ErrorResponse> end";
        assert_eq!(in_words(sts), "403: InvalidIdentityToken end");
        assert_eq!(in_words("503: <Error></Error>"), "503: ");
        assert_eq!(in_words("403: <Error><Code>Cut</Code><Token-0>abc"), "403: Cut");
        assert_eq!(in_words("operation timed out"), "operation timed out");
    }

    #[test]
    fn settings_of_the_client_are_those_that_were_given() {
        let url = Url::parse("s3://bucket/data").unwrap();
        let own = BTreeMap::from([("user_agent".to_owned(), "mine".to_owned())]);
        let own_settings: Vec<(String, String)> = [
            ("access_key_id", "a"),
            ("secret_access_key", "b"),
            ("user_agent", "mine"),
            ("read_timeout", "77 s"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        let shown = format!("{:?}", s3(&url, &own, &own_settings).unwrap());
        assert!(shown.contains("mine") && shown.contains("77"), "{shown}");
    }
}
