//! The client of an object store, by what the environment and the options say.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::AzureConfigKey;
use object_store::gcp::GoogleConfigKey;
use object_store::path::Path;
use object_store::{
    BackoffConfig, ClientConfigKey, ClientOptions, ObjectStore, ObjectStoreScheme, RetryConfig,
    parse_url_opts,
};
use url::Url;

use super::LISTING;
use super::retry::Jitter;

const CONNECT: Duration = Duration::from_secs(5);
/// A server that sends nothing for so long counts as stuck.
const SILENCE: Duration = Duration::from_secs(10);

type Store = Arc<dyn ObjectStore>;

/// A client, which keeps its credentials as long as they say that they are valid. One that is made anew
/// fetches others.
pub(super) struct Client {
    make: Box<dyn Fn() -> Result<Store, String> + Send + Sync>,
    /// Others can be had than those that are there.
    renewable: bool,
    /// How many there were before, and the one of now.
    now: Mutex<(u64, Store)>,
}

impl Client {
    /// The client for `url`, and the path in there that is meant.
    ///
    /// # Errors
    /// What is wrong, in words.
    pub(super) fn new(
        url: &Url,
        options: &BTreeMap<String, String>,
        settings: Vec<(String, String)>,
    ) -> Result<(Client, Path), String> {
        let (scheme, path) = ObjectStoreScheme::parse(url)
            .map_err(|_| "is in no storage that is known here: there are s3, gs, az, abfs, abfss, http and https")?;
        for key in options.keys() {
            is_option(&scheme, key)?;
        }
        let keys = |(key, _): &(String, String)| key.trim_start_matches("aws_") == "access_key_id";
        let renewable = !settings.iter().any(keys);
        let make: Box<dyn Fn() -> Result<Store, String> + Send + Sync> = match scheme {
            ObjectStoreScheme::AmazonS3 => {
                let builder = s3(url, &settings)?;
                Box::new(move || match builder.clone().build() {
                    Ok(store) => Ok(Arc::new(store)),
                    Err(e) => Err(e.to_string()),
                })
            }
            other => {
                let url = url.clone();
                let settings: Vec<_> = defaults(&other, &url).chain(settings).collect();
                Box::new(move || match parse_url_opts(&url, settings.clone()) {
                    Ok((store, _)) => Ok(Arc::from(store)),
                    Err(e) => Err(e.to_string()),
                })
            }
        };
        let now = Mutex::new((0, make()?));
        Ok((Client { make, renewable, now }, path))
    }

    /// The client, and its number.
    pub(super) fn now(&self) -> (u64, Store) {
        self.now.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Has the client make room for one with other credentials if it still is the one of this number; says
    /// whether there is another one now.
    pub(super) fn renew(&self, number: u64) -> bool {
        let mut now = self.now.lock().unwrap_or_else(PoisonError::into_inner);
        if now.0 == number && self.renewable {
            match (self.make)() {
                Ok(store) => *now = (number + 1, store),
                Err(error) => tracing::warn!("cannot fetch credentials anew: {error}"),
            }
        }
        now.0 != number
    }
}

/// What the environment and then the options say. All keys are in lower case.
pub(super) fn settings(options: &BTreeMap<String, String>) -> Vec<(String, String)> {
    let ours = ["AWS_", "GOOGLE_", "AZURE_"];
    let environment = std::env::vars_os().filter_map(|(key, value)| {
        let (key, value) = (key.into_string().ok()?, value.into_string().ok()?);
        let wanted = ours.iter().any(|prefix| key.starts_with(prefix)) && !value.is_empty();
        wanted.then(|| (key.to_lowercase(), value))
    });
    environment.chain(options.clone()).collect()
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

/// Whether a store of this kind has such an option.
fn is_option(scheme: &ObjectStoreScheme, key: &str) -> Result<(), String> {
    let (known, of, some) = match scheme {
        ObjectStoreScheme::AmazonS3 => (
            key.parse::<AmazonS3ConfigKey>().is_ok(),
            "S3",
            "endpoint, region, access_key_id, secret_access_key, session_token, skip_signature, virtual_hosted_style_request",
        ),
        ObjectStoreScheme::GoogleCloudStorage => (
            key.parse::<GoogleConfigKey>().is_ok(),
            "Google's storage",
            "service_account, service_account_key, application_credentials, skip_signature",
        ),
        ObjectStoreScheme::MicrosoftAzure => (
            key.parse::<AzureConfigKey>().is_ok(),
            "Azure's storage",
            "account_name, access_key, sas_token, client_id, client_secret, tenant_id, skip_signature",
        ),
        _ => (false, "plain web servers", "allow_invalid_certificates, proxy_url, user_agent"),
    };
    // Each kind has those of its connections, too.
    if known || key.parse::<ClientConfigKey>().is_ok() {
        return Ok(());
    }
    Err(format!("there is no storage option {key:?}; those of {of} are {some} and others"))
}

fn s3(url: &Url, settings: &[(String, String)]) -> Result<AmazonS3Builder, String> {
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
    if set("web_identity_token_file") && !set("role_arn") && !set("access_key_id") {
        return Err("AWS_WEB_IDENTITY_TOKEN_FILE is set, and is read only together with AWS_ROLE_ARN; set that, too, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY".to_owned());
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
            // The first pause is just this, and is to be of each process, too.
            init_backoff: Jitter::default().pause(0),
            max_backoff: Duration::from_secs(4),
            base: 2.0,
        },
        max_retries: if named { 8 } else { 1 },
        retry_timeout: Duration::from_secs(if named { 20 } else { 5 }),
    };
    Ok(builder.with_retry(retry))
}

pub(super) const NO_CREDENTIALS: &str = "no credentials: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (and AWS_SESSION_TOKEN), or for a public bucket --storage-option skip_signature=true";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_a_store_does_not_have_are_refused() {
        let refusal = |url: &str, key: &str| {
            let options = BTreeMap::from([(key.to_owned(), "x".to_owned())]);
            Client::new(&Url::parse(url).unwrap(), &options, Vec::new()).err()
        };
        for (url, known) in [
            ("s3://bucket/data", "region"),
            ("gs://bucket/data", "service_account"),
            ("az://container/data", "sas_token"),
            ("https://host/data", "user_agent"),
        ] {
            let said = refusal(url, "retion").unwrap();
            assert!(said.starts_with("there is no storage option \"retion\""), "{said}");
            assert!(said.contains("and others"), "{said}");
            let said = refusal(url, known);
            assert!(said.as_ref().is_none_or(|s| !s.contains("no storage option")), "{said:?}");
        }
        let said = refusal("https://host/data", "region").unwrap();
        assert!(said.contains("those of plain web servers are"), "{said}");
        let said = refusal("nope://host/data", "region").unwrap();
        assert!(said.starts_with("is in no storage that is known here"), "{said}");
    }

    #[test]
    fn settings_of_the_client_are_those_that_were_given() {
        let url = Url::parse("s3://bucket/data").unwrap();
        let own_settings: Vec<(String, String)> = [
            ("access_key_id", "a"),
            ("secret_access_key", "b"),
            ("user_agent", "mine"),
            ("read_timeout", "77 s"),
        ]
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
        let shown = format!("{:?}", s3(&url, &own_settings).unwrap().build().unwrap());
        assert!(shown.contains("mine") && shown.contains("77"), "{shown}");
    }
}
