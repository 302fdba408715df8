//! A window's documents, cut where lanes meet and shuffled within each lane.

use std::ops::Range;

use super::{Epoch, Lanes, Window};
use crate::permutation::Permutation;

/// The pieces of a window in the order of the lanes of one rank.
#[derive(Debug, Clone)]
pub struct WindowPieces {
    window: Window,
    seq_len: u64,
    pieces: Vec<Piece>,
    /// Tokens of the lane's stretch up to the end of each piece. By themselves, as they are searched.
    ends: Vec<u64>,
    /// Where each lane's pieces are.
    lanes: Vec<Lane>,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    /// The row group, by its place in the window.
    place: usize,
    /// The document, by its place in the row group.
    document: usize,
    /// Tokens of the document before it.
    offset: u64,
    /// Tokens of the row group before it.
    begin: u64,
}

/// A document that has tokens.
struct Document {
    place: usize,
    /// Its place in the row group.
    number: usize,
    /// Tokens of the window before it.
    begin: u64,
    /// Tokens of the window before its row group.
    group: u64,
}

#[derive(Debug, Clone)]
struct Lane {
    pieces: Range<usize>,
    had: u128,
    len: u64,
}

/// Some tokens of a row that follow each other in one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// The row group, by its place in the window.
    pub place: usize,
    /// The document, by its place in the row group.
    pub document: u64,
    /// Tokens of the document before it.
    pub offset: u64,
    /// Tokens of the row group before it.
    pub begin: u64,
    /// Its tokens; at least 1.
    pub len: u64,
}

impl WindowPieces {
    /// The pieces of `window`, which is one of `epoch`, for this rank's lanes. `lengths` gives the
    /// tokens of each document of the row group at a place in the window, in order. It is asked for
    /// those that the rank [needs](Epoch::needed) alone.
    pub fn new<'a>(
        lanes: &Lanes,
        epoch: &Epoch,
        window: Window,
        lengths: impl Fn(usize) -> &'a [u32],
    ) -> Self {
        let needed = epoch.needed(&window);
        let mut documents = Vec::with_capacity(needed.clone().map(|p| lengths(p).len()).sum());
        let mut end = 0u64;
        for (place, &row_group) in epoch.groups(&window).iter().enumerate() {
            let group = end;
            end += lanes.tokens[row_group as usize];
            if needed.contains(&place) {
                let mut begin = group;
                for (number, &len) in lengths(place).iter().enumerate() {
                    if len > 0 {
                        documents.push(Document { place, number, begin, group });
                    }
                    begin += u64::from(len);
                }
                debug_assert_eq!(begin, end, "lengths and counts differ");
            }
        }
        let seed = window.seed(lanes.spec.seed);
        let own = lanes.spec.own_lanes();
        let count = (own.end - own.start) as usize;
        // One for each document, and where a lane ends in one, another one. Memory is taken once, and what is
        // left over is given back: it is kept for some time.
        let most = documents.len() + count;
        let mut all = Self {
            window,
            seq_len: lanes.spec.seq_len,
            pieces: Vec::with_capacity(most),
            ends: Vec::with_capacity(most),
            lanes: Vec::with_capacity(count),
        };
        let mut order = Vec::new();
        for lane in own {
            all.cut(lane, seed, &documents, &mut order);
        }
        all.pieces.shrink_to_fit();
        all.ends.shrink_to_fit();
        all
    }

    /// Adds a lane. `order` is room that is used again.
    fn cut(&mut self, lane: u64, seed: u64, documents: &[Document], order: &mut Vec<u64>) {
        let stretch = self.window.stretch(lane);
        let from = self.pieces.len();
        let end = stretch.begin + stretch.len;
        if stretch.len > 0 {
            let first = documents.partition_point(|document| document.begin <= stretch.begin) - 1;
            let last = documents.partition_point(|document| document.begin < end);
            let count = (last - first) as u64;
            order.clear();
            order.resize(last - first, 0);
            Permutation::new(count).ids(seed, lane, 0, order);
            let mut had = 0;
            for &at in order.iter() {
                let at = first + at as usize;
                let Document { place, number: document, begin, group } = documents[at];
                let offset = stretch.begin.saturating_sub(begin);
                let until = documents.get(at + 1).map_or(end, |next| next.begin.min(end));
                had += until - begin - offset;
                self.pieces.push(Piece { place, document, offset, begin: begin + offset - group });
                self.ends.push(had);
            }
        }
        self.lanes.push(Lane {
            pieces: from..self.pieces.len(),
            had: stretch.had,
            len: stretch.len,
        });
    }

    /// The window.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Bytes that it takes in memory.
    pub fn bytes(&self) -> u64 {
        fn of<T>(all: &Vec<T>) -> usize {
            all.capacity() * size_of::<T>()
        }
        (of(&self.pieces) + of(&self.ends) + of(&self.lanes)) as u64
    }

    /// What `step`'s row of a lane has of this window, in the order of the row. Lanes are those of
    /// the rank, counted from 0.
    pub fn row(&self, step: u64, lane: u64) -> impl Iterator<Item = Segment> + '_ {
        let Lane { pieces, had, len } = &self.lanes[lane as usize];
        let row = u128::from(step) * u128::from(self.seq_len);
        let within = |at: u128| at.saturating_sub(*had).min(u128::from(*len)) as u64;
        let (from, until) = (within(row), within(row + u128::from(self.seq_len)));
        let (pieces, ends) = (&self.pieces[pieces.clone()], &self.ends[pieces.clone()]);
        let first = ends.partition_point(|&end| end <= from);
        let mut begin = match first {
            0 => 0,
            n => ends[n - 1],
        };
        pieces[first..].iter().zip(&ends[first..]).map_while(move |(piece, &piece_end)| {
            let (start, end) = (begin.max(from), piece_end.min(until));
            let skipped = start - begin;
            begin = piece_end;
            (start < end).then(|| Segment {
                place: piece.place,
                document: piece.document as u64,
                offset: piece.offset + skipped,
                begin: piece.begin + skipped,
                len: end - start,
            })
        })
    }
}
