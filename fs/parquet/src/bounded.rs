//! Pages of which the library decodes no more levels than the footer says that there are: it makes room for all
//! levels of a row at once, and a run of some bytes can have thousands of millions.

use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result as ParquetResult};
use parquet::file::serialized_reader::SerializedPageReader;

use crate::chunk::{Chunk, Piece};

pub(crate) struct Bounded {
    pages: SerializedPageReader<Piece>,
    /// Levels that may still come.
    left: u64,
    /// Nothing bounds the levels but the bytes that they are made of.
    uncounted: bool,
}

impl Bounded {
    pub(crate) fn new(pages: SerializedPageReader<Piece>, chunk: &Chunk) -> Bounded {
        Bounded { pages, left: chunk.levels, uncounted: chunk.tokens.is_none() }
    }
}

impl Iterator for Bounded {
    type Item = ParquetResult<Page>;

    fn next(&mut self) -> Option<Self::Item> {
        self.get_next_page().transpose()
    }
}

impl PageReader for Bounded {
    fn get_next_page(&mut self) -> ParquetResult<Option<Page>> {
        let Some(page) = self.pages.get_next_page()? else { return Ok(None) };
        if page.is_data_page() {
            let levels = u64::from(page.num_values());
            let left = self.left.checked_sub(levels);
            self.left = left.ok_or_else(|| {
                ParquetError::General("it has more values than its footer says".to_owned())
            })?;
            // A level that is in no run takes a bit.
            if self.uncounted && levels > 8 * page.buffer().len() as u64 {
                let why = format!("the levels of a page of {levels} values are not in order");
                return Err(ParquetError::General(why));
            }
        }
        Ok(Some(page))
    }

    fn peek_next_page(&mut self) -> ParquetResult<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> ParquetResult<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> ParquetResult<bool> {
        self.pages.at_record_boundary()
    }
}
