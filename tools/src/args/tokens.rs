//! Tokens in Parquet.

use std::fmt;
use std::path::PathBuf;

use batchfs_sampler::Spec;
use batchfs_sampler::lanes::{LaneSpec, Mix};
use bytesize::ByteSize;
use clap::Args as ClapArgs;

/// A spec, of whichever kind the data want.
#[derive(Clone, Debug)]
pub struct AnySpec(String);

impl AnySpec {
    /// As one of records.
    pub fn records(&self) -> anyhow::Result<Spec> {
        self.0.parse().map_err(|e| self.refused("records", "mode, batch", &e))
    }

    /// As one of tokens.
    pub fn tokens(&self) -> anyhow::Result<LaneSpec> {
        self.0.parse().map_err(|e| self.refused("tokens", "lanes, window, seq_len", &e))
    }

    fn refused(&self, of: &str, keys: &str, error: &batchfs_sampler::SpecError) -> anyhow::Error {
        anyhow::anyhow!("--spec {}: the source is one of {of} ({keys}): {error}", self.0)
    }
}

pub(super) fn any_spec(text: &str) -> Result<AnySpec, String> {
    const OF_TOKENS: [&str; 5] = ["lanes", "window", "seq_len", "pieces", "out"];
    let of_tokens = text
        .split(',')
        .any(|item| item.split_once('=').is_some_and(|(key, _)| OF_TOKENS.contains(&key)));
    let checked =
        if of_tokens { text.parse::<LaneSpec>().map(drop) } else { text.parse::<Spec>().map(drop) };
    checked.map(|()| AnySpec(text.to_owned())).map_err(|e| e.to_string())
}

/// Of Parquet sources: which column, and where from.
#[derive(ClapArgs)]
pub struct TokenSources {
    /// The column of tokens in Parquet files; dots lead into structs
    #[arg(long, default_value = "tokens", value_name = "NAME")]
    pub column: String,
    /// How to reach object storage, such as endpoint=http://host:9000; besides AWS_* and the like in
    /// the environment. Secrets belong there, since others can see a command line
    #[arg(long, value_name = "KEY=VALUE", value_parser = storage_option)]
    pub storage_option: Vec<(String, String)>,
    /// Mix several sources of tokens by these weights, such as web=0.7,code=0.3. SRC then says where
    /// each is: web=s3://bucket/web,code=/data/code
    #[arg(long, value_name = "NAME=WEIGHT,…", value_delimiter = ',')]
    pub mix: Vec<String>,
}

impl fmt::Debug for TokenSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Values of options may be secret.
        let keys: Vec<&str> = self.storage_option.iter().map(|(key, _)| key.as_str()).collect();
        let mut all = f.debug_struct("TokenSources");
        all.field("column", &self.column).field("mix", &self.mix);
        all.field("storage_option", &keys).finish()
    }
}

/// Of Parquet sources that are read: how much memory, too.
#[derive(Debug, ClapArgs)]
pub struct TokenArgs {
    #[command(flatten)]
    pub sources: TokenSources,
    /// Bytes that decoded row groups may take: 48 a document, and 2 a token where all are below 65,536,
    /// else 4. Left out, what the spec needs and a window more to read ahead; later epochs are fast
    /// if all of the data fits
    #[arg(long, value_name = "SIZE")]
    pub budget: Option<ByteSize>,
}

impl TokenSources {
    /// The mixture, if there is one.
    pub fn mix(&self) -> anyhow::Result<Option<Mix>> {
        if self.mix.is_empty() {
            return Ok(None);
        }
        let text = self.mix.join(",");
        text.parse().map(Some).map_err(|e| anyhow::anyhow!("--mix {text}: {e}"))
    }
}

/// Show what Parquet files hold: row groups, tokens, documents.
///
/// Reads the footers, and columns whose footers do not prove how many tokens there are; what was
/// found is kept for the next time.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs index fineweb
  batchfs index fineweb --column tokens --spec lanes=16,seq_len=512    and where epochs begin
  batchfs index web=fineweb,code=s3://bucket/stack --mix web=0.7,code=0.3")]
pub struct Index {
    /// A Parquet file, a folder of them, or an address such as s3://bucket/prefix
    pub source: PathBuf,
    #[command(flatten)]
    pub tokens: TokenSources,
    /// Show the lengths of epochs under this spec, too
    #[arg(long, value_parser = any_spec)]
    pub spec: Option<AnySpec>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Show which bytes of which Parquet files a step reads, without reading them.
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  batchfs plan fineweb --spec lanes=16,seq_len=512,rank=3,world=8 --step 1000")]
pub struct Plan {
    /// A Parquet file, a folder of them, or an address such as s3://bucket/prefix
    pub source: PathBuf,
    #[command(flatten)]
    pub tokens: TokenArgs,
    /// The order, see `batchfs mount --help`
    #[arg(long, value_parser = any_spec)]
    pub spec: Option<AnySpec>,
    /// The step, from 0 to 18446744073709551615
    #[arg(long)]
    pub step: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn storage_option(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_lowercase(), value.to_owned())),
        _ => Err("a storage option is KEY=VALUE, such as region=eu-west-1".to_owned()),
    }
}
