//! A step of token rows whose row groups are in memory: what is copied from where.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::thread;

use batchfs_sampler::lanes::{LaneSpec, Segment, SourceRow, WindowPieces};
use batchfs_store::Error as Store;
use rayon::ThreadPool;

use super::Provenance;
use super::groups::Pinned;
use super::rows::TokenRows;
use super::windows::Met;
use crate::gather::{share, share_anew};

/// Bytes that a thread should have to copy before another one is woken.
const PART: usize = 1 << 20;

/// A step whose row groups are in memory.
pub(crate) struct Step<'a> {
    pub(super) rows: &'a TokenRows,
    pub(super) number: u64,
    /// Where each row comes from, if there are several sources.
    pub(super) mixed: Vec<SourceRow>,
    /// The windows of each source, with their row groups.
    pub(super) parts: Vec<Vec<(Arc<WindowPieces>, Vec<usize>)>>,
    pub(super) pinned: Pinned,
    /// What is to be read ahead when this step is done.
    pub(super) later: Option<(Vec<usize>, Vec<Option<Met>>)>,
    pub(super) provenance: OnceLock<Provenance>,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        // First what the next step needs, then the next window.
        self.pinned.done();
        if let Some((soon, last)) = self.later.take() {
            self.rows.read_ahead(&soon, &last);
        }
    }
}

impl Step<'_> {
    /// The row group and the tokens in it of each piece of a row, in order.
    fn segments(&self, row: u64) -> impl Iterator<Item = (usize, Segment)> + '_ {
        let alone = SourceRow { source: 0, step: self.number, lane: row };
        let from = self.mixed.get(row as usize).copied().unwrap_or(alone);
        self.parts[from.source].iter().flat_map(move |(pieces, groups)| {
            let segments = pieces.row(from.step, from.lane);
            segments.map(move |segment| (groups[segment.place], segment))
        })
    }

    /// Writes some rows of the rank to `out`; all of them on several threads if they are to be decoded.
    pub(crate) fn fill(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), Store> {
        let all = rows == (0..self.rows.rows()) && self.pinned.packed();
        let threads = if all { thread::available_parallelism().map_or(1, usize::from) } else { 1 };
        let each = rows.end.div_ceil(threads as u64).max(1);
        let len = out.len() / rows.end.max(1) as usize * each as usize;
        if each >= rows.end || len == 0 {
            return self.copy(rows, out);
        }
        let parts = rows.clone().step_by(each as usize).zip(out.chunks_mut(len));
        share_anew(threads, parts.collect(), |(from, out)| {
            self.copy(from..(from + each).min(rows.end), out)
        })
    }

    fn copy(&self, rows: Range<u64>, mut out: &mut [u8]) -> Result<(), Store> {
        let mut copy = |(group, segment): (usize, Segment)| {
            let split = std::mem::take(&mut out).split_at_mut_checked(4 * segment.len as usize);
            let (now, later) = split.ok_or_else(|| self.inconsistent())?;
            out = later;
            let copied = self.pinned.copy(group, segment.begin as usize, now)?;
            if copied { Ok(()) } else { Err(self.inconsistent()) }
        };
        // The next piece lies anywhere, and what is fetched meanwhile need not be waited for.
        let mut piece = None;
        for row in rows {
            for (group, next) in self.segments(row) {
                self.pinned.prefetch(group, next.begin as usize, next.len as usize);
                piece.replace((group, next)).map_or(Ok(()), &mut copy)?;
            }
        }
        piece.map_or(Ok(()), &mut copy)?;
        if out.is_empty() { Ok(()) } else { Err(self.inconsistent()) }
    }

    /// Calls `each` with row, document of the dataset, place in it and length of every piece, in order.
    pub(super) fn each_piece(&self, mut each: impl FnMut(u64, u64, u64, u64)) {
        for row in 0..self.rows.rows() {
            for (group, segment) in self.segments(row) {
                let document = self.rows.tokens.documents[group] + segment.document;
                each(row, document, segment.offset, segment.len);
            }
        }
    }

    /// Where its tokens come from.
    pub(crate) fn provenance(&self) -> &Provenance {
        self.provenance.get_or_init(|| Provenance::of(self))
    }

    pub(super) fn spec(&self) -> &LaneSpec {
        self.rows.lanes.spec()
    }

    fn inconsistent(&self) -> Store {
        let why = format!("step {} is not as long as its index says; mount again", self.number);
        Store::BadStore { path: self.rows.tokens.source().origin().into(), why }
    }

    /// Writes all rows to `out`, on this thread and those of `pool`.
    pub(crate) fn fill_shared(&self, out: &mut [u8], pool: &ThreadPool) -> Result<(), Store> {
        let rows = self.rows.rows();
        let row = out.len() / rows.max(1) as usize;
        let parts = (out.len() / PART).clamp(1, 2 * pool.current_num_threads()) as u64;
        let count = rows.div_ceil(parts).max(1);
        let parts = (0..rows).step_by(count as usize).zip(out.chunks_mut(row * count as usize));
        share(pool, parts.collect(), |(from, out)| self.fill(from..(from + count).min(rows), out))
    }
}
