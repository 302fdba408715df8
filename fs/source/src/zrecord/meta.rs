//! The front of `meta.zr`: what a container says of itself. All numbers are little-endian.

use batchfs_store::{Codec, DType, Layout, Schema};
use serde::{Deserialize, Serialize};

/// Bytes before the entries of the index.
pub(super) const FRONT: usize = 0x1000;
/// Bytes of an entry: u64 offset, u32 stored bytes, u32 raw bytes.
pub(super) const ENTRY: usize = 16;
const SHARD_BYTES: usize = 0x10;
const SCHEMA: usize = 0x808;
const MAX_SCHEMA: usize = FRONT - SCHEMA;
pub(super) const MAX_SHARDS: usize = 255;
/// The largest record that a container can have.
pub(super) const MAX_RECORD: u64 = 2 << 30;
/// Axes that a NumPy array can have; of a dense record there is one less, for the batch.
const MAX_AXES: usize = Layout::MAX_NDIM as usize;

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) records: u64,
    pub(super) codec: Codec,
    pub(super) schema: Schema,
    pub(super) shard_bytes: Vec<u64>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    dtype: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    item_shape: Option<Vec<u64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ndim: Option<u32>,
}

impl Meta {
    pub(super) fn parse(front: &[u8; FRONT]) -> Result<Self, String> {
        let shards = usize::from(front[0x0a]);
        if shards == 0 {
            return Err("says that it has no shards; it is no zrecord container".into());
        }
        let codec = match front[0x0b] {
            0 => Codec::Raw,
            1 => Codec::Zstd,
            2 => Codec::ZstdDict,
            n => return Err(format!("has the unknown codec number {n}")),
        };
        if front[0x0c..SHARD_BYTES] != [0; 4] {
            return Err("has something where a container has zeros, at byte 12".into());
        }
        let mut sizes = front[SHARD_BYTES..SCHEMA].chunks_exact(8).map(number);
        let shard_bytes: Vec<u64> = sizes.by_ref().take(shards).collect();
        if sizes.any(|n| n != 0) {
            return Err(format!("says that it has {shards} shard(s), but has sizes of more"));
        }
        let len = usize::from(u16::from_le_bytes([front[8], front[9]]));
        if len > MAX_SCHEMA {
            return Err(format!(
                "has a schema of {len} bytes, more than the {MAX_SCHEMA} there are"
            ));
        }
        let (schema, rest) = front[SCHEMA..].split_at(len);
        if rest.iter().any(|b| *b != 0) {
            return Err("has something behind its schema".into());
        }
        Ok(Self { records: number(&front[..8]), codec, schema: parse_schema(schema)?, shard_bytes })
    }

    /// The front as bytes; what the schema is too long for is `None`.
    pub(super) fn to_bytes(&self) -> Option<Vec<u8>> {
        let (item_shape, ndim) = match &self.schema.layout {
            Layout::Dense { item_shape } => (Some(item_shape.clone()), None),
            Layout::Ragged { ndim } => (None, Some(*ndim)),
        };
        let fields = Fields { dtype: self.schema.dtype.name().into(), item_shape, ndim };
        // As Python's json spaces it, so that a container has the same bytes whoever made it.
        let json = serde_json::to_string(&fields).ok()?.replace(':', ": ").replace(',', ", ");
        let len = u16::try_from(json.len()).ok().filter(|n| usize::from(*n) <= MAX_SCHEMA)?;
        let mut front = vec![0; FRONT];
        front[..8].copy_from_slice(&self.records.to_le_bytes());
        front[8..10].copy_from_slice(&len.to_le_bytes());
        front[0x0a] = u8::try_from(self.shard_bytes.len()).ok()?;
        front[0x0b] = match self.codec {
            Codec::Zstd => 1,
            Codec::ZstdDict => 2,
            _ => 0,
        };
        for (bytes, n) in front[SHARD_BYTES..].chunks_exact_mut(8).zip(&self.shard_bytes) {
            bytes.copy_from_slice(&n.to_le_bytes());
        }
        front[SCHEMA..SCHEMA + json.len()].copy_from_slice(json.as_bytes());
        Some(front)
    }
}

fn parse_schema(json: &[u8]) -> Result<Schema, String> {
    let fields: Fields = serde_json::from_slice(json)
        .map_err(|e| format!("has a schema that cannot be understood: {e}"))?;
    let dtype: DType = fields.dtype.parse().map_err(|e| format!("{e}"))?;
    let schema = match (fields.item_shape, fields.ndim) {
        (Some(item_shape), None) => Schema::dense(dtype, item_shape),
        (None, Some(ndim)) => Schema::ragged(dtype, ndim),
        _ => return Err("has a schema with not exactly one of item_shape and ndim".into()),
    };
    check_schema(&schema)?;
    Ok(schema)
}

/// What a container can hold.
pub(super) fn check_schema(schema: &Schema) -> Result<(), String> {
    match &schema.layout {
        Layout::Dense { item_shape } if item_shape.len() >= MAX_AXES => {
            Err(format!("records of {} axes are more than a container can hold", item_shape.len()))
        }
        Layout::Dense { item_shape } => match schema.item_bytes() {
            Some(1..=MAX_RECORD) => Ok(()),
            Some(0) => Err(format!("records of shape {item_shape:?} have no bytes")),
            _ => Err(format!("records of shape {item_shape:?} are larger than 2 GiB")),
        },
        Layout::Ragged { ndim } if !(1..=Layout::MAX_NDIM).contains(ndim) => {
            Err(format!("ragged records of {ndim} axes are not within 1..={}", Layout::MAX_NDIM))
        }
        Layout::Ragged { .. } => Ok(()),
    }
}

pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b))
}
