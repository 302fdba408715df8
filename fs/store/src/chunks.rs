use std::ops::Range;

use rayon::prelude::*;

use crate::{Result, Stream};

/// Records that follow one another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Their ids.
    pub ids: Range<u64>,
    /// Their bytes, as [`Stream::gather`] gives them.
    pub bytes: u64,
}

impl Chunk {
    /// Reads the records to `out`, which gets as long as they are, on all cores.
    ///
    /// # Errors
    /// Those of [`Stream::gather`].
    pub fn read(&self, stream: &dyn Stream, out: &mut Vec<u8>) -> Result<()> {
        out.resize(self.bytes as usize, 0);
        let ids: Vec<u64> = self.ids.clone().collect();
        let parts = (self.bytes / PART).clamp(1, 4 * rayon::current_num_threads() as u64);
        let count = ids.len().div_ceil(parts as usize).max(1);
        let size = stream.schema().dtype.size() as u64;
        let mut elements = vec![0; ids.len()];
        stream.elements(&ids, &mut elements)?;
        let mut rest = out.as_mut_slice();
        let mut jobs = Vec::new();
        for (ids, elements) in ids.chunks(count).zip(elements.chunks(count)) {
            let bytes = elements.iter().sum::<u64>() * size;
            let (now, later) = rest.split_at_mut(bytes as usize);
            jobs.push((ids, now));
            rest = later;
        }
        jobs.into_par_iter().try_for_each(|(ids, out)| stream.gather(ids, out))
    }
}

/// All records of a stream in order, in parts of at most `most` bytes, or of one record that has
/// more.
///
/// # Errors
/// The iterator ends with the error of [`Stream::elements`], if there is one.
pub fn chunks(stream: &dyn Stream, most: u64) -> impl Iterator<Item = Result<Chunk>> {
    Chunks { stream, most, at: 0, known: Vec::new(), from: 0 }
}

struct Chunks<'a> {
    stream: &'a dyn Stream,
    most: u64,
    /// The first record of the next part.
    at: u64,
    /// Elements of some ragged records, from `from` on.
    known: Vec<u64>,
    from: u64,
}

/// Bytes that are worth a thread.
const PART: u64 = 8 << 20;
/// Most records in a part: each costs some bytes besides its own.
const MOST: u64 = 4 << 20;
/// Ragged records whose sizes are asked for at once, and so the most in a part.
const BLOCK: u64 = 16 << 10;

impl Chunks<'_> {
    fn ragged(&mut self) -> Result<Chunk> {
        let len = self.stream.len();
        if self.at >= self.from + self.known.len() as u64 {
            let ids: Vec<u64> = (self.at..len.min(self.at + BLOCK)).collect();
            self.known.resize(ids.len(), 0);
            self.from = self.at;
            self.stream.elements(&ids, &mut self.known)?;
        }
        let size = self.stream.schema().dtype.size() as u64;
        let (mut end, mut bytes) = (self.at, 0u64);
        for elements in &self.known[(self.at - self.from) as usize..] {
            let with = bytes.saturating_add(elements.saturating_mul(size));
            if end > self.at && with > self.most {
                break;
            }
            (end, bytes) = (end + 1, with);
        }
        Ok(Chunk { ids: self.at..end, bytes })
    }
}

impl Iterator for Chunks<'_> {
    type Item = Result<Chunk>;

    fn next(&mut self) -> Option<Self::Item> {
        let len = self.stream.len();
        if self.at >= len {
            return None;
        }
        let chunk = match self.stream.schema().item_bytes() {
            Some(item) => {
                let count = (self.most / item.max(1)).clamp(1, (len - self.at).min(MOST));
                Ok(Chunk { ids: self.at..self.at + count, bytes: count.saturating_mul(item) })
            }
            None => self.ragged(),
        };
        self.at = chunk.as_ref().map_or(len, |chunk| chunk.ids.end);
        Some(chunk)
    }
}
