//! Writing a store.

use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use batchfs_store::{DType, Schema, StoreWriter, WriteOptions};
use serde_json::{Value, json};

use crate::memory;

/// Writes the array of a `.npy` file, little-endian and in C order, as a store.
pub fn write(npy: &Path, dest: &Path) -> anyhow::Result<Value> {
    let map = memory::map(npy)?;
    let start = memory::npy_start(&map)?;
    let header = std::str::from_utf8(&map[10..start])?;
    let schema = schema(header).with_context(|| format!("cannot read the header {header}"))?;
    let begin = Instant::now();
    let mut writer = StoreWriter::create(dest, schema, WriteOptions::default())?;
    writer.append(&map[start..])?;
    let appended = begin.elapsed();
    writer.finish()?;
    Ok(json!({
        "append_ns": appended.as_nanos() as u64,
        "ns": begin.elapsed().as_nanos() as u64,
        "bytes": map.len() - start,
    }))
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
