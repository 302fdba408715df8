//! Writing of containers as loaderx 2.8.19 writes them.

use std::path::Path;

use batchfs_store::{
    Chunk, Codec, DType, Error, Layout, Output, Result, Schema, Stream, check_ids, chunks,
};
use rayon::prelude::*;
use zstd::bulk::Compressor;
use zstd::dict::EncoderDictionary;
use zstd::zstd_safe::DDict;

use super::meta::{ENTRY, FRONT, MAX_RECORD, MAX_SHARDS, Meta, check_schema};
use super::{DICTIONARY, META, shard_name};

/// How a container is to be written.
#[derive(Clone, Debug)]
pub struct ZrecordOptions {
    /// Files that the records are spread over, 1..=255; 4 by default.
    pub shards: u32,
    /// How records are kept.
    pub codec: Codec,
    /// The level of the codecs that compress; 3 by default, which is what loaderx uses.
    pub level: i32,
    /// The dictionary for [`Codec::ZstdDict`], and for it alone.
    pub dictionary: Option<Vec<u8>>,
}

impl Default for ZrecordOptions {
    fn default() -> Self {
        Self { shards: 4, codec: Codec::Raw, level: 3, dictionary: None }
    }
}

/// Bytes that one thread compresses at a time, and as many of these as are at work.
const PART: u64 = 256 << 10;
const PARTS: usize = 64;
/// What a zstd dictionary begins with.
const MAGIC: [u8; 4] = 0xec30_a437u32.to_le_bytes();

/// Refuses what a container cannot hold, before anything is written.
///
/// # Errors
/// [`Error::Invalid`] with the reason, and the record if it is one.
pub(crate) fn check(stream: &dyn Stream, options: &ZrecordOptions) -> Result<()> {
    let invalid = |why: String| Error::Invalid { path: stream.origin().to_owned(), why };
    check_options(options).map_err(invalid)?;
    check_schema(stream.schema()).map_err(invalid)?;
    let front = Meta {
        records: stream.len(),
        codec: options.codec,
        schema: stream.schema().clone(),
        shard_bytes: vec![0; options.shards as usize],
    };
    if front.to_bytes().is_none() {
        return Err(invalid("has a schema that is too long for a container".into()));
    }
    let head = head_of(stream.schema()) as u64;
    if head == 0 {
        return Ok(());
    }
    let size = stream.schema().dtype.size() as u64;
    for chunk in chunks(stream, u64::MAX) {
        let ids: Vec<u64> = chunk?.ids.collect();
        let mut elements = vec![0; ids.len()];
        stream.elements(&ids, &mut elements)?;
        for (id, elements) in ids.iter().zip(elements) {
            if elements == 0 {
                return Err(invalid(format!(
                    "record {id} is empty, and zrecord containers cannot hold empty records; leave such records out first"
                )));
            }
            if elements.saturating_mul(size).saturating_add(head) > MAX_RECORD {
                return Err(invalid(format!(
                    "record {id} and its shape have more than the 2 GiB that a zrecord container can hold"
                )));
            }
        }
    }
    Ok(())
}

fn check_options(options: &ZrecordOptions) -> Result<(), String> {
    if !(1..=MAX_SHARDS).contains(&(options.shards as usize)) {
        return Err(format!("{} shards are not within 1..=255", options.shards));
    }
    let levels = zstd::compression_level_range();
    if options.codec != Codec::Raw && !levels.contains(&options.level) {
        return Err(format!(
            "level {} is not one of zstd, which has {} to {}",
            options.level,
            levels.start(),
            levels.end()
        ));
    }
    match (options.codec, &options.dictionary) {
        (Codec::ZstdDict, None) => {
            Err("codec zstd_dict needs a dictionary, which `batchfs train-dict` makes".into())
        }
        (Codec::ZstdDict, Some(bytes))
            if !bytes.starts_with(&MAGIC) || DDict::try_create(bytes).is_none() =>
        {
            Err(format!("the {} bytes given are not a zstd dictionary", bytes.len()))
        }
        (Codec::Raw | Codec::Zstd, Some(_)) => {
            Err(format!("codec {} takes no dictionary; zstd_dict does", options.codec.name()))
        }
        _ => Ok(()),
    }
}

fn head_of(schema: &Schema) -> usize {
    match schema.layout {
        Layout::Dense { .. } => 0,
        Layout::Ragged { ndim } => ndim as usize * size_of::<u32>(),
    }
}

/// Writes a container of all records of `stream` to `folder`, which is there and empty; `told` is
/// what errors are about. `progress` is told the bytes that were just done.
pub(crate) fn write(
    stream: &dyn Stream,
    folder: &Path,
    told: &Path,
    options: &ZrecordOptions,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<()> {
    let mut shards = (0..options.shards as usize)
        .map(|k| Output::create(&shard_name(folder, k), told))
        .collect::<Result<Vec<_>>>()?;
    let mut shard_bytes = vec![0u64; shards.len()];
    let mut meta = Output::create(&folder.join(META), told)?;
    meta.skip(FRONT as u64);
    if let Some(bytes) = &options.dictionary {
        Output::whole(&folder.join(DICTIONARY), told, bytes)?;
    }
    let dictionary =
        options.dictionary.as_deref().map(|bytes| EncoderDictionary::copy(bytes, options.level));

    let mut parts = chunks(stream, PART);
    loop {
        let group = parts.by_ref().take(PARTS).collect::<Result<Vec<Chunk>>>()?;
        if group.is_empty() {
            break;
        }
        let encoded = group
            .par_iter()
            .map_init(
                || compressor(options, dictionary.as_ref()),
                |compressor, chunk| encode(stream, chunk, compressor),
            )
            .collect::<Result<Vec<_>>>()?;
        for (chunk, encoded) in group.iter().zip(&encoded) {
            let mut rest = encoded.bytes.as_slice();
            for (id, (stored, raw)) in chunk.ids.clone().zip(&encoded.lens) {
                let (now, later) = rest.split_at(*stored as usize);
                rest = later;
                let shard = (id % u64::from(options.shards)) as usize;
                let end = &mut shard_bytes[shard];
                let mut entry = [0; ENTRY];
                entry[..8].copy_from_slice(&end.to_le_bytes());
                entry[8..12].copy_from_slice(&stored.to_le_bytes());
                entry[12..].copy_from_slice(&raw.to_le_bytes());
                meta.append(&entry)?;
                shards[shard].append(now)?;
                *end += u64::from(*stored);
            }
            progress(chunk.bytes);
        }
    }
    shards.par_iter_mut().try_for_each(Output::sync)?;
    let front = Meta {
        records: stream.len(),
        codec: options.codec,
        schema: stream.schema().clone(),
        shard_bytes,
    };
    let front = front.to_bytes().ok_or_else(|| Error::Invalid {
        path: told.into(),
        why: "the schema is too long for a container".into(),
    })?;
    meta.fill(&front, 0)?;
    meta.sync()
}

/// What a thread compresses with, if it is to.
fn compressor<'a>(
    options: &ZrecordOptions,
    dictionary: Option<&'a EncoderDictionary<'a>>,
) -> std::io::Result<Option<Compressor<'a>>> {
    Ok(match (options.codec, dictionary) {
        (Codec::Raw, _) => None,
        (_, Some(dictionary)) => Some(Compressor::with_prepared_dictionary(dictionary)?),
        (_, None) => Some(Compressor::new(options.level)?),
    })
}

/// Records as they are to be stored, with stored and raw length of each.
struct Encoded {
    bytes: Vec<u8>,
    lens: Vec<(u32, u32)>,
}

fn encode(
    stream: &dyn Stream,
    chunk: &Chunk,
    compressor: &mut std::io::Result<Option<Compressor<'_>>>,
) -> Result<Encoded> {
    let path = || stream.origin().to_owned();
    let compressor = compressor.as_mut().map_err(|e| Error::Io {
        path: path(),
        action: "cannot prepare to compress",
        source: std::io::Error::other(e.to_string()),
    })?;
    let ids: Vec<u64> = chunk.ids.clone().collect();
    check_ids(stream.origin(), &ids, stream.len())?;
    let schema = stream.schema();
    let mut elements = vec![0; ids.len()];
    stream.elements(&ids, &mut elements)?;
    let mut values = vec![0; chunk.bytes as usize];
    stream.gather(&ids, &mut values)?;
    let ndim = match schema.layout {
        Layout::Dense { .. } => 0,
        Layout::Ragged { ndim } => ndim as usize,
    };
    let mut shapes = vec![0; ids.len() * ndim];
    if ndim > 0 {
        stream.shapes(&ids, &mut shapes)?;
    }

    let mut encoded = Encoded { bytes: Vec::new(), lens: Vec::with_capacity(ids.len()) };
    let (mut rest, mut record) = (values.as_slice(), Vec::new());
    for (i, (id, elements)) in ids.iter().zip(elements).enumerate() {
        let (value, later) = rest.split_at(elements as usize * schema.dtype.size());
        rest = later;
        record.clear();
        for axis in &shapes[i * ndim..(i + 1) * ndim] {
            let axis = u32::try_from(*axis).map_err(|_| Error::Invalid {
                path: path(),
                why: format!("record {id} has an axis of {axis}, too long for a container"),
            })?;
            record.extend_from_slice(&axis.to_le_bytes());
        }
        record.extend_from_slice(value);
        let raw = record.len() as u32;
        let stored = match compressor {
            None => {
                encoded.bytes.extend_from_slice(&record);
                raw
            }
            Some(compressor) => {
                let frame = compressor.compress(&record).map_err(|source| Error::Io {
                    path: path(),
                    action: "cannot compress a record",
                    source,
                })?;
                encoded.bytes.extend_from_slice(&frame);
                frame.len() as u32
            }
        };
        encoded.lens.push((stored, raw));
    }
    Ok(encoded)
}

/// The dtypes of loaderx 2.8.19, which are all that there are here. Whoever adds one to batchfs
/// has to look whether loaderx has it.
const _: () = assert!(DType::ALL.len() == 20);
