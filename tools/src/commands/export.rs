use std::io::Write as _;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use batchfs_source::{Format, Kind, What, ZrecordOptions, convert_dataset, convert_path};
use batchfs_store::Codec;
use bytesize::ByteSize;

use super::{dictionary, make_room};
use crate::args::{Export, ExportFormat};
use crate::{progress, say};

pub fn run(args: &Export) -> anyhow::Result<ExitCode> {
    let format = format(args)?;
    let (one, many) = match Kind::of(&args.source)? {
        Kind::Folder => (None, convert_dataset(&args.source, &args.types.all())?),
        _ => (Some(convert_path(&args.source, args.types.of(&args.source))?), Vec::new()),
    };
    let what = one.as_deref().map_or(What::Dataset(&many), What::Stream);
    let streams = one.as_deref().into_iter().chain(many.iter().map(|(_, s)| &**s));
    let (mut total, mut records) = (0u64, 0);
    for stream in streams {
        total = total.saturating_add(stream.payload_bytes());
        records = stream.len();
    }
    let parents = make_room(&args.dest, "unfinished,")?;
    let bar = progress::bytes(total, "writing");
    batchfs_source::export(what, &args.dest, &format, &|done| bar.inc(done))?;
    parents.keep();
    bar.finish_and_clear();
    writeln!(
        say::out(),
        "{}: {records} records of {} stream(s), {}",
        args.dest.display(),
        many.len().max(1),
        ByteSize(total)
    )
    .with_context(|| format!("{}: it is there, whole, but", args.dest.display()))?;
    Ok(ExitCode::SUCCESS)
}

fn format(args: &Export) -> anyhow::Result<Format> {
    if args.format == ExportFormat::Npy {
        if args.codec != Codec::Raw || args.dict.is_some() {
            bail!(".npy files are not compressed; --codec and --dict are for --format zrecord");
        }
        return Ok(Format::Npy);
    }
    let dictionary = dictionary(args.dict.as_deref())?;
    let (shards, codec, level) = (args.shards, args.codec, args.level);
    Ok(Format::Zrecord(ZrecordOptions { shards, codec, level, dictionary }))
}
