//! Pages without their levels, which say how long documents are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::serialized_reader::SerializedPageReader;

use crate::chunk::{Chunk, Piece, descriptor};
use crate::column::Column;
use crate::levels::{Documents, add_lengths, begins_document};
use crate::values::values_page;

/// What the levels of the pages said so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    documents: Documents,
    levels: u64,
    tokens: usize,
}

impl Seen {
    fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
        seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lengths and number of tokens after the last page, if they are those of the footer.
    pub(crate) fn all(seen: &Mutex<Seen>, chunk: &Chunk) -> Option<(Vec<u32>, usize)> {
        let seen = std::mem::take(&mut *Seen::lock(seen));
        let same = seen.levels == chunk.levels
            && seen.documents.count == chunk.documents
            && chunk.tokens == Some(seen.tokens as u64);
        seen.documents.lengths.filter(|_| same).map(|lengths| (lengths, seen.tokens))
    }
}

/// The pages of a chunk: a dictionary, if there is one, and those that have values. An error is all that is
/// not in order.
pub(crate) struct Stripped {
    pages: SerializedPageReader<Piece>,
    column: Column,
    most_levels: u64,
    seen: Arc<Mutex<Seen>>,
}

impl Stripped {
    pub(crate) fn new(
        chunk: &Chunk,
        column: &Column,
        bytes: Bytes,
        seen: &Arc<Mutex<Seen>>,
    ) -> Option<Stripped> {
        let descr = descriptor(column).ok()?;
        let believed = usize::try_from(chunk.documents.min(1 << 24)).ok()?;
        let lengths = Some(Vec::with_capacity(believed));
        Seen::lock(seen).documents = Documents::new(chunk.documents, lengths);
        Some(Stripped {
            pages: chunk.pages(bytes, &descr).ok()?,
            column: column.clone(),
            most_levels: chunk.levels,
            seen: seen.clone(),
        })
    }

    /// The page's values, or `None` if something is out of order.
    fn strip(&self, page: &Page) -> Option<(Bytes, usize)> {
        let parts = Parts::of(page)?;
        let mut seen = Seen::lock(&self.seen);
        let count = page.num_values() as usize;
        seen.levels += count as u64;
        if count == 0 || seen.levels > self.most_levels {
            return None;
        }
        if parts.nulls.is_some() && !begins_document(&parts.reps, count) {
            return None;
        }
        let documents = &mut seen.documents;
        let here = add_lengths(&parts.reps, &parts.defs, count, &self.column, documents).ok()?;
        if parts.nulls.is_some_and(|nulls| nulls + here != count) {
            return None;
        }
        seen.tokens += here;
        Some((parts.values, here))
    }
}

impl Iterator for Stripped {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Stripped {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        let disorder = || ParquetError::General("a page is not in order".to_owned());
        while let Some(page) = self.pages.get_next_page()? {
            if page.is_dictionary_page() {
                return match Seen::lock(&self.seen).levels {
                    0 => Ok(Some(page)),
                    _ => Err(disorder()),
                };
            }
            let (values, tokens) = self.strip(&page).ok_or_else(disorder)?;
            if tokens > 0 {
                let tokens = u32::try_from(tokens).map_err(|_| disorder())?;
                return Ok(Some(values_page(values, tokens, page.encoding())));
            }
        }
        Ok(None)
    }

    // Only to skip, and nothing is.
    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        Err(ParquetError::NYI("pages are read in order".to_owned()))
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        Err(ParquetError::NYI("pages are read in order".to_owned()))
    }
}

/// What a data page is made of.
pub(crate) struct Parts {
    pub(crate) reps: Bytes,
    pub(crate) defs: Bytes,
    values: Bytes,
    /// Levels without a value, if the page says so. Then it begins with a document, too.
    pub(crate) nulls: Option<usize>,
}

impl Parts {
    /// Of a page whose levels are runs; `None` for others.
    pub(crate) fn of(page: &Page) -> Option<Parts> {
        let split = |bytes: &Bytes, at: usize| {
            (at <= bytes.len()).then(|| (bytes.slice(..at), bytes.slice(at..)))
        };
        match page {
            Page::DataPage { buf, def_level_encoding, rep_level_encoding, .. } => {
                if (*rep_level_encoding, *def_level_encoding) != (Encoding::RLE, Encoding::RLE) {
                    return None;
                }
                let levels = |bytes: &Bytes| {
                    let len = u32::from_le_bytes(bytes.get(..4)?.try_into().ok()?);
                    split(&bytes.slice(4..), usize::try_from(len).ok()?)
                };
                let (reps, rest) = levels(buf)?;
                let (defs, values) = levels(&rest)?;
                Some(Parts { reps, defs, values, nulls: None })
            }
            Page::DataPageV2 {
                buf, num_nulls, def_levels_byte_len, rep_levels_byte_len, ..
            } => {
                let (reps, rest) = split(buf, *rep_levels_byte_len as usize)?;
                let (defs, values) = split(&rest, *def_levels_byte_len as usize)?;
                Some(Parts { reps, defs, values, nulls: Some(*num_nulls as usize) })
            }
            Page::DictionaryPage { .. } => None,
        }
    }
}
