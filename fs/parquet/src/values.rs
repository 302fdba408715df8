//! Values of pages that have no levels any more.
//!
//! Nearly all tokens are places in a dictionary, or lie in a page as they are. These are decoded here, in
//! 16 bits where they fit; the library decodes the rest.

use std::collections::VecDeque;
use std::sync::Arc;

use batchfs_store::{TokenVec, write_wide};
use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReaderImpl, get_column_reader, get_typed_column_reader};
use parquet::data_type::{Int32Type, Int64Type};
use parquet::errors::Result as ParquetResult;

use crate::chunk::required;
use crate::column::Ints;
use crate::dictionary::{Dictionary, Places};

/// Values that are decoded at a time: they stay in the processor's cache.
const VALUES: usize = 8 << 10;

/// Decodes the values of pages in order. What is not in order, or damaged, is `None`.
pub(crate) struct Values<P> {
    /// The next one.
    pub(crate) at: usize,
    ints: Ints,
    dictionary: Option<Arc<Dictionary>>,
    pages: P,
    page: Decoder,
    /// Values that the page still has.
    left: usize,
    narrow: Vec<u16>,
    wide: Vec<i32>,
}

/// Some tokens: in 16 bits if all that there can be fit into these.
pub(crate) enum Tokens<'a> {
    Narrow(&'a [u16]),
    Wide(&'a [i32]),
}

impl Tokens<'_> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Tokens::Narrow(tokens) => tokens.len(),
            Tokens::Wide(tokens) => tokens.len(),
        }
    }

    pub(crate) fn add_to(&self, all: &mut TokenVec) {
        match self {
            Tokens::Narrow(tokens) => all.extend_from_narrow(tokens),
            Tokens::Wide(tokens) => all.extend_from_slice(tokens),
        }
    }

    /// Writes them to `out`, which has room for them, as little-endian bytes.
    pub(crate) fn write(&self, out: &mut [u8]) {
        match self {
            Tokens::Narrow(tokens) => write_wide(tokens, out),
            Tokens::Wide(tokens) => out.copy_from_slice(bytemuck::cast_slice(tokens)),
        }
    }
}

enum Decoder {
    Places(Places),
    Plain(Bytes),
    Narrow(ColumnReaderImpl<Int32Type>),
    Wide(ColumnReaderImpl<Int64Type>, Vec<i64>),
}

impl<P: PageReader> Values<P> {
    /// The values of `pages`. The `dictionary` is one of these pages unless it is known.
    pub(crate) fn new(ints: Ints, dictionary: Option<Arc<Dictionary>>, pages: P) -> Values<P> {
        let page = Decoder::Plain(Bytes::new());
        let (narrow, wide) = (Vec::new(), Vec::new());
        Values { at: 0, ints, dictionary, pages, page, left: 0, narrow, wide }
    }

    /// Goes to the next page if this one has no values left.
    fn turn(&mut self) -> Option<()> {
        while self.left == 0 {
            let page = self.pages.get_next_page().ok()??;
            if page.is_dictionary_page() {
                let dictionary = Dictionary::new(&page, self.ints)?;
                if self.dictionary.replace(Arc::new(dictionary)).is_some() {
                    return None;
                }
                continue;
            }
            self.left = page.num_values() as usize;
            self.page = self.decoder(page)?;
        }
        Some(())
    }

    fn decoder(&self, page: Page) -> Option<Decoder> {
        let places =
            matches!(page.encoding(), Encoding::RLE_DICTIONARY | Encoding::PLAIN_DICTIONARY);
        if places {
            return Places::new(page.buffer().clone(), self.left).map(Decoder::Places);
        }
        if page.encoding() == Encoding::PLAIN {
            return Some(Decoder::Plain(page.buffer().clone()));
        }
        let pages = Pages(VecDeque::from([page]));
        let reader = get_column_reader(required(self.ints).ok()?, Box::new(pages));
        Some(match self.ints.wide() {
            false => Decoder::Narrow(get_typed_column_reader(reader)),
            true => Decoder::Wide(get_typed_column_reader(reader), Vec::new()),
        })
    }

    pub(crate) fn skip(&mut self, mut count: usize) -> Option<()> {
        while count > 0 {
            self.turn()?;
            let now = count.min(self.left);
            match &mut self.page {
                // The rest of a page is not looked at.
                _ if now == self.left => {}
                Decoder::Places(places) => places.skip(now)?,
                Decoder::Plain(bytes) => drop(split(bytes, self.ints, now)?),
                Decoder::Narrow(reader) => {
                    (reader.skip_records(now).ok()? == now).then_some(())?;
                }
                Decoder::Wide(reader, _) => {
                    (reader.skip_records(now).ok()? == now).then_some(())?;
                }
            }
            self.at += now;
            self.left -= now;
            count -= now;
        }
        Some(())
    }

    /// Whether all were read, and nothing else is there.
    pub(crate) fn is_at_end(&mut self) -> bool {
        self.left == 0 && matches!(self.pages.get_next_page(), Ok(None))
    }

    /// The next ones, up to so many; there is one at least if there are any.
    pub(crate) fn next(&mut self, count: usize) -> Option<Tokens<'_>> {
        self.turn()?;
        let count = count.min(self.left).min(VALUES);
        self.at += count;
        self.left -= count;
        if let Decoder::Places(places) = &mut self.page {
            let dictionary = self.dictionary.as_ref()?;
            return dictionary.tokens(places, count, &mut self.narrow, &mut self.wide);
        }
        self.wide.clear();
        match &mut self.page {
            Decoder::Places(_) => {}
            Decoder::Plain(bytes) => {
                let bytes = split(bytes, self.ints, count)?;
                match self.ints.wide() {
                    false => self.wide.extend(words(&bytes)),
                    true => self.wide.extend(plain(&bytes, self.ints).map_while(|token| token)),
                }
            }
            Decoder::Narrow(reader) => {
                reader.read_records(count, None, None, &mut self.wide).ok()?;
            }
            Decoder::Wide(reader, values) => {
                values.clear();
                reader.read_records(count, None, None, values).ok()?;
                let fits = self.ints.fits();
                self.wide.extend(values.iter().map_while(|&value| fits(value)));
            }
        }
        (self.wide.len() == count).then_some(Tokens::Wide(&self.wide))
    }
}

/// The bytes of the next values that lie as they are.
pub(crate) fn split(bytes: &mut Bytes, ints: Ints, count: usize) -> Option<Bytes> {
    let size = if ints.wide() { size_of::<i64>() } else { size_of::<i32>() };
    let len = count.checked_mul(size).filter(|&len| len <= bytes.len())?;
    Some(bytes.split_to(len))
}

/// Values that lie as they are; of 64 bits those that are tokens.
pub(crate) fn plain(bytes: &[u8], ints: Ints) -> impl Iterator<Item = Option<i32>> {
    let (narrow, wide) = if ints.wide() { (&[][..], bytes) } else { (bytes, &[][..]) };
    let fits = ints.fits();
    let wide = wide.as_chunks().0.iter().map(move |&value| fits(i64::from_le_bytes(value)));
    words(narrow).map(Some).chain(wide)
}

fn words(bytes: &[u8]) -> impl Iterator<Item = i32> {
    bytes.as_chunks().0.iter().map(|&value| i32::from_le_bytes(value))
}

/// Pages in memory.
pub(crate) struct Pages(pub(crate) VecDeque<Page>);

impl Iterator for Pages {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.pop_front().map(Ok)
    }
}

impl PageReader for Pages {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        Ok(self.0.pop_front())
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        let meta = |page: &Page| {
            let count = Some(page.num_values() as usize);
            let is_dict = page.is_dictionary_page();
            PageMetadata { num_rows: count.filter(|_| !is_dict), num_levels: count, is_dict }
        };
        Ok(self.0.front().map(meta))
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.0.pop_front();
        Ok(())
    }
}

/// A page without levels.
pub(crate) fn values_page(buf: Bytes, num_values: u32, encoding: Encoding) -> Page {
    let (def_level_encoding, rep_level_encoding) = (Encoding::RLE, Encoding::RLE);
    let statistics = None;
    Page::DataPage { buf, num_values, encoding, def_level_encoding, rep_level_encoding, statistics }
}
