//! `.npy` files that cannot be read in place: Fortran order and big-endian.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use batchfs_store::{DType, Error, GuardedFile, Layout, Result, Rows, Schema, Stream, check_ids};

use crate::NpyFile;
use crate::npy::Opened;

/// Opens a `.npy` file in any order of axes and bytes as a stream of what it holds. Records that
/// follow one another are best asked for together, as many as there is memory for: a file in
/// Fortran order has the values of one record all over it.
///
/// # Errors
/// Those of [`NpyFile::open_as`], but for the two orders.
pub fn convert_npy(path: impl AsRef<Path>, dtype: Option<DType>) -> Result<Box<dyn Stream>> {
    let opened = Opened::new(path.as_ref(), dtype)?;
    if !opened.fortran && !opened.swapped {
        return Ok(Box::new(NpyFile::from_opened(opened)?));
    }
    let Opened { path, file, schema, records, item, start, fortran, swapped, modified } = opened;
    let body = match fortran {
        true => Body::Columns { file, start },
        false => Body::Rows(Rows::single(file, start, records, item)?),
    };
    let swap = swapped.then(|| swap_unit(schema.dtype));
    Ok(Box::new(Converted { schema, records, item, body, swap, path, modified }))
}

/// Bytes that change places with each other: those of an element, or of a complex one's parts.
pub(crate) fn swap_unit(dtype: DType) -> usize {
    match dtype {
        DType::Complex64 | DType::Complex128 => dtype.size() / 2,
        _ => dtype.size(),
    }
}

/// Turns the bytes of every `unit` round.
pub(crate) fn swap(bytes: &mut [u8], unit: usize) {
    match unit {
        2 => swap_of::<2>(bytes),
        4 => swap_of::<4>(bytes),
        8 => swap_of::<8>(bytes),
        _ => bytes.chunks_exact_mut(unit).for_each(<[u8]>::reverse),
    }
}

fn swap_of<const N: usize>(bytes: &mut [u8]) {
    // Of a length that is known: a loop of swaps that the compiler makes wide.
    bytes.as_chunks_mut::<N>().0.iter_mut().for_each(|unit| unit.reverse());
}

struct Converted {
    schema: Schema,
    records: u64,
    item: usize,
    body: Body,
    swap: Option<usize>,
    path: PathBuf,
    modified: SystemTime,
}

enum Body {
    Rows(Rows),
    /// Element `i` of all records lies together, then the next one of all records.
    Columns {
        file: GuardedFile,
        start: u64,
    },
}

/// Bytes of a column that are read at a time: some cache lines.
const TILE: usize = 128;
/// Columns that are turned at a time.
const COLUMNS: usize = 64;

impl Converted {
    /// Copies the records `ids` of a file in Fortran order to `out`.
    fn transpose(
        &self,
        file: &GuardedFile,
        start: u64,
        ids: Range<u64>,
        out: &mut [u8],
    ) -> Result<()> {
        let read = |at: u64, column: &mut [u8]| {
            file.copy_to(start + at, column);
            Ok(())
        };
        let size = self.schema.dtype.size();
        self.tiles(ids.clone(), TILE / size, out, read)?;
        if file.damaged() {
            // Whole columns of what is wanted at a time: each takes system calls.
            let most = (ids.end - ids.start) as usize;
            self.tiles(ids, most, out, |at, column| file.read_at(start + at, column))?;
        }
        Ok(())
    }

    /// Takes `most` records at a time; `read` gives bytes of the data.
    fn tiles(
        &self,
        ids: Range<u64>,
        most: usize,
        out: &mut [u8],
        read: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let size = self.schema.dtype.size();
        let firsts = ids.step_by(most.max(1));
        for (first, out) in firsts.zip(out.chunks_mut(most.max(1) * self.item)) {
            match size {
                1 => self.tile::<1>(first, out, &read)?,
                2 => self.tile::<2>(first, out, &read)?,
                4 => self.tile::<4>(first, out, &read)?,
                8 => self.tile::<8>(first, out, &read)?,
                _ => self.tile::<16>(first, out, &read)?,
            }
        }
        Ok(())
    }

    /// The records from `first` on that `out` has room for, of elements of `N` bytes: some columns
    /// are read, then turned into as many elements of each record.
    fn tile<const N: usize>(
        &self,
        first: u64,
        out: &mut [u8],
        read: &impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let Layout::Dense { item_shape } = &self.schema.layout else { return Ok(()) };
        let height = out.len() / self.item * N;
        let mut columns = vec![0; COLUMNS * height];
        let mut places = Columns::new(item_shape);
        for element in (0..self.item / N).step_by(COLUMNS) {
            let width = COLUMNS.min(self.item / N - element);
            for column in columns.chunks_exact_mut(height).take(width) {
                read((places.next() * self.records + first) * N as u64, column)?;
            }
            for (row, record) in out.chunks_exact_mut(self.item).enumerate() {
                let record = &mut record[element * N..(element + width) * N];
                let values = columns.as_chunks::<N>().0[row..].iter().step_by(height / N);
                for (to, value) in record.as_chunks_mut::<N>().0.iter_mut().zip(values) {
                    *to = *value;
                }
            }
        }
        Ok(())
    }
}

/// The columns in which the elements of a record are, in the order that the record has them in.
struct Columns<'a> {
    shape: &'a [u64],
    /// The axes of the element whose column is `at`, the last one moving fastest.
    axes: Vec<u64>,
    at: u64,
}

impl<'a> Columns<'a> {
    fn new(shape: &'a [u64]) -> Self {
        Self { shape, axes: vec![0; shape.len()], at: 0 }
    }

    fn next(&mut self) -> u64 {
        let column = self.at;
        let mut stride: u64 = self.shape.iter().product();
        for (axis, len) in self.axes.iter_mut().zip(self.shape).rev() {
            stride /= len;
            *axis += 1;
            self.at += stride;
            if *axis < *len {
                break;
            }
            self.at -= stride * len;
            *axis = 0;
        }
        column
    }
}

impl Stream for Converted {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.records
    }

    fn gather(&self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        match &self.body {
            Body::Rows(rows) => rows.gather(ids, out)?,
            Body::Columns { file, start } => {
                if ids.len().checked_mul(self.item) != Some(out.len()) {
                    let why = format!("the buffer has {} bytes, not those asked for", out.len());
                    return Err(Error::Invalid { path: self.path.clone(), why });
                }
                check_ids(&self.path, ids, self.records)?;
                let mut rest = &mut *out;
                for run in ids.chunk_by(|a, b| a + 1 == *b) {
                    let (now, later) = rest.split_at_mut(run.len() * self.item);
                    self.transpose(file, *start, run[0]..run[0] + run.len() as u64, now)?;
                    rest = later;
                }
            }
        }
        if let Some(unit) = self.swap {
            swap(out, unit);
        }
        Ok(())
    }

    fn origin(&self) -> &Path {
        &self.path
    }

    /// The file's time of change when it was opened.
    fn modified(&self) -> SystemTime {
        self.modified
    }
}
