//! `batchfs.json`, `seal` and the names of a store's files. The format is told in docs/format.md.

use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::geometry::Geometry;
use crate::{Codec, DType, Error, Layout, Result, Schema, hash};

pub(crate) const HEADER: &str = "batchfs.json";
pub(crate) const INDEX: &str = "index.bin";
pub(crate) const SEAL: &str = "seal";

const FORMAT: &str = "batchfs-store";
const VERSION: u64 = 1;
/// No header of ours comes near to this; what is larger is not one.
const MAX_HEADER: u64 = 1 << 20;
pub(crate) const MAX_RECORD: u64 = 2 << 30;
pub(crate) const MAX_SHARDS: u32 = 255;

pub(crate) fn shard_name(shard: u32) -> String {
    format!("data-{shard:03}.npy")
}

/// What `batchfs.json` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) schema: Schema,
    pub(crate) codec: Codec,
    pub(crate) geometry: Geometry,
    pub(crate) created: SystemTime,
    pub(crate) writer: String,
}

/// The fields as they stand in the file, in this order. A field that is not known is refused: it
/// may change what the others mean.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    format: String,
    version: u64,
    dtype: String,
    layout: String,
    item_shape: Vec<u64>,
    codec: String,
    records: u64,
    shards: u32,
    stripe: u64,
    checksum: String,
    created: String,
    writer: String,
}

/// The part that every version has.
#[derive(Deserialize)]
struct Preamble {
    format: String,
    version: u64,
}

impl Header {
    pub(crate) fn to_json(&self) -> Vec<u8> {
        let Layout::Dense { item_shape } = &self.schema.layout;
        let fields = Fields {
            format: FORMAT.into(),
            version: VERSION,
            dtype: self.schema.dtype.name().into(),
            layout: "dense".into(),
            item_shape: item_shape.clone(),
            codec: self.codec.name().into(),
            records: self.geometry.records,
            shards: self.geometry.shards,
            stripe: 1 << self.geometry.stripe_log2,
            checksum: hash::NAME.into(),
            created: humantime::format_rfc3339_seconds(self.created).to_string(),
            writer: self.writer.clone(),
        };
        // Strings and numbers always serialise; should that change, the empty header is refused
        // by every reader.
        let mut json = serde_json::to_vec_pretty(&fields).unwrap_or_default();
        json.push(b'\n');
        json
    }

    /// Refuses what is no store, or one of another version.
    pub(crate) fn check_version(path: &Path, json: &[u8]) -> Result<()> {
        let Preamble { format, version } = serde_json::from_slice(json)
            .map_err(|e| bad(path, format!("is not a store's header: {e}")))?;
        if format != FORMAT {
            return Err(bad(path, format!("is of format {format:?}, not {FORMAT:?}")));
        }
        if version != VERSION {
            return Err(Error::UnknownVersion { path: path.into(), found: version, known: "1" });
        }
        Ok(())
    }

    pub(crate) fn parse(path: &Path, json: &[u8]) -> Result<Self> {
        let f: Fields = serde_json::from_slice(json)
            .map_err(|e| bad(path, format!("cannot be understood: {e}")))?;
        let unknown = |what: &str, found: &str, known: &str| {
            let why = format!(
                "{what} {found:?} is not known to this batchfs, which reads {known}; a newer one wrote it"
            );
            bad(path, why)
        };
        let dtype: DType = f.dtype.parse().map_err(|e| bad(path, format!("{e}")))?;
        if f.layout != "dense" {
            return Err(unknown("layout", &f.layout, "dense"));
        }
        let codec = Codec::ALL
            .iter()
            .copied()
            .find(|c| c.name() == f.codec)
            .ok_or_else(|| unknown("codec", &f.codec, &Codec::names()))?;
        if f.checksum != hash::NAME {
            return Err(unknown("checksum", &f.checksum, hash::NAME));
        }
        if !f.stripe.is_power_of_two() {
            return Err(bad(path, format!("stripe {} is not a power of two", f.stripe)));
        }
        let created = humantime::parse_rfc3339(&f.created)
            .map_err(|e| bad(path, format!("created {:?}: {e}", f.created)))?;
        let header = Header {
            schema: Schema::dense(dtype, f.item_shape),
            codec,
            geometry: Geometry {
                records: f.records,
                shards: f.shards,
                stripe_log2: f.stripe.trailing_zeros(),
            },
            created,
            writer: f.writer,
        };
        header.check_sizes().map_err(|why| bad(path, why))?;
        Ok(header)
    }

    /// What a store can be: checked before one is made and when one is read.
    pub(crate) fn check_sizes(&self) -> Result<(), String> {
        let Layout::Dense { item_shape } = &self.schema.layout;
        let item = self.schema.item_bytes();
        match item {
            Some(0) => {
                return Err(format!(
                    "records of shape {item_shape:?} have no bytes; a store needs at least one element per record"
                ));
            }
            Some(1..=MAX_RECORD) => {}
            _ => {
                return Err(format!(
                    "records of {} {item_shape:?} are larger than 2 GiB",
                    self.schema.dtype
                ));
            }
        }
        if !(1..=MAX_SHARDS).contains(&self.geometry.shards) {
            return Err(format!("{} shards are not within 1..=255", self.geometry.shards));
        }
        // A shard's stripes and file length must fit i64, the kernel's file offsets.
        let stripe = 1u64.checked_shl(self.geometry.stripe_log2).unwrap_or(0);
        let round = stripe.checked_mul(u64::from(self.geometry.shards));
        let payload = self.geometry.records.checked_mul(item.unwrap_or(0));
        match (round, payload) {
            (Some(1..), Some(n)) if n <= i64::MAX as u64 / 2 => Ok(()),
            _ => Err(format!("{} records do not fit a store", self.geometry.records)),
        }
    }

    /// The exact beginning of a shard's file; the payload follows. One page, unless a shape of
    /// hundreds of axes needs more.
    pub(crate) fn npy(&self, shard: u32) -> Vec<u8> {
        let Layout::Dense { item_shape } = &self.schema.layout;
        let mut shape = vec![self.geometry.rows(shard)];
        shape.extend_from_slice(item_shape);
        crate::npy::shard_header(self.schema.dtype, &shape, 4096)
    }
}

/// The exact text of `seal`.
pub(crate) fn seal(json: &[u8], block_sums: &[u64]) -> String {
    let mut all = Vec::with_capacity(8 + json.len() + 8 * block_sums.len());
    all.extend_from_slice(&(json.len() as u64).to_le_bytes());
    all.extend_from_slice(json);
    all.extend(block_sums.iter().flat_map(|sum| sum.to_le_bytes()));
    format!("{} {:016x}\n", hash::NAME, hash::of(&all))
}

/// The bytes of `batchfs.json` or `seal`.
pub(crate) fn read_small(path: &Path) -> Result<Vec<u8>> {
    let meta = path.metadata().map_err(Error::io(path, "cannot open"))?;
    if !meta.is_file() || meta.len() > MAX_HEADER {
        return Err(bad(path, "is not what a store has under this name".into()));
    }
    std::fs::read(path).map_err(Error::io(path, "cannot read"))
}

pub(crate) fn bad(path: &Path, why: String) -> Error {
    Error::BadStore { path: path.into(), why }
}
