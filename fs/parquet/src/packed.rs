//! Row groups of which little is needed at once: the documents are known, and values stay encoded until
//! they are asked for.
//!
//! What is not all in order is no such row group: the decoder of whole ones says what is wrong.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use batchfs_store::{Buffer, PackedGroup, Spare, TokenGroup, TokenVec};
use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageReader as _};

use crate::chunk::Chunk;
use crate::column::{Column, Ints};
use crate::dictionary::Dictionary;
use crate::stripped::{Seen, Stripped};
use crate::values::{Pages, Values, values_page};

/// Pages whose levels were read, and the lengths that these say.
pub(crate) struct Packed {
    ints: Ints,
    dictionary: Option<Arc<Dictionary>>,
    /// The values of each page.
    pages: Vec<Page>,
    lengths: Vec<u32>,
    tokens: usize,
    spare: Arc<Spare>,
    /// Where the last piece ended: those of a step come in order.
    cursor: Mutex<Option<Values<Pages>>>,
}

impl std::fmt::Debug for Packed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Packed").field("tokens", &self.tokens).finish_non_exhaustive()
    }
}

/// The most that a packed row group may take: what its documents and tokens take when it is decoded.
pub(crate) fn most(chunk: &Chunk) -> u64 {
    let tokens = TokenVec::bytes_of(chunk.tokens.unwrap_or(0));
    tokens.saturating_add(chunk.documents.saturating_mul(16))
}

/// Reads the levels of the chunk whose bytes these are. `None` if anything is out of order, of a kind that
/// is not known here, or takes more than `most` bytes.
pub(crate) fn pack(
    chunk: &Chunk,
    column: &Column,
    bytes: Bytes,
    spare: &Arc<Spare>,
    most: u64,
) -> Option<Packed> {
    // The library has panicked on damaged pages before now.
    catch_unwind(AssertUnwindSafe(|| read_levels(chunk, column, bytes, spare, most))).ok().flatten()
}

fn read_levels(
    chunk: &Chunk,
    column: &Column,
    bytes: Bytes,
    spare: &Arc<Spare>,
    most: u64,
) -> Option<Packed> {
    let seen = Arc::default();
    let mut reader = Stripped::new(chunk, column, bytes, &seen)?;
    let (mut size, mut dictionary, mut values) = (0, None, KeptValues::default());
    while let Some(page) = reader.get_next_page().ok()? {
        size += page.buffer().len() as u64;
        if page.is_dictionary_page() {
            // Its values are decoded to be read.
            size += page.buffer().len() as u64;
        }
        // Tokens of 64 bits take half as much when they are decoded.
        let wide = column.ints.wide() && page.encoding() == Encoding::PLAIN;
        if size > most || (wide && page.is_data_page()) {
            return None;
        }
        if page.is_dictionary_page() {
            let decoded = Dictionary::new(&page, column.ints)?;
            if dictionary.replace(Arc::new(decoded)).is_some() {
                return None;
            }
            continue;
        }
        let tokens = page.num_values();
        let all = chunk.tokens.unwrap_or(0) as f64 / f64::from(tokens);
        values.keep(page.encoding(), tokens, page.buffer().clone(), spare, (all, most));
    }
    let (lengths, tokens) = Seen::all(&seen, chunk)?;
    Some(Packed {
        ints: column.ints,
        dictionary,
        pages: values.pages().collect(),
        lengths,
        tokens,
        spare: spare.clone(),
        cursor: Mutex::default(),
    })
}

/// Decodes the chunk whose bytes these are at once, page by page. `None` as for [`pack`].
pub(crate) fn whole(
    chunk: &Chunk,
    column: &Column,
    bytes: Bytes,
    spare: &Arc<Spare>,
) -> Option<TokenGroup> {
    let decode = || {
        let seen = Arc::default();
        let pages = Stripped::new(chunk, column, bytes, &seen)?;
        let mut values = Values::new(column.ints, None, pages);
        let count = usize::try_from(chunk.tokens?).ok()?;
        let mut tokens = spare.tokens(count.min(1 << 28));
        while values.at < count {
            values.next(count - values.at)?.add_to(&mut tokens);
        }
        // There may be more, or what is damaged.
        values.is_at_end().then_some(())?;
        let (lengths, _) = Seen::all(&seen, chunk)?;
        Some(TokenGroup { tokens, lengths })
    };
    catch_unwind(AssertUnwindSafe(decode)).ok().flatten()
}

/// The values of pages, copied into one piece of memory in huge pages. Decompressed into memory of the C
/// library, each page would take a fifth of its time in page faults.
#[derive(Default)]
struct KeptValues {
    memory: Option<Buffer>,
    /// Encoding, tokens, and where the values lie; or the values, if there was no room.
    pages: Vec<(Encoding, u32, Result<Range<usize>, Bytes>)>,
}

impl KeptValues {
    /// Keeps the values of a page. There are `all` times as many tokens in all pages, and `most` bytes at
    /// the most.
    fn keep(
        &mut self,
        encoding: Encoding,
        tokens: u32,
        values: Bytes,
        spare: &Arc<Spare>,
        (all, most): (f64, u64),
    ) {
        let memory = self.memory.get_or_insert_with(|| {
            // Pages differ a little.
            let bytes = (values.len() as f64 * all * 1.05).min(most as f64);
            spare.buffer((bytes as usize).min(1 << 30))
        });
        let from = memory.len();
        let place = match memory.extend_from_slice(&values) {
            true => Ok(from..from + values.len()),
            false => Err(values),
        };
        self.pages.push((encoding, tokens, place));
    }

    fn pages(self) -> impl Iterator<Item = Page> {
        let memory = self.memory.map_or_else(Bytes::new, |memory| Bytes::from_owner(Kept(memory)));
        self.pages.into_iter().map(move |(encoding, tokens, place)| {
            let buf = place.map_or_else(|own| own, |place| memory.slice(place));
            values_page(buf, tokens, encoding)
        })
    }
}

struct Kept(Buffer);

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl Packed {
    fn values(&self) -> Values<Pages> {
        Values::new(self.ints, self.dictionary.clone(), Pages(self.pages.clone().into()))
    }

    fn copy_piece(&self, from: usize, out: &mut [u8]) -> Option<()> {
        let mut cursor = self.cursor.lock().unwrap_or_else(PoisonError::into_inner);
        // Taken out, so that nothing goes on behind damage.
        let values = cursor.take().filter(|values| values.at <= from);
        let mut values = values.unwrap_or_else(|| self.values());
        values.skip(from - values.at)?;
        let mut rest = out;
        while !rest.is_empty() {
            let tokens = values.next(rest.len() / 4)?;
            let (now, later) = rest.split_at_mut_checked(4 * tokens.len())?;
            tokens.write(now);
            rest = later;
        }
        *cursor = Some(values);
        Some(())
    }

    fn unpack_all(&self) -> Option<TokenGroup> {
        let mut values = self.values();
        let mut group =
            TokenGroup { tokens: self.spare.tokens(self.tokens), lengths: self.lengths.clone() };
        while values.at < self.tokens {
            values.next(self.tokens - values.at)?.add_to(&mut group.tokens);
        }
        Some(group)
    }
}

impl PackedGroup for Packed {
    fn lengths(&self) -> &[u32] {
        &self.lengths
    }

    fn copy(&self, from: usize, out: &mut [u8]) -> bool {
        // The library has panicked on damaged pages before now.
        catch_unwind(AssertUnwindSafe(|| self.copy_piece(from, out))).ok().flatten().is_some()
    }

    fn unpack(&self) -> Option<TokenGroup> {
        catch_unwind(AssertUnwindSafe(|| self.unpack_all())).ok().flatten()
    }
}
