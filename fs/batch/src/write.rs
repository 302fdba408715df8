//! The other way to fill a region: into its file, without a mapping.

use std::cell::RefCell;
use std::io;

use batchfs_region::RegionMut;
use batchfs_store::Stream;

use crate::gather::{Failure, no_step, offsets, put, shapes, step, stream};
use crate::layout::Fill;
use crate::{Layout, View};

/// Bytes that are put together in a buffer and then written: so few that they are still in the
/// processor's cache then, and so many that the file gets large pages.
const CHUNK: usize = 1 << 20;

thread_local! {
    /// Kept, since touching new memory costs more than the copy.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Fills `region`, which is `layout.size` long, on this thread.
///
/// # Errors
/// The first failure that was met; what `region` holds then is unspecified.
pub(crate) fn write(
    view: &View,
    number: u64,
    ids: &[u64],
    layout: &Layout,
    region: &mut RegionMut,
) -> Result<(), Failure> {
    let step = step(view, layout, number)?;
    BUFFER.with_borrow_mut(|buffer| {
        buffer.resize(2 * CHUNK, 0);
        let mut out = Writer { region, buffer, used: 0, at: 0 };
        out.bytes(&layout.header)?;
        for array in &layout.arrays {
            out.zeros(array.offset - out.end())?;
            match array.fill {
                Fill::Records(s) => records(stream(view, s)?, ids, array.nbytes, &mut out)?,
                Fill::Offsets(s) => {
                    out.with(array.nbytes, |to| offsets(stream(view, s)?, ids, to))?;
                }
                Fill::Shapes(s) => {
                    out.with(array.nbytes, |to| shapes(stream(view, s)?, ids, to))?;
                }
                Fill::Ids => out.with(array.nbytes, |to| {
                    put(to, ids);
                    Ok(())
                })?,
                Fill::PieceTable => {
                    let step = step.as_ref().ok_or_else(|| no_step(view))?;
                    out.with(array.nbytes, |to| step.table(to))?;
                }
                Fill::Zeros => out.zeros(array.nbytes)?,
                Fill::Tokens => {
                    let step = step.as_ref().ok_or_else(|| no_step(view))?;
                    let rows = view.local_batch();
                    let row = array.nbytes / rows.max(1);
                    let mut at = 0;
                    while at < rows {
                        let count = out.room().div_ceil(row.max(1)).clamp(1, rows - at);
                        out.with(row * count, |to| Ok(step.fill(at..at + count, to)?))?;
                        at += count;
                    }
                }
                Fill::Pieces(what) => {
                    let step = step.as_ref().ok_or_else(|| no_step(view))?;
                    out.with(array.nbytes, |to| step.pieces(what, to))?;
                }
                Fill::Trailer => out.bytes(&layout.trailer)?,
            }
        }
        out.zeros(layout.size - out.end())?;
        out.flush()
    })
}

fn records(
    stream: &dyn Stream,
    ids: &[u64],
    nbytes: u64,
    out: &mut Writer<'_>,
) -> Result<(), Failure> {
    let Some(item) = stream.schema().item_bytes() else {
        return ragged(stream, ids, out);
    };
    if nbytes >= CHUNK as u64 {
        out.flush()?;
        let file = out.region.file().map_err(Failure::Region)?;
        if stream.gather_to_file(ids, file, out.at)? {
            out.at += nbytes;
            return Ok(());
        }
    }
    let mut rest = ids;
    while !rest.is_empty() {
        let count = out.room().div_ceil(item.max(1)).clamp(1, rest.len() as u64);
        let (now, later) = rest.split_at(count as usize);
        out.with(item * count, |to| Ok(stream.gather(now, to)?))?;
        rest = later;
    }
    Ok(())
}

fn ragged(stream: &dyn Stream, ids: &[u64], out: &mut Writer<'_>) -> Result<(), Failure> {
    let mut elements = vec![0; ids.len()];
    stream.elements(ids, &mut elements)?;
    let size = stream.schema().dtype.size() as u64;
    let (mut from, mut bytes) = (0, 0);
    for (i, n) in elements.iter().enumerate() {
        bytes += n * size;
        if bytes >= out.room() || i + 1 == ids.len() {
            out.with(bytes, |to| Ok(stream.gather(&ids[from..=i], to)?))?;
            (from, bytes) = (i + 1, 0);
        }
    }
    Ok(())
}

/// Writes a region front to back.
struct Writer<'a> {
    region: &'a mut RegionMut,
    /// Twice a chunk.
    buffer: &'a mut Vec<u8>,
    /// Bytes of it that are to be written, less than a chunk.
    used: usize,
    /// Bytes that are written.
    at: u64,
}

impl Writer<'_> {
    fn end(&self) -> u64 {
        self.at + self.used as u64
    }

    /// Bytes until the next write.
    fn room(&self) -> u64 {
        (CHUNK - self.used) as u64
    }

    /// Has `fill` make the next `len` bytes.
    fn with(
        &mut self,
        len: u64,
        fill: impl FnOnce(&mut [u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if len > CHUNK as u64 {
            self.flush()?;
            // A record that is larger than the buffer goes through a mapping.
            let (from, end) = (self.at as usize, (self.at + len) as usize);
            let region = self.region.bytes_mut().map_err(Failure::Region)?;
            fill(region.get_mut(from..end).ok_or_else(beyond)?)?;
            self.at += len;
            return Ok(());
        }
        let end = self.used + len as usize;
        fill(&mut self.buffer[self.used..end])?;
        self.used = end;
        if end >= CHUNK {
            self.put(CHUNK)?;
        }
        Ok(())
    }

    fn bytes(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK));
            self.with(now.len() as u64, |to| {
                to.copy_from_slice(now);
                Ok(())
            })?;
            bytes = later;
        }
        Ok(())
    }

    fn zeros(&mut self, mut len: u64) -> Result<(), Failure> {
        while len > 0 {
            let now = len.min(CHUNK as u64);
            self.with(now, |to| {
                to.fill(0);
                Ok(())
            })?;
            len -= now;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.put(self.used)
    }

    fn put(&mut self, len: usize) -> Result<(), Failure> {
        self.region.write_at(&self.buffer[..len], self.at).map_err(Failure::Region)?;
        self.buffer.copy_within(len..self.used, 0);
        self.used -= len;
        self.at += len as u64;
        Ok(())
    }
}

fn beyond() -> Failure {
    Failure::Region(io::Error::new(io::ErrorKind::InvalidInput, "beyond the region's end"))
}
