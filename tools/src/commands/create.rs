use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail, ensure};
use batchfs_source::{Kind, RaggedNpy, Streams, convert_dataset, convert_path, stream_name};
use batchfs_store::{
    DatasetWriter, Layout, StoreWriter, Stream, WriteOptions, check_lengths, check_stream_name,
    chunks,
};
use bytesize::ByteSize;
use indicatif::ProgressBar;

use super::{dictionary, make_room};
use crate::args::Create;
use crate::{progress, say};

/// Bytes that are copied at a time.
const STEP: u64 = 64 << 20;

pub fn run(args: &Create) -> anyhow::Result<ExitCode> {
    let sources = sources(args)?;
    let dictionary = dictionary(args.dict.as_deref())?;
    let options = WriteOptions {
        shards: args.shards,
        codec: args.codec,
        level: args.level,
        dictionary,
        ..WriteOptions::default()
    };
    let parents = make_room(&args.dest, "an unfinished store")?;
    let total = sources.streams().map(|(_, s)| s.payload_bytes()).fold(0, u64::saturating_add);
    let bar = progress::bytes(total, "writing");
    match &sources {
        Sources::One(stream) => {
            let mut writer = StoreWriter::create(&args.dest, stream.schema().clone(), options)?;
            copy(&**stream, &mut writer, &bar)?;
            writer.finish()?;
        }
        Sources::Many(streams) => {
            let mut dataset = DatasetWriter::create(&args.dest)?;
            for (name, stream) in streams {
                let schema = stream.schema().clone();
                let mut writer = dataset.stream(name, schema, options.clone())?;
                copy(&**stream, &mut writer, &bar)?;
                writer.finish()?;
            }
            dataset.publish()?;
        }
    }
    parents.keep();
    bar.finish_and_clear();
    let mut out = say::out();
    for (name, stream) in sources.streams() {
        let dest = name.map_or(args.dest.clone(), |name| args.dest.join(name));
        writeln!(
            out,
            "{}: {} records of {} {}, {}",
            dest.display(),
            stream.len(),
            stream.schema().dtype,
            progress::shape(stream.schema()),
            ByteSize(stream.payload_bytes()),
        )
        .with_context(|| format!("{}: it is there, whole, but", dest.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What becomes the target: a store, or a dataset, a folder of stores.
enum Sources {
    One(Box<dyn Stream>),
    Many(Streams),
}

impl Sources {
    fn streams(&self) -> impl Iterator<Item = (Option<&str>, &dyn Stream)> {
        let (one, many) = match self {
            Sources::One(stream) => (Some((None, &**stream)), [].as_slice()),
            Sources::Many(streams) => (None, streams.as_slice()),
        };
        one.into_iter().chain(many.iter().map(|(name, s)| (Some(name.as_str()), &**s)))
    }
}

/// Opens all of `--from`, and looks whether they fit each other.
fn sources(args: &Create) -> anyhow::Result<Sources> {
    let from: Vec<_> = args.from.iter().map(|text| named(text)).collect();
    if let Some(offsets) = &args.offsets {
        let [(None, values)] = from.as_slice() else {
            bail!("--offsets is for a single --from without a name");
        };
        let stream =
            RaggedNpy::open_parts(values, offsets, args.shapes.as_deref(), args.types.of(values))?;
        return Ok(Sources::One(Box::new(stream)));
    }
    if let [(None, path)] = from.as_slice() {
        return Ok(match Kind::of(path)? {
            Kind::Folder => Sources::Many(convert_dataset(path, &args.types.all())?),
            _ => Sources::One(convert_path(path, args.types.of(path))?),
        });
    }
    let mut streams = Streams::new();
    for (name, path) in from {
        match (Kind::of(&path)?, name) {
            (Kind::Folder, None) => streams.extend(convert_dataset(&path, &args.types.all())?),
            (Kind::Folder, Some(name)) => bail!(
                "{}: is a folder of streams, which cannot all be named {name:?}; leave the name out",
                path.display()
            ),
            (_, name) => {
                let name = match name {
                    Some(name) => name.to_owned(),
                    None => stream_name(&path)?,
                };
                check_stream_name(&name).map_err(anyhow::Error::msg)?;
                let stream = convert_path(&path, args.types.all().of(&name))?;
                streams.push((name, stream.into()));
            }
        }
    }
    streams.sort_by(|(a, _), (b, _)| a.cmp(b));
    for pair in streams.windows(2) {
        ensure!(
            pair[0].0 != pair[1].0,
            "{} and {} are both named {:?}; name one of them, as in --from NAME=PATH",
            pair[0].1.origin().display(),
            pair[1].1.origin().display(),
            pair[0].0
        );
    }
    let lengths: Vec<_> = streams.iter().map(|(name, s)| (name.as_str(), s.len())).collect();
    check_lengths(&lengths).map_err(anyhow::Error::msg)?;
    Ok(Sources::Many(streams))
}

/// A `--from`: a path, or a name, `=` and a path. What is there as a whole is a path.
fn named(text: &Path) -> (Option<&str>, PathBuf) {
    let split = text.to_str().and_then(|text| text.split_once('='));
    match split {
        Some((name, path)) if !name.contains('/') && text.symlink_metadata().is_err() => {
            (Some(name), path.into())
        }
        _ => (None, text.into()),
    }
}

/// Appends all records of a stream.
fn copy(stream: &dyn Stream, writer: &mut StoreWriter, bar: &ProgressBar) -> anyhow::Result<()> {
    let mut buffer = Vec::new();
    for chunk in chunks(stream, STEP) {
        let chunk = chunk?;
        chunk.read(stream, &mut buffer)?;
        match stream.schema().layout {
            Layout::Dense { .. } => writer.append(&buffer)?,
            Layout::Ragged { ndim } => {
                let ids: Vec<u64> = chunk.ids.collect();
                let mut shapes = vec![0; ids.len() * ndim as usize];
                stream.shapes(&ids, &mut shapes)?;
                writer.append_ragged(&buffer, &shapes)?;
            }
        }
        bar.inc(chunk.bytes);
    }
    Ok(())
}
