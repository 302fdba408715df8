//! `batchfs.json`, `seal` and the names of a store's files. The format is told in docs/format.md.

use std::io::Read as _;
use std::path::Path;
use std::time::SystemTime;

use serde::{Deserialize, Serialize};

use crate::geometry::Geometry;
use crate::guarded::open_regular;
use crate::index::Form;
use crate::{Codec, DType, Error, Layout, Result, Schema, compress, hash};

pub(crate) const HEADER: &str = "batchfs.json";
pub(crate) const INDEX: &str = "index.bin";
pub(crate) const SEAL: &str = "seal";
pub(crate) const DICTIONARY: &str = "dictionary.bin";

const FORMAT: &str = "batchfs-store";
const VERSION: u64 = 1;
/// No header of ours comes near to this; what is larger is not one.
const MAX_HEADER: u64 = 1 << 20;
pub(crate) const MAX_RECORD: u64 = 2 << 30;
pub(crate) const MAX_SHARDS: u32 = 255;
/// Bytes of all records at most.
const MAX_PAYLOAD: u64 = i64::MAX as u64 / 2;
/// Bytes of an index entry that tells a record's place, without its shape.
pub(crate) const PLACE: usize = 20;

/// What `batchfs.json` says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) schema: Schema,
    pub(crate) codec: Codec,
    pub(crate) geometry: Geometry,
    pub(crate) created: SystemTime,
    pub(crate) writer: String,
    /// What stores have whose records differ in size on disk; dense raw ones do not.
    pub(crate) packed: Option<Packing>,
}

/// What the header says of records that differ in size on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Packing {
    /// The compression level, of codecs that have one.
    pub(crate) level: Option<i32>,
    pub(crate) dictionary: Option<Dictionary>,
    /// Bytes of all records, decompressed.
    pub(crate) raw_bytes: u64,
    /// Exact length of each shard's file.
    pub(crate) shard_bytes: Vec<u64>,
}

/// Length and checksum of a store's dictionary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Dictionary {
    pub(crate) bytes: u64,
    pub(crate) sum: u64,
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
    #[serde(skip_serializing_if = "Option::is_none")]
    item_shape: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ndim: Option<u32>,
    codec: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dictionary_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dictionary_xxh3_64: Option<String>,
    records: u64,
    shards: u32,
    stripe: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    shard_bytes: Option<Vec<u64>>,
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
        let (layout, item_shape, ndim) = match &self.schema.layout {
            Layout::Dense { item_shape } => ("dense", Some(item_shape.clone()), None),
            Layout::Ragged { ndim } => ("ragged", None, Some(*ndim)),
        };
        let packed = self.packed.as_ref();
        let dictionary = packed.and_then(|p| p.dictionary);
        let fields = Fields {
            format: FORMAT.into(),
            version: VERSION,
            dtype: self.schema.dtype.name().into(),
            layout: layout.into(),
            item_shape,
            ndim,
            codec: self.codec.name().into(),
            level: packed.and_then(|p| p.level),
            dictionary_bytes: dictionary.map(|d| d.bytes),
            dictionary_xxh3_64: dictionary.map(|d| hex(d.sum)),
            records: self.geometry.records,
            shards: self.geometry.shards,
            stripe: 1 << self.geometry.stripe_log2,
            raw_bytes: packed.map(|p| p.raw_bytes),
            shard_bytes: packed.map(|p| p.shard_bytes.clone()),
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
        let layout = match (f.layout.as_str(), &f.item_shape, f.ndim) {
            ("dense", Some(item_shape), None) => Layout::Dense { item_shape: item_shape.clone() },
            ("ragged", None, Some(ndim)) => Layout::Ragged { ndim },
            ("dense", ..) => {
                return Err(bad(path, "dense records have item_shape, not ndim".into()));
            }
            ("ragged", ..) => {
                return Err(bad(path, "ragged records have ndim, not item_shape".into()));
            }
            (other, ..) => return Err(unknown("layout", other, "dense, ragged")),
        };
        let codec: Codec =
            f.codec.parse().map_err(|_| unknown("codec", &f.codec, &Codec::names()))?;
        if f.checksum != hash::NAME {
            return Err(unknown("checksum", &f.checksum, hash::NAME));
        }
        if !f.stripe.is_power_of_two() {
            return Err(bad(path, format!("stripe {} is not a power of two", f.stripe)));
        }
        let created = humantime::parse_rfc3339(&f.created)
            .map_err(|e| bad(path, format!("created {:?}: {e}", f.created)))?;
        let schema = Schema { dtype, layout };
        let packed = packing(&f, &schema, codec).map_err(|why| bad(path, why))?;
        let header = Header {
            schema,
            codec,
            geometry: Geometry {
                records: f.records,
                shards: f.shards,
                stripe_log2: f.stripe.trailing_zeros(),
            },
            created,
            writer: f.writer,
            packed,
        };
        header.check_sizes().map_err(|why| bad(path, why))?;
        Ok(header)
    }

    /// What a store can be: checked before one is made and when one is read.
    pub(crate) fn check_sizes(&self) -> Result<(), String> {
        let item = match &self.schema.layout {
            Layout::Dense { item_shape } => Some(check_item(&self.schema, item_shape)?),
            Layout::Ragged { ndim } if !(1..=Layout::MAX_NDIM).contains(ndim) => {
                return Err(format!(
                    "ragged records of {ndim} axes are not within 1..={}; records of one value are dense, with the shape []",
                    Layout::MAX_NDIM
                ));
            }
            Layout::Ragged { .. } => None,
        };
        if !(1..=MAX_SHARDS).contains(&self.geometry.shards) {
            return Err(format!("{} shards are not within 1..=255", self.geometry.shards));
        }
        // A shard's stripes and file length must fit i64, the kernel's file offsets.
        let stripe = 1u64.checked_shl(self.geometry.stripe_log2).unwrap_or(0);
        let round = stripe.checked_mul(u64::from(self.geometry.shards));
        let least = self.form().entry() as u64;
        let payload = self.geometry.records.checked_mul(item.unwrap_or(0).max(least));
        match (round, payload) {
            (Some(1..), Some(n)) if n <= MAX_PAYLOAD => {}
            _ => return Err(format!("{} records do not fit a store", self.geometry.records)),
        }
        self.packed.as_ref().map_or(Ok(()), |packed| self.check_packing(packed, item))
    }

    fn check_packing(&self, packed: &Packing, item: Option<u64>) -> Result<(), String> {
        let Packing { raw_bytes, shard_bytes, .. } = packed;
        let stored = shard_bytes.iter().try_fold(0u64, |n, bytes| n.checked_add(*bytes));
        let dense = item.is_none_or(|item| item * self.geometry.records == *raw_bytes);
        let fits = match stored {
            Some(n) if self.codec == Codec::Raw => n == *raw_bytes,
            Some(n) => n <= *raw_bytes,
            None => false,
        };
        if shard_bytes.len() != self.geometry.shards as usize {
            return Err(format!(
                "shard_bytes tells of {} shards, not of {}",
                shard_bytes.len(),
                self.geometry.shards
            ));
        }
        if *raw_bytes > MAX_PAYLOAD || !dense || !fits {
            return Err(format!(
                "raw_bytes {raw_bytes} and shard_bytes do not fit each other and the records"
            ));
        }
        Ok(())
    }

    /// How the entries of the index are laid: a checksum alone, or with a record's place, stored
    /// length and, where it has one of its own, shape.
    pub(crate) fn form(&self) -> Form {
        match (&self.schema.layout, self.codec) {
            (Layout::Dense { .. }, Codec::Raw) => Form::new(8),
            (Layout::Dense { .. }, _) => Form::new(PLACE),
            (Layout::Ragged { ndim }, _) => Form::new(PLACE + 4 * *ndim as usize),
        }
    }

    /// Whether records differ in size on disk, so that the index tells their places.
    pub(crate) fn is_packed(schema: &Schema, codec: Codec) -> bool {
        !matches!((&schema.layout, codec), (Layout::Dense { .. }, Codec::Raw))
    }

    /// The exact beginning of a shard's file; the payload follows. Nothing, or a `.npy` header of
    /// one page, unless a shape of hundreds of axes needs more.
    pub(crate) fn shard_front(&self, shard: u32) -> Vec<u8> {
        match &self.schema.layout {
            Layout::Dense { item_shape } if self.packed.is_none() => {
                let mut shape = vec![self.geometry.rows(shard)];
                shape.extend_from_slice(item_shape);
                crate::npy::shard_header(self.schema.dtype, &shape, 4096)
            }
            _ => Vec::new(),
        }
    }

    /// The exact length of a shard's file.
    pub(crate) fn shard_len(&self, shard: u32) -> u64 {
        match &self.packed {
            Some(packed) => packed.shard_bytes[shard as usize],
            None => {
                let item = self.schema.item_bytes().unwrap_or(0);
                self.shard_front(shard).len() as u64 + self.geometry.rows(shard) * item
            }
        }
    }

    pub(crate) fn shard_name(&self, shard: u32) -> String {
        let kind = if self.packed.is_some() { "bin" } else { "npy" };
        format!("data-{shard:03}.{kind}")
    }
}

/// Bytes of a dense record, if it can be in a store.
fn check_item(schema: &Schema, item_shape: &[u64]) -> Result<u64, String> {
    match schema.item_bytes() {
        Some(0) => Err(format!(
            "records of shape {item_shape:?} have no bytes; a store needs at least one element per record"
        )),
        Some(item @ 1..=MAX_RECORD) => Ok(item),
        _ => Err(format!("records of {} {item_shape:?} are larger than 2 GiB", schema.dtype)),
    }
}

/// The fields that are there where records differ in size on disk, and only there.
fn packing(f: &Fields, schema: &Schema, codec: Codec) -> Result<Option<Packing>, String> {
    let is_packed = Header::is_packed(schema, codec);
    let fields = [
        ("raw_bytes", f.raw_bytes.is_some(), is_packed),
        ("shard_bytes", f.shard_bytes.is_some(), is_packed),
        ("level", f.level.is_some(), codec != Codec::Raw),
        ("dictionary_bytes", f.dictionary_bytes.is_some(), codec == Codec::ZstdDict),
        ("dictionary_xxh3_64", f.dictionary_xxh3_64.is_some(), codec == Codec::ZstdDict),
    ];
    if let Some((name, there, _)) = fields.into_iter().find(|(_, there, due)| there != due) {
        let says = if there { "is there, but does not belong" } else { "is missing" };
        return Err(format!(
            "field {name} {says} with {} records and codec {}",
            f.layout,
            codec.name()
        ));
    }
    let (Some(raw_bytes), Some(shard_bytes)) = (f.raw_bytes, f.shard_bytes.clone()) else {
        return Ok(None);
    };
    let dictionary = match (f.dictionary_bytes, &f.dictionary_xxh3_64) {
        (Some(bytes), Some(sum)) => {
            let sum =
                u64::from_str_radix(sum, 16).ok().filter(|n| hex(*n) == *sum).ok_or_else(|| {
                    format!("dictionary_xxh3_64 {sum:?} is not 16 hexadecimal digits")
                })?;
            if bytes > compress::MAX_DICTIONARY as u64 {
                return Err(format!("a dictionary of {bytes} bytes is larger than any store has"));
            }
            Some(Dictionary { bytes, sum })
        }
        _ => None,
    };
    Ok(Some(Packing { level: f.level, dictionary, raw_bytes, shard_bytes }))
}

fn hex(sum: u64) -> String {
    format!("{sum:016x}")
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
    read_at_most(path, MAX_HEADER)
}

/// The bytes of a file, unless there are more than `most`.
pub(crate) fn read_at_most(path: &Path, most: u64) -> Result<Vec<u8>> {
    let meta = path.metadata().map_err(Error::io(path, "cannot open"))?;
    if !meta.is_file() || meta.len() > most {
        return Err(bad(path, "is not what a store has under this name".into()));
    }
    let (file, _) = open_regular(path, "cannot open")?;
    let mut bytes = Vec::new();
    file.take(most).read_to_end(&mut bytes).map_err(Error::io(path, "cannot read"))?;
    Ok(bytes)
}

pub(crate) fn bad(path: &Path, why: String) -> Error {
    Error::BadStore { path: path.into(), why }
}
