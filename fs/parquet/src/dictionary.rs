//! Places in a dictionary, which is how nearly all tokens are stored.

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::Page;

use crate::column::Ints;
use crate::runs::{Run, Runs, packed, unpack};
use crate::values::{Tokens, plain, split};

/// The tokens that places in pages stand for.
pub(crate) enum Dictionary {
    Narrow(Vec<u16>),
    Wide(Vec<i32>),
    /// Some values are no tokens, which is damage if they are used.
    Gaps(Vec<Option<i32>>),
}

impl Dictionary {
    /// `None` if it is not in order.
    pub(crate) fn new(page: &Page, ints: Ints) -> Option<Dictionary> {
        if !matches!(page.encoding(), Encoding::PLAIN | Encoding::PLAIN_DICTIONARY) {
            return None;
        }
        let mut bytes = page.buffer().clone();
        let bytes = split(&mut bytes, ints, page.num_values() as usize)?;
        let narrow = plain(&bytes, ints).map(|token| u16::try_from(token?).ok());
        Some(if let Some(all) = narrow.collect() {
            Dictionary::Narrow(all)
        } else if let Some(all) = plain(&bytes, ints).collect() {
            Dictionary::Wide(all)
        } else {
            Dictionary::Gaps(plain(&bytes, ints).collect())
        })
    }

    /// The tokens in the next `count` places. They lie in `narrow` or `wide`, which are never cleared.
    pub(crate) fn tokens<'a>(
        &self,
        places: &mut Places,
        count: usize,
        narrow: &'a mut Vec<u16>,
        wide: &'a mut Vec<i32>,
    ) -> Option<Tokens<'a>> {
        match self {
            Dictionary::Narrow(table) => {
                places.next(room(narrow, count), |at| table.get(at).copied()).map(Tokens::Narrow)
            }
            Dictionary::Wide(table) => {
                places.next(room(wide, count), |at| table.get(at).copied()).map(Tokens::Wide)
            }
            Dictionary::Gaps(table) => {
                places.next(room(wide, count), |at| *table.get(at)?).map(Tokens::Wide)
            }
        }
    }
}

/// Room for so many values, and never cleared again.
fn room<T: Default + Clone>(values: &mut Vec<T>, count: usize) -> &mut [T] {
    if values.len() < count {
        values.resize(count, T::default());
    }
    &mut values[..count]
}

/// The places in a dictionary that a page has.
pub(crate) struct Places {
    bytes: Bytes,
    /// Where the next run begins.
    next: usize,
    width: u32,
    /// Places of the runs after this one.
    left: usize,
    run: Place,
    /// The next place of the run.
    at: usize,
    /// Places of the run.
    count: usize,
}

enum Place {
    Same(u32),
    /// Packed, from this byte on.
    Packed(usize),
}

impl Places {
    /// Of a page of `count` values; `None` if it does not say how wide they are.
    pub(crate) fn new(bytes: Bytes, count: usize) -> Option<Places> {
        let width = u32::from(*bytes.first()?);
        let run = Place::Same(0);
        (width <= 32).then_some(Places { bytes, next: 1, width, left: count, run, at: 0, count: 0 })
    }

    /// How many the run has left; there is one at least unless all are through.
    fn turn(&mut self) -> Option<usize> {
        if self.at == self.count {
            let bytes = self.bytes.get(self.next..)?;
            let mut runs = Runs { bytes, width: self.width, left: self.left };
            (self.run, self.count) = match runs.next()? {
                Run::Same(place, count) => (Place::Same(place), count),
                Run::Packed(packed, count) => {
                    (Place::Packed(self.bytes.len() - runs.bytes.len() - packed.len()), count)
                }
            };
            (self.next, self.left, self.at) = (self.bytes.len() - runs.bytes.len(), runs.left, 0);
        }
        Some(self.count - self.at)
    }

    pub(crate) fn skip(&mut self, mut count: usize) -> Option<()> {
        while count > 0 {
            let now = self.turn()?.min(count);
            self.at += now;
            count -= now;
        }
        Some(())
    }

    /// Writes what is in the next places to `out`, which it gives back.
    fn next<'a, T: Copy>(
        &mut self,
        out: &'a mut [T],
        lookup: impl Fn(usize) -> Option<T>,
    ) -> Option<&'a [T]> {
        let value = |place: u32| lookup(place as usize);
        let mut done = 0;
        while done < out.len() {
            let count = self.turn()?.min(out.len() - done);
            let now = &mut out[done..done + count];
            match self.run {
                Place::Same(place) => now.fill(value(place)?),
                Place::Packed(from) => {
                    let bytes = &self.bytes[from..];
                    // Until a whole byte begins, which is the case at every eighth.
                    let odd = (self.at.next_multiple_of(8) - self.at).min(count);
                    let (first, rest) = now.split_at_mut(odd);
                    for (out, at) in first.iter_mut().zip(self.at..) {
                        *out = value(packed(bytes, self.width, at))?;
                    }
                    let whole = (self.at + odd) / 8 * self.width as usize;
                    unpack(&bytes[whole..], self.width, rest, value)?;
                }
            }
            self.at += count;
            done += count;
        }
        Some(out)
    }
}
