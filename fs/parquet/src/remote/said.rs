//! What a store says, as an error of ours that has nothing secret in it.

use std::io;
use std::time::Duration;

use batchfs_store::Error;
use object_store::Error as StoreError;
use object_store::path::Path;

use super::Inner;
use super::client::NO_CREDENTIALS;
use crate::place::{CHANGED, GONE, bad_file};

/// What to do about a server whose answers are not what was asked for.
pub(super) const BROKEN_SERVER: &str = "the server, or a proxy before it, does not give ranges as it should; use another endpoint, or copy the files here";
const SLOW_SERVER: &str = "check the endpoint, its region and the network, and try again";

impl Inner {
    pub(super) fn name(&self, key: &str) -> String {
        if key.is_empty() { self.origin.clone() } else { format!("{}/{key}", self.origin) }
    }

    pub(super) fn path(&self, key: &str) -> Result<Path, StoreError> {
        if key.is_empty() {
            return Ok(self.prefix.clone());
        }
        let full = format!("{}/{key}", self.prefix);
        Ok(Path::parse(full)?)
    }

    /// The error as ours. Nothing secret is in it.
    pub(super) fn failed(&self, key: &str, action: &'static str, error: &StoreError) -> Error {
        // What a server says can have a token in it that is not among the settings.
        let mut why = in_words(&in_full(error));
        for secret in &self.secrets {
            why = why.replace(secret, "***");
        }
        let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
        let (kind, way_out) = match error {
            _ if says_expired(error) => (
                io::ErrorKind::PermissionDenied,
                "give credentials that are valid, or such as are fetched anew: AWS_WEB_IDENTITY_TOKEN_FILE, AWS_CONTAINER_CREDENTIALS_FULL_URI, or the instance's",
            ),
            StoreError::NotFound { .. } if key.is_empty() => {
                (io::ErrorKind::NotFound, "check the address")
            }
            StoreError::NotFound { .. } => (io::ErrorKind::NotFound, GONE),
            StoreError::PermissionDenied { .. } | StoreError::Unauthenticated { .. } => (
                io::ErrorKind::PermissionDenied,
                "check the credentials, and whether these may list and read it",
            ),
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
                (io::ErrorKind::TimedOut, SLOW_SERVER)
            }
            _ if is_no_range(error, &why) => (io::ErrorKind::InvalidData, BROKEN_SERVER),
            _ => (io::ErrorKind::Other, SLOW_SERVER),
        };
        let why = format!("{why}; {way_out}");
        Error::Io { path: self.name(key).into(), action, source: io::Error::new(kind, why) }
    }

    pub(super) fn late(&self, key: &str, action: &'static str, limit: Duration) -> Error {
        let why = format!("no answer within {} seconds; {SLOW_SERVER}", limit.as_secs());
        let source = io::Error::new(io::ErrorKind::TimedOut, why);
        Error::Io { path: self.name(key).into(), action, source }
    }
}

/// The error with all that caused it.
fn in_full(error: &StoreError) -> String {
    let mut why = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(next) = cause {
        let said = next.to_string();
        if !why.contains(&said) {
            why = format!("{why}: {said}");
        }
        cause = next.source();
    }
    why
}

/// Whether other credentials may help.
pub(super) fn has_expired(error: &StoreError) -> bool {
    matches!(error, StoreError::Unauthenticated { .. }) || says_expired(error)
}

fn says_expired(error: &StoreError) -> bool {
    let said = in_full(error);
    ["<Code>ExpiredToken", "<Code>TokenRefreshRequired"].iter().any(|code| said.contains(code))
}

/// Whether asking again is of no use: the client did so before, or the answer is a plain no.
pub(super) fn is_settled(error: &StoreError) -> bool {
    match error {
        // So begins what the client says of a request that it made as often as it may.
        StoreError::Generic { .. } => in_full(error).contains("Error performing "),
        _ => true,
    }
}

/// Whether an answer came that is not the range that was asked for.
fn is_no_range(error: &StoreError, why: &str) -> bool {
    let said = ["non-partial", "Content-Range", "Content-Length", "Requested "];
    !is_settled(error) && said.iter().any(|part| why.contains(part))
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

#[cfg(test)]
mod tests {
    use super::*;

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
}
