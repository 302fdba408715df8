//! From the bytes of a column chunk to tokens and the lengths of documents.

use std::cmp::Ordering;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use batchfs_store::{Spare, TokenGroup};
use bytes::Bytes;
use parquet::column::reader::{ColumnReaderImpl, get_column_reader, get_typed_column_reader};
use parquet::data_type::{DataType, Int32Type, Int64Type};
use parquet::errors::ParquetError;

use crate::bounded::Bounded;
use crate::chunk::{Chunk, descriptor};
use crate::column::{Column, Ints};
use crate::packed;
use crate::place::REWRITE;

/// Levels that are decoded at a time: they stay in the processor's cache.
const LEVELS: u64 = 16 << 10;

/// Levels that are looked at together.
const PART: usize = 64;

/// Why a chunk cannot be decoded.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) row: Option<u64>,
    pub(crate) why: String,
}

impl From<ParquetError> for Failure {
    fn from(error: ParquetError) -> Failure {
        let why = match error {
            ParquetError::General(why) | ParquetError::EOF(why) => why,
            other => other.to_string(),
        };
        damaged(None, &why)
    }
}

pub(crate) const NULL_ITEM: &str =
    "has a null item; tokens cannot be null: drop the item or the row, then mount again";

pub(crate) fn failure(row: Option<u64>, why: impl Into<String>) -> Failure {
    Failure { row, why: why.into() }
}

pub(crate) fn damaged(row: Option<u64>, why: &str) -> Failure {
    failure(row, format!("the token column is damaged: {why}; {REWRITE}"))
}

/// Decodes the chunk whose bytes these are.
pub(crate) fn decode(
    chunk: &Chunk,
    column: &Column,
    bytes: Bytes,
    spare: &Arc<Spare>,
) -> Result<TokenGroup, Failure> {
    // Whatever is not in order is looked at again, by the library alone, and told.
    if let Some(group) = packed::whole(chunk, column, bytes.clone(), spare) {
        return Ok(group);
    }
    by_library(chunk, column, bytes, spare)
}

fn by_library(
    chunk: &Chunk,
    column: &Column,
    bytes: Bytes,
    spare: &Arc<Spare>,
) -> Result<TokenGroup, Failure> {
    // A footer can say anything; what it says is believed up to some size.
    let believed = |count: u64, most: u64| usize::try_from(count.min(most)).unwrap_or(0);
    let mut group = TokenGroup {
        tokens: spare.tokens(believed(chunk.tokens.unwrap_or(0), 1 << 28)),
        lengths: Vec::with_capacity(believed(chunk.documents, 1 << 24)),
    };
    let tokens = go_through(chunk, column, bytes, &mut group, true)?;
    if let Some(known) = chunk.tokens.filter(|&known| known != tokens) {
        let why = format!("it has {tokens} tokens, but its footer says {known}");
        return Err(damaged(None, &why));
    }
    Ok(group)
}

/// Counts the tokens of the chunk whose bytes these are.
pub(crate) fn count_by_library(
    chunk: &Chunk,
    column: &Column,
    bytes: Bytes,
) -> Result<u64, Failure> {
    go_through(chunk, column, bytes, &mut TokenGroup::default(), false)
}

fn go_through(
    chunk: &Chunk,
    column: &Column,
    bytes: Bytes,
    group: &mut TokenGroup,
    keep: bool,
) -> Result<u64, Failure> {
    // The decoders of the library have panicked on damaged pages before now.
    let decoded = catch_unwind(AssertUnwindSafe(|| match column.ints {
        Ints::Int32 | Ints::UInt32 | Ints::Null => narrow(chunk, column, bytes, group, keep),
        Ints::Int64 | Ints::UInt64 => wide(chunk, column, bytes, group, keep),
    }));
    let tokens = decoded.unwrap_or_else(|_| Err(damaged(None, "its decoder gave up")))?;
    check_documents(group.lengths.len() as u64, chunk)?;
    Ok(tokens)
}

pub(crate) fn check_documents(count: u64, chunk: &Chunk) -> Result<(), Failure> {
    let why = match count.cmp(&chunk.documents) {
        Ordering::Equal => return Ok(()),
        Ordering::Greater => {
            format!("it has more rows than the row group, which has {}", chunk.documents)
        }
        Ordering::Less => {
            format!("it has {count} rows, but the row group has {}", chunk.documents)
        }
    };
    Err(damaged(None, &why))
}

/// Reads some whole rows at a time.
struct Rows<'a, T: DataType> {
    reader: ColumnReaderImpl<T>,
    column: &'a Column,
    chunk: &'a Chunk,
    at_a_time: usize,
    defs: Vec<i16>,
    reps: Vec<i16>,
}

impl<'a, T: DataType> Rows<'a, T> {
    fn new(chunk: &'a Chunk, column: &'a Column, bytes: Bytes) -> Result<Rows<'a, T>, Failure> {
        let descr = descriptor(column)?;
        let pages = Bounded::new(chunk.pages(bytes, &descr)?, chunk);
        let reader = get_typed_column_reader(get_column_reader(descr, Box::new(pages)));
        let mean = (chunk.levels / chunk.documents.max(1)).max(1);
        let at_a_time = usize::try_from((LEVELS / mean).max(1)).unwrap_or(1);
        Ok(Rows { reader, column, chunk, at_a_time, defs: Vec::new(), reps: Vec::new() })
    }

    /// Adds the values and lengths of the next rows; says whether there were any.
    fn next(&mut self, values: &mut Vec<T::T>, lengths: &mut Vec<u32>) -> Result<bool, Failure> {
        self.defs.clear();
        self.reps.clear();
        let (defs, reps) = (&mut self.defs, &mut self.reps);
        let (rows, count, levels) =
            self.reader.read_records(self.at_a_time, Some(defs), Some(reps), values)?;
        if rows == 0 && levels == 0 {
            return Ok(false);
        }
        add_lengths(&self.defs, &self.reps, count, self.column, lengths)?;
        if lengths.len() as u64 > self.chunk.documents {
            check_documents(lengths.len() as u64, self.chunk)?;
        }
        Ok(true)
    }
}

/// Values of 32 bits. The decoder clears what it then writes to, which takes no time in a buffer that
/// stays in the processor's cache.
fn narrow(
    chunk: &Chunk,
    column: &Column,
    bytes: Bytes,
    group: &mut TokenGroup,
    keep: bool,
) -> Result<u64, Failure> {
    let mut rows = Rows::<Int32Type>::new(chunk, column, bytes)?;
    let mut values = Vec::new();
    let mut tokens = 0;
    loop {
        values.clear();
        if !rows.next(&mut values, &mut group.lengths)? {
            return Ok(tokens);
        }
        tokens += values.len() as u64;
        if keep {
            group.tokens.extend_from_slice(&values);
        }
    }
}

/// Values of 64 bits are checked one by one.
fn wide(
    chunk: &Chunk,
    column: &Column,
    bytes: Bytes,
    group: &mut TokenGroup,
    keep: bool,
) -> Result<u64, Failure> {
    let fits = column.ints.fits();
    let mut rows = Rows::<Int64Type>::new(chunk, column, bytes)?;
    let (mut values, mut narrow) = (Vec::new(), Vec::new());
    let mut tokens = 0;
    loop {
        values.clear();
        narrow.clear();
        let first = group.lengths.len();
        if !rows.next(&mut values, &mut group.lengths)? {
            return Ok(tokens);
        }
        tokens += values.len() as u64;
        narrow.extend(values.iter().map_while(|&n| fits(n)));
        let bad = narrow.len();
        if let Some(value) = values.get(bad) {
            let row = row_of(&group.lengths[first..], bad as u64) + first as u64;
            let shown = match column.ints {
                Ints::UInt64 => (*value as u64).to_string(),
                _ => value.to_string(),
            };
            let why = format!(
                "holds {shown}, which does not fit into an int32; drop the row or map its ids, or name another --column"
            );
            return Err(Failure { row: Some(row), why });
        }
        if keep {
            group.tokens.extend_from_slice(&narrow);
        }
    }
}

/// Adds the lengths of the documents that some whole records hold.
fn add_lengths(
    defs: &[i16],
    reps: &[i16],
    values: usize,
    column: &Column,
    out: &mut Vec<u32>,
) -> Result<(), Failure> {
    if reps.first().is_some_and(|&rep| rep != 0) {
        return Err(damaged(Some(out.len() as u64), "a row does not begin where it should"));
    }
    let first = out.len();
    if values == reps.len() {
        // No row is empty, so that each level is a token.
        let mut begin = 0;
        for (number, part) in reps.chunks(PART).enumerate() {
            // Most parts lie within a document, and looking at all of one at once is what vector
            // instructions do.
            if !part.iter().fold(false, |any, &rep| any | (rep == 0)) {
                continue;
            }
            for (at, &rep) in (number * PART..).zip(part) {
                if rep == 0 && at > 0 {
                    out.push((at - begin) as u32);
                    begin = at;
                }
            }
        }
        out.push((reps.len() - begin) as u32);
        return Ok(());
    }
    let mut row = first;
    for (&def, &rep) in defs.iter().zip(reps) {
        if rep == 0 {
            out.push(0);
            row = out.len() - 1;
        }
        if def == column.defined {
            out[row] += 1;
        } else if def >= column.item {
            return Err(failure(Some(row as u64), NULL_ITEM));
        }
    }
    Ok(())
}

/// The document that has the token number `at`.
fn row_of(lengths: &[u32], mut at: u64) -> u64 {
    let place = lengths.iter().position(|&len| {
        let here = at < u64::from(len);
        at = at.saturating_sub(len.into());
        here
    });
    place.unwrap_or(lengths.len()) as u64
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use parquet::data_type::Int32Type;
    use parquet::file::properties::{WriterProperties, WriterVersion};
    use parquet::file::writer::SerializedFileWriter;
    use parquet::schema::parser::parse_message_type;

    use super::*;
    use crate::{Options, ParquetTokens};

    /// One row group of documents of so many tokens; of `None` there is none.
    fn write(path: &Path, lengths: &[Option<usize>], properties: WriterProperties) {
        let schema = "message m { optional group tokens (LIST) { repeated group list { optional int32 element; } } }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let file = std::fs::File::create(path).unwrap();
        let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
        let (mut values, mut defs, mut reps) = (Vec::new(), Vec::new(), Vec::new());
        for len in lengths {
            let tokens = 0..len.unwrap_or(0);
            values.extend(tokens.clone().map(|n| (n * n % 77) as i32));
            defs.extend(tokens.clone().map(|_| 3));
            reps.extend(tokens.clone().map(|n| i16::from(n > 0)));
            if tokens.is_empty() {
                defs.push(i16::from(len.is_some()));
                reps.push(0);
            }
        }
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column.typed::<Int32Type>().write_batch(&values, Some(&defs), Some(&reps)).unwrap();
        column.close().unwrap();
        group.close().unwrap();
        writer.close().unwrap();
    }

    #[test]
    fn what_is_decoded_run_by_run_is_what_the_library_decodes_damaged_or_not() {
        let some: Vec<_> = (0..220).map(|i| Some(1 + i * 7 % 40)).collect();
        let empty: Vec<_> = (0..220).map(|i| (i % 11 > 0).then_some(i % 13)).collect();
        let short = vec![Some(1); 300];
        for version in [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0] {
            for (dictionary, lengths) in
                [(true, &some), (true, &empty), (false, &empty), (true, &short)]
            {
                let dir = tempfile::tempdir().unwrap();
                let path = dir.path().join("x.parquet");
                let properties = WriterProperties::builder()
                    .set_writer_version(version)
                    .set_dictionary_enabled(dictionary)
                    .set_write_batch_size(20)
                    .set_data_page_row_count_limit(90);
                write(&path, lengths, properties.build());
                let options = Options { cache: Some(dir.path().into()), ..Options::default() };
                let source = ParquetTokens::open(path.to_str().unwrap(), &options).unwrap();
                let (chunk, column) = source.first();
                let file = std::fs::read(&path).unwrap();
                let good = &file[chunk.bytes.start as usize..chunk.bytes.end as usize];
                let spare = Spare::new(1);
                let both = |bytes: Vec<u8>| {
                    let bytes = Bytes::from(bytes);
                    let fast = packed::whole(chunk, column, bytes.clone(), &spare);
                    (fast, by_library(chunk, column, bytes, &spare))
                };
                let (fast, slow) = both(good.to_vec());
                assert_eq!(fast.unwrap(), slow.unwrap());
                for at in 0..good.len() {
                    let mut bad = good.to_vec();
                    bad[at] ^= 1 << (at % 8);
                    match both(bad) {
                        (Some(fast), Ok(slow)) => assert_eq!(fast, slow, "{at}"),
                        (Some(_), Err(error)) => panic!("{at}: {error:?}"),
                        (None, _) => {}
                    }
                }
            }
        }
    }
}
