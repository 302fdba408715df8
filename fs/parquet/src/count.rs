//! The tokens of a chunk whose footer does not prove how many it has: by the levels alone, and without keeping
//! anything of them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;

use crate::chunk::{Chunk, descriptor, too_many_levels};
use crate::column::Column;
use crate::decode::{Failure, NULL_ITEM, check_documents, count_by_library, failure};
use crate::levels::{Documents, Wrong, add_lengths, begins_document};
use crate::stripped::Parts;

/// Counts the tokens of the chunk whose bytes these are.
pub(crate) fn count(chunk: &Chunk, column: &Column, bytes: Bytes) -> Result<u64, Failure> {
    // The library has panicked on damaged pages before now.
    let counted = catch_unwind(AssertUnwindSafe(|| by_levels(chunk, column, bytes.clone())));
    let counted = counted.unwrap_or(Ok(None))?;
    let tokens = counted.map_or_else(|| count_by_library(chunk, column, bytes), Ok)?;
    match too_many_levels(chunk.levels, tokens, chunk.documents) {
        None => Ok(tokens),
        Some(why) => Err(failure(None, why)),
    }
}

/// Nothing if it is for the library to say what the pages are.
fn by_levels(chunk: &Chunk, column: &Column, bytes: Bytes) -> Result<Option<u64>, Failure> {
    let mut documents = Documents::new(chunk.documents, None);
    let (mut levels, mut tokens) = (0, 0);
    for page in chunk.pages(bytes, &descriptor(column)?)? {
        let page = page?;
        if page.is_dictionary_page() {
            continue;
        }
        let Some(parts) = Parts::of(&page) else { return Ok(None) };
        let count = page.num_values() as usize;
        levels += count as u64;
        let torn = parts.nulls.is_some() && count > 0 && !begins_document(&parts.reps, count);
        if levels > chunk.levels || torn {
            return Ok(None);
        }
        match add_lengths(&parts.reps, &parts.defs, count, column, &mut documents) {
            Ok(here) => tokens += here as u64,
            Err(Wrong::Null(row)) => return Err(failure(Some(row), NULL_ITEM)),
            Err(Wrong::Documents) => break,
            Err(Wrong::Disorder) => return Ok(None),
        }
    }
    check_documents(documents.count, chunk)?;
    Ok(Some(tokens))
}
