//! Lengths of documents from the levels of a page, run by run: nearly all levels lie in runs that say
//! that a document goes on.

use crate::column::Column;

/// Levels of a page that are encoded as runs.
struct Runs<'a> {
    bytes: &'a [u8],
    width: u32,
    /// Levels that are still to come.
    left: usize,
}

enum Run<'a> {
    Same(u16, usize),
    /// That many levels of some bits each, the lowest bits first.
    Packed(&'a [u8], usize),
}

impl<'a> Runs<'a> {
    fn new(bytes: &'a [u8], highest: i16, count: usize) -> Runs<'a> {
        Runs { bytes, width: u16::BITS - (highest as u16).leading_zeros(), left: count }
    }

    /// The next run; none at the end, or if there should be one and is none.
    fn next(&mut self) -> Option<Run<'a>> {
        if self.left == 0 {
            return None;
        }
        let head = self.number()?;
        let count = usize::try_from(head >> 1).ok()?;
        if head & 1 == 0 {
            let (value, rest) = self.bytes.split_at_checked(self.width.div_ceil(8) as usize)?;
            let value = value.iter().rev().fold(0, |sum, &byte| sum << 8 | u16::from(byte));
            if u32::from(value) >> self.width != 0 {
                return None;
            }
            self.bytes = rest;
            self.left = self.left.checked_sub(count).filter(|_| count > 0)?;
            return Some(Run::Same(value, count));
        }
        let (packed, rest) =
            self.bytes.split_at_checked(count.checked_mul(self.width as usize)?)?;
        self.bytes = rest;
        // The last ones of a page are filled up to eight.
        let count = count.checked_mul(8).filter(|&count| count > 0)?.min(self.left);
        self.left -= count;
        Some(Run::Packed(packed, count))
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..35).step_by(7) {
            let (&byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// All levels, or `None` if there are fewer.
    fn expand(mut self) -> Option<Vec<u16>> {
        let mut all = Vec::with_capacity(self.left);
        while let Some(run) = self.next() {
            match run {
                Run::Same(level, count) => all.resize(all.len() + count, level),
                Run::Packed(bytes, count) => {
                    all.extend((0..count).map(|at| packed(bytes, self.width, at)));
                }
            }
        }
        (self.left == 0).then_some(all)
    }

    /// Whether all levels are there, and are this one.
    fn all(mut self, level: i16) -> bool {
        while let Some(run) = self.next() {
            let same = match run {
                Run::Same(value, _) => value == level as u16,
                Run::Packed(bytes, count) => {
                    (0..count).all(|at| packed(bytes, self.width, at) == level as u16)
                }
            };
            if !same {
                return false;
            }
        }
        self.left == 0
    }
}

fn packed(bytes: &[u8], width: u32, at: usize) -> u16 {
    (0..width as usize).fold(0, |level, bit| {
        let place = at * width as usize + bit;
        level | u16::from(bytes[place / 8] >> (place % 8) & 1) << bit
    })
}

/// Whether a page of `count` levels begins with a document.
pub(crate) fn begins_document(reps: &[u8], count: usize) -> bool {
    match Runs::new(reps, 1, count).next() {
        Some(Run::Same(level, _)) => level == 0,
        Some(Run::Packed(bytes, _)) => bytes.first().is_some_and(|byte| byte & 1 == 0),
        None => false,
    }
}

/// Adds the documents that begin in a page of `count` levels to `lengths`, and what the page has of the one
/// before to that; says how many tokens the page has. `None` if it is not all in order.
pub(crate) fn add_lengths(
    reps: &[u8],
    defs: &[u8],
    count: usize,
    column: &Column,
    lengths: &mut Vec<u32>,
) -> Option<usize> {
    let mut reps = Runs::new(reps, 1, count);
    if !Runs::new(defs, column.defined, count).all(column.defined) {
        let defs = Runs::new(defs, column.defined, count).expand()?;
        let mut tokens = 0;
        for (rep, def) in reps.expand()?.into_iter().zip(defs) {
            if rep == 0 {
                lengths.push(0);
            }
            let last = lengths.last_mut()?;
            if def == column.defined as u16 {
                *last += 1;
                tokens += 1;
            } else if def >= column.item as u16 {
                return None;
            }
        }
        return Some(tokens);
    }
    // No document is empty, so that each level is a token.
    while let Some(run) = reps.next() {
        match run {
            Run::Same(0, count) => lengths.resize(lengths.len() + count, 1),
            Run::Same(1, count) => *lengths.last_mut()? += count as u32,
            Run::Same(..) => return None,
            Run::Packed(bytes, count) => {
                let mut left = count;
                for &byte in bytes {
                    let here = left.min(8);
                    left -= here;
                    if byte == 0xff {
                        *lengths.last_mut().filter(|_| here > 0)? += here as u32;
                        continue;
                    }
                    for bit in 0..here {
                        match byte >> bit & 1 {
                            0 => lengths.push(1),
                            _ => *lengths.last_mut()? += 1,
                        }
                    }
                }
            }
        }
    }
    (reps.left == 0).then_some(count)
}
