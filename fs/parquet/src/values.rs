//! Values of pages that have no levels any more.

use std::collections::VecDeque;

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::column::reader::{ColumnReaderImpl, get_column_reader, get_typed_column_reader};
use parquet::data_type::{Int32Type, Int64Type};
use parquet::errors::Result as ParquetResult;

use crate::chunk::required;
use crate::column::Ints;

/// Decodes values in order.
pub(crate) struct Values {
    /// The next one.
    pub(crate) at: usize,
    tokens: Vec<i32>,
    reader: Reader,
}

enum Reader {
    Narrow(ColumnReaderImpl<Int32Type>),
    Wide(ColumnReaderImpl<Int64Type>, Vec<i64>, fn(i64) -> Option<i32>),
}

impl Values {
    pub(crate) fn new(ints: Ints, pages: impl PageReader + 'static) -> Option<Values> {
        let reader = get_column_reader(required(ints).ok()?, Box::new(pages));
        let reader = match ints {
            Ints::Int32 | Ints::UInt32 | Ints::Null => {
                Reader::Narrow(get_typed_column_reader(reader))
            }
            Ints::Int64 | Ints::UInt64 => {
                Reader::Wide(get_typed_column_reader(reader), Vec::new(), ints.fits())
            }
        };
        Some(Values { at: 0, tokens: Vec::new(), reader })
    }

    pub(crate) fn skip(&mut self, count: usize) -> Option<()> {
        let skipped = match &mut self.reader {
            Reader::Narrow(reader) => reader.skip_records(count),
            Reader::Wide(reader, ..) => reader.skip_records(count),
        };
        self.at += count;
        (skipped.ok()? == count).then_some(())
    }

    /// Whether all were read, and nothing else is there.
    pub(crate) fn is_at_end(&mut self) -> bool {
        let left = match &mut self.reader {
            Reader::Narrow(reader) => reader.read_records(1, None, None, &mut self.tokens),
            Reader::Wide(reader, values, _) => reader.read_records(1, None, None, values),
        };
        left.is_ok_and(|(records, ..)| records == 0)
    }

    /// So many values; `None` if there are fewer, or they are damaged.
    pub(crate) fn next(&mut self, count: usize) -> Option<&[i32]> {
        self.tokens.clear();
        match &mut self.reader {
            Reader::Narrow(reader) => {
                reader.read_records(count, None, None, &mut self.tokens).ok()?;
            }
            Reader::Wide(reader, values, fits) => {
                values.clear();
                reader.read_records(count, None, None, values).ok()?;
                self.tokens.extend(values.iter().map_while(|&value| fits(value)));
            }
        }
        self.at += count;
        (self.tokens.len() == count).then_some(&self.tokens)
    }
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
