//! Writing a store.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context as _;
use batchfs_store::{DType, Schema, StoreWriter, WriteOptions};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::memory;

/// How a store is to be written.
#[derive(Debug, Deserialize)]
pub struct How {
    /// `raw`, `zstd` or `zstd_dict`.
    codec: String,
    /// The file of a dictionary.
    dictionary: Option<PathBuf>,
    /// For ragged records: a `.npy` file of u64, where each one starts, and where the last one ends.
    offsets: Option<PathBuf>,
}

/// Writes the array of a `.npy` file, little-endian and in C order, as a store.
pub fn write(npy: &Path, dest: &Path, how: &How) -> anyhow::Result<Value> {
    let map = memory::map(npy)?;
    let start = memory::npy_start(&map)?;
    let header = std::str::from_utf8(&map[10..start])?;
    let dense = schema(header).with_context(|| format!("cannot read the header {header}"))?;
    let options = WriteOptions {
        codec: how.codec.parse()?,
        dictionary: how.dictionary.as_deref().map(std::fs::read).transpose()?,
        ..WriteOptions::default()
    };
    let lengths = how.offsets.as_deref().map(lengths).transpose()?;
    let schema = if lengths.is_some() { Schema::ragged(dense.dtype, 1) } else { dense };
    let begin = Instant::now();
    let mut writer = StoreWriter::create(dest, schema, options)?;
    match lengths {
        Some(lengths) => writer.append_ragged(&map[start..], &lengths)?,
        None => writer.append(&map[start..])?,
    }
    let appended = begin.elapsed();
    writer.finish()?;
    Ok(json!({
        "append_ns": appended.as_nanos() as u64,
        "ns": begin.elapsed().as_nanos() as u64,
        "bytes": map.len() - start,
    }))
}

fn lengths(offsets: &Path) -> anyhow::Result<Vec<u64>> {
    let map = memory::map(offsets)?;
    let numbers: Vec<u64> = map[memory::npy_start(&map)?..]
        .chunks_exact(8)
        .filter_map(|b| b.try_into().ok().map(u64::from_le_bytes))
        .collect();
    Ok(numbers.windows(2).map(|pair| pair[1] - pair[0]).collect())
}

/// The two kinds of array that the harness makes.
fn schema(header: &str) -> Option<Schema> {
    let dtype = if header.contains("'|u1'") {
        DType::UInt8
    } else if header.contains("'<i4'") {
        DType::Int32
    } else {
        return None;
    };
    let (_, shape) = header.split_once("'shape': (")?;
    let (shape, _) = shape.split_once(')')?;
    let shape: Vec<u64> = shape
        .split(',')
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .map(|s| s.parse().ok())
        .collect::<Option<_>>()?;
    Some(Schema::dense(dtype, shape.get(1..)?))
}
