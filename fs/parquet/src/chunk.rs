//! What must be known of a row group to read its token column without the file's footer.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Buf, Bytes};
use parquet::basic::{Compression, Encoding, Repetition, Type as Physical};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::{ChunkReader, Length};
use parquet::file::serialized_reader::SerializedPageReader;
use parquet::schema::types::{ColumnDescPtr, ColumnDescriptor, ColumnPath, Type};
use serde::{Deserialize, Serialize};

use crate::column::{Column, Ints};
use crate::footer::check_pages;
use crate::place::REWRITE;

/// Bytes that any page may take, such as one of a dictionary with more values than are used.
const PAGE: u64 = 16 << 20;
/// Bytes that a page may take for each level of its row group: more than level and value take in any encoding.
const LEVEL: u64 = 32;

/// Bytes that a page may take while it is not known how many tokens the row group has.
const UNCOUNTED: u64 = 256 << 20;

/// The token column's chunk in one row group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Chunk {
    /// The bytes of the file that hold it.
    pub(crate) bytes: Range<u64>,
    /// Where data pages begin; before them a dictionary can lie.
    data: u64,
    /// Rows of the row group, which are documents.
    pub(crate) documents: u64,
    /// Levels: tokens, and one for each row without any.
    pub(crate) levels: u64,
    /// Tokens, or `None` while they have not been counted.
    pub(crate) tokens: Option<u64>,
    codec: Codec,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Codec {
    None,
    Snappy,
    Gzip,
    Brotli,
    Lz4,
    #[serde(rename = "lz4_raw")]
    Lz4Raw,
    Zstd,
}

impl Chunk {
    /// Takes what is needed from a footer. `file_len` is that of the file's data, without footer.
    ///
    /// # Errors
    /// What cannot be right, in words.
    pub(crate) fn new(
        group: &RowGroupMetaData,
        column: &Column,
        file_len: u64,
    ) -> Result<Chunk, String> {
        let chunk = group.column(column.leaf);
        if chunk.file_path().is_some() {
            let why = "has its column in another file, which is not supported; write both as one";
            return Err(why.to_owned());
        }
        let count = |n: i64, what: &str| {
            u64::try_from(n).map_err(|_| format!("says that it has {n} {what}; {REWRITE}"))
        };
        let documents = count(group.num_rows(), "rows")?;
        let levels = count(chunk.num_values(), "values")?;
        if documents == 0 && levels == 0 {
            // There are no pages, and what writers say of where these are is anything.
            let (bytes, tokens) = (4..4, Some(0));
            return Ok(Chunk { bytes, data: 4, documents, levels, tokens, codec: Codec::None });
        }
        let data = count(chunk.data_page_offset(), "as data offset")?;
        let begin = match chunk.dictionary_page_offset() {
            // Some writers leave 0 there, which is the file's magic.
            Some(offset) if offset > 0 => count(offset, "as dictionary offset")?.min(data),
            _ => data,
        };
        let len = count(chunk.compressed_size(), "bytes")?;
        let end = begin.checked_add(len).filter(|&end| end <= file_len && begin >= 4);
        let Some(end) = end else {
            return Err(format!(
                "says that its column lies at byte {begin} and is {len} bytes long, but the file's data end at byte {file_len}; {REWRITE}"
            ));
        };
        let codec = match chunk.compression() {
            Compression::UNCOMPRESSED => Codec::None,
            Compression::SNAPPY => Codec::Snappy,
            Compression::GZIP(_) => Codec::Gzip,
            Compression::BROTLI(_) => Codec::Brotli,
            Compression::LZ4 => Codec::Lz4,
            Compression::LZ4_RAW => Codec::Lz4Raw,
            Compression::ZSTD(_) => Codec::Zstd,
            other => {
                return Err(format!(
                    "is compressed with {other}, which is not supported; write the file with another codec, such as zstd"
                ));
            }
        };
        let tokens = proven_tokens(chunk, column, documents, levels)?;
        Ok(Chunk { bytes: begin..end, data, documents, levels, tokens, codec })
    }

    /// Pages out of `bytes`, which are those of [`Chunk::bytes`].
    pub(crate) fn pages(
        &self,
        bytes: Bytes,
        descr: &ColumnDescPtr,
    ) -> ParquetResult<SerializedPageReader<Piece>> {
        let zstd = Default::default();
        let gzip = Default::default();
        let compression = match self.codec {
            Codec::None => Compression::UNCOMPRESSED,
            Codec::Snappy => Compression::SNAPPY,
            Codec::Gzip => Compression::GZIP(gzip),
            Codec::Brotli => Compression::BROTLI(Default::default()),
            Codec::Lz4 => Compression::LZ4,
            Codec::Lz4Raw => Compression::LZ4_RAW,
            Codec::Zstd => Compression::ZSTD(zstd),
        };
        let most = PAGE.saturating_add(self.levels.saturating_mul(LEVEL));
        // Until they are counted, levels are only what the footer says.
        let most = if self.tokens.is_none() { most.min(UNCOUNTED) } else { most };
        check_pages(&bytes, most).map_err(ParquetError::General)?;
        let signed = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let meta = ColumnChunkMetaData::builder(descr.clone())
            .set_compression(compression)
            .set_encodings(vec![Encoding::PLAIN])
            .set_num_values(signed(self.levels))
            .set_data_page_offset(signed(self.data))
            .set_dictionary_page_offset(
                (self.bytes.start < self.data).then(|| signed(self.bytes.start)),
            )
            .set_total_compressed_size(signed(self.bytes.end - self.bytes.start))
            .build()?;
        let piece = Piece { begin: self.bytes.start, bytes };
        let rows = usize::try_from(self.documents).unwrap_or(usize::MAX);
        SerializedPageReader::new(Arc::new(piece), &meta, rows, None)
    }
}

/// The number of tokens, if the footer proves it.
fn proven_tokens(
    chunk: &ColumnChunkMetaData,
    column: &Column,
    documents: u64,
    levels: u64,
) -> Result<Option<u64>, String> {
    if levels < documents {
        return Err(format!(
            "says that it has {documents} rows but only {levels} values; {REWRITE}"
        ));
    }
    let Some(histogram) = chunk.definition_level_histogram() else {
        return Ok(None);
    };
    let counts = histogram.values();
    let sum = counts.iter().try_fold(0u64, |sum, &n| sum.checked_add(u64::try_from(n).ok()?));
    if counts.len() != column.defined as usize + 1 || sum != Some(levels) {
        return Ok(None);
    }
    // Null items are for the scan to find, which can name the row.
    let nulls = &counts[column.item as usize..column.defined as usize];
    if nulls.iter().any(|&n| n != 0) {
        return Ok(None);
    }
    let tokens = counts[column.defined as usize] as u64;
    too_many_levels(levels, tokens, documents).map_or(Ok(Some(tokens)), Err)
}

/// What is said of more levels than documents and tokens can have: each level is a token, or a document
/// without any. Else levels, which are decoded to be looked at, could take any memory.
pub(crate) fn too_many_levels(levels: u64, tokens: u64, documents: u64) -> Option<String> {
    (levels.saturating_sub(tokens) > documents).then(|| {
        format!(
            "says that it has {levels} values, and {documents} rows with {tokens} tokens have no more than {}; it is damaged, write it again",
            tokens.saturating_add(documents)
        )
    })
}

/// A description of the column that is enough to decode it.
pub(crate) fn descriptor(column: &Column) -> ParquetResult<ColumnDescPtr> {
    leaf(column.ints, Repetition::REPEATED, (column.defined, 1))
}

/// A description of values without levels.
pub(crate) fn required(ints: Ints) -> ParquetResult<ColumnDescPtr> {
    leaf(ints, Repetition::REQUIRED, (0, 0))
}

fn leaf(ints: Ints, repetition: Repetition, levels: (i16, i16)) -> ParquetResult<ColumnDescPtr> {
    let physical = match ints {
        Ints::Int32 | Ints::UInt32 | Ints::Null => Physical::INT32,
        Ints::Int64 | Ints::UInt64 => Physical::INT64,
    };
    let leaf =
        Type::primitive_type_builder("item", physical).with_repetition(repetition).build()?;
    let path = ColumnPath::new(vec!["item".to_owned()]);
    Ok(Arc::new(ColumnDescriptor::new(Arc::new(leaf), levels.0, levels.1, path)))
}

/// Some bytes of a file, at the offsets that they have in it.
pub(crate) struct Piece {
    begin: u64,
    bytes: Bytes,
}

impl Length for Piece {
    fn len(&self) -> u64 {
        self.begin + self.bytes.len() as u64
    }
}

impl ChunkReader for Piece {
    type T = bytes::buf::Reader<Bytes>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let from = self.offset(start)?;
        Ok(self.bytes.slice(from..).reader())
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let from = self.offset(start)?;
        match from.checked_add(length) {
            Some(end) if end <= self.bytes.len() => Ok(self.bytes.slice(from..end)),
            _ => Err(ParquetError::EOF(format!("a page of {length} bytes ends behind the column"))),
        }
    }
}

impl Piece {
    fn offset(&self, start: u64) -> ParquetResult<usize> {
        start
            .checked_sub(self.begin)
            .and_then(|at| usize::try_from(at).ok())
            .filter(|&at| at <= self.bytes.len())
            .ok_or_else(|| ParquetError::EOF("a page lies outside of the column".to_owned()))
    }
}
