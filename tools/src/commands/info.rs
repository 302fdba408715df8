use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use batchfs_batch::NamedStream;
use batchfs_store::{OpenOptions, Store, Verify};
use bytesize::ByteSize;
use serde_json::{Value, json};

use super::dataset;
use crate::args::Info;
use crate::{progress, say};

pub fn run(args: &Info) -> anyhow::Result<ExitCode> {
    let data = dataset(&args.path, Verify::First, &args.types)?;
    let mut out = say::out();
    if args.json {
        let streams = data.streams().iter().map(describe).collect::<anyhow::Result<Vec<_>>>()?;
        let all = json!({
            "format": "batchfs-info",
            "version": 1,
            "path": args.path.to_string_lossy(),
            "records": data.len(),
            "streams": streams,
        });
        writeln!(out, "{all:#}")?;
        return Ok(ExitCode::SUCCESS);
    }
    writeln!(
        out,
        "{}: {} records in each of {} stream(s)",
        args.path.display(),
        data.len(),
        data.streams().len()
    )?;
    for stream in data.streams() {
        let schema = stream.stream.schema();
        let kind = match store(stream.stream.origin()) {
            Some(store) => format!("store, {}, {} shard(s)", store.codec().name(), store.shards()),
            None => "npy".to_owned(),
        };
        writeln!(
            out,
            "  {:<16} {} {}  {}{} in all  {kind}",
            stream.name,
            schema.dtype,
            progress::shape(schema),
            match schema.item_bytes() {
                Some(item) => format!("{} a record, ", ByteSize(item)),
                None => String::new(),
            },
            ByteSize(stream.stream.payload_bytes()),
        )?;
    }
    Ok(ExitCode::SUCCESS)
}

fn store(path: &Path) -> Option<Store> {
    path.is_dir().then(|| Store::open(path, OpenOptions::verify(Verify::First)).ok())?
}

fn describe(stream: &NamedStream) -> anyhow::Result<Value> {
    let mut out = stream.describe();
    if let Value::Object(map) = &mut out {
        map.remove("format");
        map.remove("version");
        if let Some(store) = store(stream.stream.origin()) {
            let created = store.created().duration_since(std::time::UNIX_EPOCH)?.as_secs();
            map.insert("kind".to_owned(), "store".into());
            map.insert("codec".to_owned(), store.codec().name().into());
            map.insert("shards".to_owned(), store.shards().into());
            map.insert("stripe".to_owned(), store.stripe().into());
            map.insert("payload_bytes".to_owned(), store.payload_bytes().into());
            map.insert("created_unix".to_owned(), created.into());
            map.insert("writer".to_owned(), store.writer().into());
        } else {
            map.insert("kind".to_owned(), "npy".into());
        }
    }
    Ok(out)
}
