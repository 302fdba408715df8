use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context as _, ensure};
use batchfs_source::NpyFile;
use batchfs_store::{
    DType, Layout, Schema, StoreWriter, Stream as _, WriteOptions, remove_leftovers,
};
use bytesize::ByteSize;

use crate::args::Create;
use crate::parents::Parents;
use crate::{progress, say};

/// Bytes that are copied at a time.
const STEP: u64 = 64 << 20;
/// Records, at most: each costs the writer some bytes besides its own.
const STEP_RECORDS: u64 = 4 << 20;
/// Ids that are in memory at a time.
const IDS: u64 = 64 << 10;

pub fn run(args: &Create) -> anyhow::Result<ExitCode> {
    let source = match args.types.of(&args.from) {
        Some(dtype) => NpyFile::open_as(&args.from, dtype)?,
        None => NpyFile::open(&args.from)?,
    };
    let shapes = match &args.offsets {
        Some(offsets) => Some(shapes(args, offsets, &source)?),
        None => None,
    };
    let dtype = source.schema().dtype;
    let schema = match &shapes {
        Some(shapes) => Schema::ragged(dtype, shapes.ndim),
        None => source.schema().clone(),
    };
    let dictionary = match &args.dict {
        Some(path) => Some(std::fs::read(path).with_context(|| path.display().to_string())?),
        None => None,
    };
    let options = WriteOptions {
        shards: args.shards,
        codec: args.codec,
        level: args.level,
        dictionary,
        ..WriteOptions::default()
    };
    let parents = Parents::of(&args.dest).with_context(|| {
        format!("{}: the folders that it is in cannot be made", args.dest.display())
    })?;
    // What cannot be cleaned up is no reason not to write.
    for left in remove_leftovers(&args.dest).unwrap_or_default() {
        say::note(format_args!(
            "{}: removed, an unfinished store of an earlier run",
            left.display()
        ));
    }
    let mut writer = StoreWriter::create(&args.dest, schema.clone(), options)?;
    let item = source.schema().item_bytes().context("a record is larger than 2^64 bytes")?;
    let total = item * source.len();
    let bar = progress::bytes(total, "writing");
    let mut copy = Copy { source: &source, item, at: 0, buffer: Vec::new() };
    match &shapes {
        None => {
            let step = (STEP / item.max(1)).clamp(1, STEP_RECORDS);
            while copy.at < source.len() {
                let bytes = copy.next(step.min(source.len() - copy.at))?;
                writer.append(bytes)?;
                bar.inc(bytes.len() as u64);
            }
        }
        Some(shapes) => {
            for group in shapes.groups((STEP / item.max(1)).min(STEP_RECORDS)) {
                let bytes = copy.next(group.elements)?;
                writer.append_ragged(bytes, group.shapes)?;
                bar.inc(bytes.len() as u64);
            }
        }
    }
    let records = writer.records();
    writer.finish()?;
    parents.keep();
    bar.finish_and_clear();
    let (dest, shape) = (args.dest.display(), progress::shape(&schema));
    writeln!(say::out(), "{dest}: {records} records of {dtype} {shape}, {}", ByteSize(total))
        .with_context(|| format!("{dest}: the store is there, whole, but"))?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a source front to back.
struct Copy<'a> {
    source: &'a NpyFile,
    item: u64,
    at: u64,
    buffer: Vec<u8>,
}

impl Copy<'_> {
    fn next(&mut self, count: u64) -> anyhow::Result<&[u8]> {
        self.buffer.resize(usize::try_from(count * self.item)?, 0);
        gather_run(self.source, self.at, self.item, &mut self.buffer)?;
        self.at += count;
        Ok(&self.buffer)
    }
}

/// Copies the records from `first` on that fill `out`, of `item` bytes each. Their ids are never all
/// in memory.
fn gather_run(source: &NpyFile, first: u64, item: u64, out: &mut [u8]) -> anyhow::Result<()> {
    let mut first = first;
    for out in out.chunks_mut(usize::try_from(item.saturating_mul(IDS))?) {
        let end = first + out.len() as u64 / item;
        source.gather(&(first..end).collect::<Vec<u64>>(), out)?;
        first = end;
    }
    Ok(())
}

/// The shapes of all records of a ragged stream, one after the other.
struct Shapes {
    ndim: u32,
    all: Vec<u64>,
}

/// Records that are written in one go.
struct Group<'a> {
    elements: u64,
    shapes: &'a [u64],
}

impl Shapes {
    /// Runs of records with about `most` elements.
    fn groups(&self, most: u64) -> Vec<Group<'_>> {
        let mut groups = Vec::new();
        let (mut from, mut elements) = (0, 0);
        let width = self.ndim as usize;
        for (i, shape) in self.all.chunks_exact(width).enumerate() {
            elements += shape.iter().product::<u64>();
            if elements >= most {
                let end = (i + 1) * width;
                groups.push(Group { elements, shapes: &self.all[from..end] });
                (from, elements) = (end, 0);
            }
        }
        if from < self.all.len() {
            groups.push(Group { elements, shapes: &self.all[from..] });
        }
        groups
    }
}

/// Reads and checks `--offsets` and `--shapes` against the values.
fn shapes(args: &Create, offsets: &Path, values: &NpyFile) -> anyhow::Result<Shapes> {
    let Layout::Dense { item_shape } = &values.schema().layout else {
        anyhow::bail!("{}: is not an array", args.from.display());
    };
    ensure!(
        item_shape.is_empty(),
        "{}: with --offsets the values are one-dimensional, these have {} axes",
        args.from.display(),
        item_shape.len() + 1
    );
    let (numbers, width) = integers(offsets)?;
    let shown = offsets.display();
    ensure!(width == 1, "{shown}: offsets are one-dimensional");
    ensure!(numbers.first() == Some(&0), "{shown}: the first offset must be 0");
    ensure!(
        numbers.last() == Some(&values.len()),
        "{shown}: the last offset must be the number of values, {}",
        values.len()
    );
    let mut lengths = Vec::with_capacity(numbers.len());
    for (i, pair) in numbers.windows(2).enumerate() {
        let length = pair[1].checked_sub(pair[0]);
        lengths.push(length.with_context(|| format!("{shown}: record {i} ends before it starts"))?);
    }
    let Some(path) = &args.shapes else { return Ok(Shapes { ndim: 1, all: lengths }) };
    let (all, width) = integers(path)?;
    let shown = path.display();
    ensure!(
        width > 0 && all.len() == width * lengths.len(),
        "{shown}: has {} rows, but there are {} records",
        all.len() / width.max(1),
        lengths.len()
    );
    for (i, (shape, length)) in all.chunks_exact(width).zip(&lengths).enumerate() {
        let product = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
        ensure!(
            product == Some(*length),
            "{shown}: record {i} has shape {shape:?}, but {length} values"
        );
    }
    Ok(Shapes { ndim: u32::try_from(width)?, all })
}

/// All numbers of a `.npy` file of integers, and how many there are in a row.
fn integers(path: &Path) -> anyhow::Result<(Vec<u64>, usize)> {
    let file = NpyFile::open(path)?;
    let schema = file.schema();
    let width = usize::try_from(schema.item_elements().unwrap_or(0))?;
    let item = schema.item_bytes().unwrap_or(0);
    let mut buffer = vec![0; usize::try_from(item.saturating_mul(file.len()))?];
    gather_run(&file, 0, item, &mut buffer)?;
    let size = schema.dtype.size();
    let signed = match schema.dtype {
        DType::Int32 | DType::Int64 => true,
        DType::UInt32 | DType::UInt64 => false,
        other => anyhow::bail!(
            "{}: has {other}, but must be int32, int64, uint32 or uint64",
            path.display()
        ),
    };
    let mut numbers = Vec::with_capacity(buffer.len() / size);
    for (i, bytes) in buffer.chunks_exact(size).enumerate() {
        let negative = signed && bytes[size - 1] & 0x80 != 0;
        ensure!(!negative, "{}: number {i} is negative", path.display());
        let mut wide = [0; 8];
        wide[..size].copy_from_slice(bytes);
        numbers.push(u64::from_le_bytes(wide));
    }
    Ok((numbers, width))
}
