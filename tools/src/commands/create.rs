use std::process::ExitCode;

use anyhow::Context as _;
use batchfs_store::{StoreWriter, Stream as _, WriteOptions, leftovers};
use bytesize::ByteSize;

use crate::args::Create;
use crate::progress;

/// Bytes that are copied at a time.
const STEP: u64 = 64 << 20;

pub fn run(args: &Create) -> anyhow::Result<ExitCode> {
    for left in leftovers(&args.dest).unwrap_or_default() {
        eprintln!(
            "batchfs: {}: an unfinished store of an earlier run; it is removed when its writer is gone",
            left.display()
        );
    }
    let source = batchfs_source::NpyFile::open(&args.from)?;
    let schema = source.schema().clone();
    let item = schema.item_bytes().context("a record is larger than 2^64 bytes")?;
    if let Some(parent) = args.dest.parent() {
        std::fs::create_dir_all(parent)
            .with_context(|| format!("{}: cannot be made", parent.display()))?;
    }
    let options = WriteOptions { shards: args.shards, ..WriteOptions::default() };
    let mut writer = StoreWriter::create(&args.dest, schema.clone(), options)?;
    let bar = progress::bytes(item * source.len(), "writing");
    let step = (STEP / item.max(1)).max(1);
    let mut buffer = Vec::new();
    let mut at = 0;
    while at < source.len() {
        let ids: Vec<u64> = (at..(at + step).min(source.len())).collect();
        buffer.resize(ids.len() * item as usize, 0);
        source.gather(&ids, &mut buffer)?;
        writer.append(&buffer)?;
        at += ids.len() as u64;
        bar.inc(buffer.len() as u64);
    }
    writer.finish()?;
    bar.finish_and_clear();
    println!(
        "{}: {} records of {} {}, {}",
        args.dest.display(),
        source.len(),
        schema.dtype,
        progress::shape(&schema),
        ByteSize(item * source.len()),
    );
    Ok(ExitCode::SUCCESS)
}
