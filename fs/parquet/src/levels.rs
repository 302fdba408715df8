//! Lengths of documents from the levels of a page, run by run: nearly all levels lie in runs that say
//! that a document goes on.

use crate::column::Column;
use crate::runs::{Run, Runs, packed};

/// The documents that levels tell of.
#[derive(Debug, Default)]
pub(crate) struct Documents {
    /// How many there are.
    pub(crate) count: u64,
    most: u64,
    /// Tokens of each, unless they are only counted.
    pub(crate) lengths: Option<Vec<u32>>,
}

/// Why levels tell of no documents.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// There are too few, or they contradict each other.
    Disorder,
    /// There are more documents than there may be.
    Documents,
    /// This document has an item that is null.
    Null(u64),
}

impl Documents {
    /// Up to `most`, whose lengths are kept in `lengths`, if anywhere.
    pub(crate) fn new(most: u64, lengths: Option<Vec<u32>>) -> Documents {
        Documents { count: 0, most, lengths }
    }

    /// Some that begin, with so many tokens each.
    fn begin(&mut self, count: usize, tokens: u32) -> Result<(), Wrong> {
        self.count += count as u64;
        if self.count > self.most {
            return Err(Wrong::Documents);
        }
        if let Some(lengths) = &mut self.lengths {
            match count {
                1 => lengths.push(tokens),
                _ => lengths.resize(lengths.len() + count, tokens),
            }
        }
        Ok(())
    }

    /// Tokens of the last one.
    fn extend(&mut self, tokens: usize) -> Result<(), Wrong> {
        if self.count == 0 {
            return Err(Wrong::Disorder);
        }
        if let Some(last) = self.lengths.as_mut().and_then(|lengths| lengths.last_mut()) {
            *last += tokens as u32;
        }
        Ok(())
    }
}

/// Whether a page of `count` levels begins with a document.
pub(crate) fn begins_document(reps: &[u8], count: usize) -> bool {
    match Runs::levels(reps, 1, count).next() {
        Some(Run::Same(level, _)) => level == 0,
        Some(Run::Packed(bytes, _)) => bytes.first().is_some_and(|byte| byte & 1 == 0),
        None => false,
    }
}

/// A place in runs.
struct Cursor<'a> {
    runs: Runs<'a>,
    run: Run<'a>,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(runs: Runs<'a>) -> Cursor<'a> {
        Cursor { runs, run: Run::Same(0, 0), at: 0 }
    }

    /// Levels that are left of a run; there is one unless all are through.
    fn left(&mut self) -> Option<usize> {
        if self.at == self.run.len() {
            (self.run, self.at) = (self.runs.next()?, 0);
        }
        Some(self.run.len() - self.at)
    }

    /// How many of the next `count` levels, which are of this run, are the same for sure.
    fn same(&self, count: usize) -> usize {
        if matches!(self.run, Run::Same(..)) { count } else { 1 }
    }

    fn pass(&mut self, count: usize) -> u32 {
        let level = match self.run {
            Run::Same(level, _) => level,
            Run::Packed(bytes, _) => packed(bytes, self.runs.width, self.at),
        };
        self.at += count;
        level
    }
}

/// Adds the documents that begin in a page of `count` levels to `documents`, and what the page has of the one
/// before to that; says how many tokens the page has.
pub(crate) fn add_lengths(
    reps: &[u8],
    defs: &[u8],
    count: usize,
    column: &Column,
    documents: &mut Documents,
) -> Result<usize, Wrong> {
    let mut reps = Runs::levels(reps, 1, count);
    let defs = Runs::levels(defs, column.defined, count);
    if !defs.clone().all(column.defined) {
        return add_some(reps, defs, column, documents);
    }
    // No document is empty, so that each level is a token.
    while let Some(run) = reps.next() {
        match run {
            Run::Same(0, count) => documents.begin(count, 1)?,
            Run::Same(1, count) => documents.extend(count)?,
            Run::Same(..) => return Err(Wrong::Disorder),
            Run::Packed(bytes, count) => {
                let mut left = count;
                for &byte in bytes {
                    let here = left.min(8);
                    left -= here;
                    if byte == 0xff && here > 0 {
                        documents.extend(here)?;
                        continue;
                    }
                    for bit in 0..here {
                        match byte >> bit & 1 {
                            0 => documents.begin(1, 1)?,
                            _ => documents.extend(1)?,
                        }
                    }
                }
            }
        }
    }
    if reps.left == 0 { Ok(count) } else { Err(Wrong::Disorder) }
}

/// As [`add_lengths`], where some levels are no tokens.
fn add_some(
    reps: Runs<'_>,
    defs: Runs<'_>,
    column: &Column,
    documents: &mut Documents,
) -> Result<usize, Wrong> {
    let (mut left, mut tokens) = (reps.left, 0);
    let (mut reps, mut defs) = (Cursor::new(reps), Cursor::new(defs));
    let (defined, item) = (column.defined as u32, column.item as u32);
    while left > 0 {
        let here = reps.left().zip(defs.left()).ok_or(Wrong::Disorder)?;
        let count = here.0.min(here.1);
        let count = reps.same(count).min(defs.same(count));
        left -= count;
        let (rep, def) = (reps.pass(count), defs.pass(count));
        if def == defined {
            tokens += count;
            if rep == 0 { documents.begin(count, 1) } else { documents.extend(count) }?;
        } else if def >= item {
            return Err(Wrong::Null((documents.count + u64::from(rep == 0)).saturating_sub(1)));
        } else if rep == 0 {
            documents.begin(count, 0)?;
        } else {
            return Err(Wrong::Disorder);
        }
    }
    Ok(tokens)
}
