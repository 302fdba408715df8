use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use batchfs_batch::NamedStream;
use batchfs_source::{Kind, Zrecord};
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
        let kind = match found(stream.stream.origin())? {
            Found::Store(store) => {
                format!("store, {}, {} shard(s)", store.codec().name(), store.shards())
            }
            Found::Zrecord(container) => {
                let by = container.written_by().unwrap_or("loaderx");
                let (codec, shards) = (container.codec().name(), container.shards());
                let empty = match data.len() {
                    0 => ", empty: of no records, or of a writer that was killed before the first",
                    _ => "",
                };
                format!("zrecord ({by}), {codec}, {shards} shard(s){empty}")
            }
            Found::Npy(kind) => kind.to_owned(),
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

/// What a stream comes from.
enum Found {
    Store(Box<Store>),
    Zrecord(Box<Zrecord>),
    Npy(&'static str),
}

fn found(path: &Path) -> anyhow::Result<Found> {
    Ok(match Kind::of(path)? {
        Kind::Npy => Found::Npy("npy"),
        Kind::RaggedNpy => Found::Npy("ragged npy"),
        Kind::Zrecord => Found::Zrecord(Zrecord::open(path)?.into()),
        _ => Found::Store(Store::open(path, OpenOptions::verify(Verify::First))?.into()),
    })
}

fn describe(stream: &NamedStream) -> anyhow::Result<Value> {
    let mut out = stream.describe();
    let Value::Object(map) = &mut out else { return Ok(out) };
    map.remove("format");
    map.remove("version");
    let mut insert = |key: &str, value: Value| map.insert(key.to_owned(), value);
    insert("payload_bytes", stream.stream.payload_bytes().into());
    match found(stream.stream.origin())? {
        Found::Store(store) => {
            let created = store.created().duration_since(std::time::UNIX_EPOCH)?.as_secs();
            insert("kind", "store".into());
            insert("codec", store.codec().name().into());
            insert("shards", store.shards().into());
            insert("stripe", store.stripe().into());
            insert("created_unix", created.into());
            insert("writer", store.writer().into());
        }
        Found::Zrecord(container) => {
            insert("kind", "zrecord".into());
            insert("codec", container.codec().name().into());
            insert("shards", container.shards().into());
            insert("stored_bytes", container.stored_bytes().into());
            insert("written_by", container.written_by().into());
        }
        Found::Npy(kind) => {
            insert("kind", kind.into());
        }
    }
    Ok(out)
}
