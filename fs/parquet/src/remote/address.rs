//! Addresses of object storage, and how much of them may be shown.

use batchfs_store::Result;
use url::Url;

use crate::place::bad_file;

/// Reads an address such as `s3://bucket/folder`.
///
/// # Errors
/// What is wrong with it. A password or a signature that is in it is not shown.
pub(super) fn parse(source: &str) -> Result<Url> {
    let shown = showable(source);
    let invalid = |why: &str| Err(bad_file(shown.clone(), why));
    let url = match Url::parse(source) {
        Ok(url) => url,
        Err(_) if shown != source => return invalid(CREDENTIALS),
        Err(e) => {
            return invalid(&format!("is no address: {e}; write one as s3://bucket/folder"));
        }
    };
    let web = matches!(url.scheme(), "http" | "https");
    // Azure has containers before the @.
    let container = matches!(url.scheme(), "abfs" | "abfss") && url.password().is_none();
    if url.password().is_some() || (!url.username().is_empty() && !container) {
        return invalid(CREDENTIALS);
    }
    if url.query().is_some() || url.fragment().is_some() {
        return invalid(
            "has a part after ? or #, which no file or folder is named by; credentials go in the environment, and in a name these are written %3F and %23",
        );
    }
    if url.port().is_some() && !web {
        return invalid("has a port; a server of one's own is named by --storage-option endpoint=");
    }
    Ok(url)
}

const CREDENTIALS: &str = "has a user or a password in the address; put them in the environment";

/// The address without what may be a password or a signature, well-formed or not.
fn showable(source: &str) -> String {
    let (scheme, rest) = source.split_once("://").unwrap_or(("", source));
    let (rest, cut) = match rest.find(['?', '#']) {
        Some(at) => (&rest[..at], "?***"),
        None => (rest, ""),
    };
    // Keys of S3 may have a slash in them, and then what they are in is no user and no password.
    let host = rest.split('/').next().unwrap_or(rest);
    let rest = match rest.rsplit_once('@') {
        Some((before, after)) if before.contains(':') => format!("***@{after}"),
        Some((_, after)) if host.contains('@') && !scheme.starts_with("abfs") => {
            format!("***@{after}")
        }
        _ => rest.to_owned(),
    };
    format!("{scheme}://{rest}{cut}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn refused(source: &str, shown: &str, why: &str) {
        let said = parse(source).unwrap_err().to_string();
        assert!(said.starts_with(&format!("{shown}: ")), "{said}");
        assert!(said.contains(why), "{said}");
        assert!(!said.contains("SECRET"), "{said}");
    }

    #[test]
    fn what_may_be_secret_is_refused_and_not_shown() {
        let credentials = "has a user or a password";
        for source in [
            "s3://AKIAEXAMPLE:abcSECRET@bucket/data",
            "s3://AKIAEXAMPLE:abc/defSECRET@bucket/data",
            "s3://AKIAEXAMPLE:abc?d/e#fSECRET@bucket/data",
            "s3://userSECRET@bucket/data",
            "s3://:SECRET@bucket/data",
            "s3://a:b@cSECRET@bucket/data",
            "abfss://fs:SECRET@bucket/data",
        ] {
            let said = parse(source).unwrap_err().to_string();
            assert!(!said.contains("SECRET"), "{said}");
        }
        refused("s3://AKIA:abcSECRET@bucket/data", "s3://***@bucket/data", credentials);
        refused("s3://AKIA:abc/SECRET@bucket/data", "s3://***@bucket/data", credentials);
        refused("https://a:SECRET@host/data", "https://***@host/data", credentials);
        let signed = "https://host/x.parquet?X-Amz-Signature=SECRET";
        refused(signed, "https://host/x.parquet?***", "after ? or #");
        refused("nope://h/x?sig=SECRET", "nope://h/x?***", "after ? or #");
        refused("s3://b/x#SECRET", "s3://b/x?***", "after ? or #");
        refused("s3://bucket:8080/data", "s3://bucket:8080/data", "endpoint");
        refused("s3://a b/data", "s3://a b/data", "write one as s3://bucket/folder");
    }

    #[test]
    fn addresses_are_taken_as_they_are() {
        for source in [
            "s3://bucket/data",
            "s3://bucket/user@host/data",
            "s3://bucket/a%3Fb",
            "http://127.0.0.1:9000/data/x.parquet",
            "abfss://files@account.dfs.core.windows.net/data",
            "gs://bucket/data",
        ] {
            assert_eq!(parse(source).unwrap().as_str(), source);
        }
    }
}
