//! A window's documents, cut where lanes meet and shuffled within each lane.

use std::ops::Range;

use super::{Epoch, Lanes, Window};
use crate::permutation::Permutation;

/// The pieces of a window in the order of the lanes of one rank.
#[derive(Debug, Clone)]
pub struct WindowPieces {
    window: Window,
    seq_len: u64,
    /// Documents that have tokens: number of the document in the window, and the tokens before it.
    documents: Vec<(u64, u64)>,
    /// The documents of each row group: how many there are up to its end, and tokens likewise.
    groups: Vec<(u64, u64)>,
    pieces: Vec<Piece>,
    /// Where each lane's pieces are.
    lanes: Vec<Lane>,
}

#[derive(Debug, Clone, Copy)]
struct Piece {
    /// Index in `documents`.
    document: usize,
    /// Where it begins in the window.
    begin: u64,
    /// Tokens of the lane's stretch up to its end.
    end: u64,
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
        let all_groups = epoch.groups(&window);
        // Memory is taken once, and what is left over is given back: it is kept for some time.
        let mut documents = Vec::with_capacity(needed.clone().map(|p| lengths(p).len()).sum());
        let mut groups = Vec::with_capacity(all_groups.len());
        let (mut count, mut tokens) = (0u64, 0u64);
        for (place, &group) in all_groups.iter().enumerate() {
            let end = tokens + lanes.tokens[group as usize];
            if needed.contains(&place) {
                for &len in lengths(place) {
                    if len > 0 {
                        documents.push((count, tokens));
                    }
                    count += 1;
                    tokens += u64::from(len);
                }
                debug_assert_eq!(tokens, end, "lengths and counts differ");
            }
            tokens = end;
            groups.push((count, tokens));
        }
        documents.shrink_to_fit();
        let seed = window.seed(lanes.spec.seed);
        let own = lanes.spec.own_lanes();
        let count = (own.end - own.start) as usize;
        let mut all = Self {
            window,
            seq_len: lanes.spec.seq_len,
            // One for each document, and where a lane ends in one, another one.
            pieces: Vec::with_capacity(documents.len() + count),
            lanes: Vec::with_capacity(count),
            documents,
            groups,
        };
        let mut order = Vec::new();
        for lane in own {
            all.cut(lane, seed, &mut order);
        }
        all.pieces.shrink_to_fit();
        all
    }

    /// Adds a lane. `order` is room that is used again.
    fn cut(&mut self, lane: u64, seed: u64, order: &mut Vec<u64>) {
        let stretch = self.window.stretch(lane);
        let from = self.pieces.len();
        let end = stretch.begin + stretch.len;
        if stretch.len > 0 {
            let first = self.documents.partition_point(|&(_, begin)| begin <= stretch.begin) - 1;
            let last = self.documents.partition_point(|&(_, begin)| begin < end);
            let count = (last - first) as u64;
            order.clear();
            order.resize(last - first, 0);
            Permutation::new(count).ids(seed, lane, 0, order);
            let mut had = 0;
            for &at in order.iter() {
                let at = first + at as usize;
                let begin = self.documents[at].1.max(stretch.begin);
                let until = self.documents.get(at + 1).map_or(end, |next| next.1.min(end));
                had += until - begin;
                self.pieces.push(Piece { document: at, begin, end: had });
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
        (of(&self.documents) + of(&self.pieces) + of(&self.groups) + of(&self.lanes)) as u64
    }

    /// What `step`'s row of a lane has of this window, in the order of the row. Lanes are those of
    /// the rank, counted from 0.
    pub fn row(&self, step: u64, lane: u64) -> impl Iterator<Item = Segment> + '_ {
        let Lane { pieces, had, len } = &self.lanes[lane as usize];
        let row = u128::from(step) * u128::from(self.seq_len);
        let within = |at: u128| at.saturating_sub(*had).min(u128::from(*len)) as u64;
        let (from, until) = (within(row), within(row + u128::from(self.seq_len)));
        let pieces = &self.pieces[pieces.clone()];
        let first = pieces.partition_point(|piece| piece.end <= from);
        let mut begin = match first {
            0 => 0,
            n => pieces[n - 1].end,
        };
        pieces[first..].iter().map_while(move |piece| {
            let (start, end) = (begin.max(from), piece.end.min(until));
            let skipped = start - begin;
            begin = piece.end;
            (start < end).then(|| self.segment(piece, skipped, end - start))
        })
    }

    fn segment(&self, piece: &Piece, skipped: u64, len: u64) -> Segment {
        let (document, document_begin) = self.documents[piece.document];
        let begin = piece.begin + skipped;
        let place = self.groups.partition_point(|&(documents, _)| documents <= document);
        let (documents_before, tokens_before) = match place {
            0 => (0, 0),
            n => self.groups[n - 1],
        };
        Segment {
            place,
            document: document - documents_before,
            offset: begin - document_begin,
            begin: begin - tokens_before,
            len,
        }
    }
}
