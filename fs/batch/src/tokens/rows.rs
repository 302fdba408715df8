use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use batchfs_sampler::lanes::{Epoch, LaneSpec, Lanes, Window, WindowPieces};
use batchfs_store::{DType, Error as Store, GroupCounts, TokenSource};
use rayon::ThreadPool;

use super::Provenance;
use super::groups::{Groups, Pinned};
use crate::gather::share;
use crate::{Error, Result};

/// Bytes that a thread should have to copy before another one is woken.
const PART: usize = 1 << 20;

/// Windows whose pieces are kept.
const WINDOWS: usize = 8;
/// Epochs whose order is kept.
const EPOCHS: usize = 3;

/// A source of tokens and the memory for its decoded row groups, shared by all views of it.
pub struct Tokens {
    groups: Groups,
    counts: Arc<[u64]>,
    /// Documents before each row group.
    documents: Arc<[u64]>,
}

/// What was read and decoded so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenFigures {
    /// The byte budget for decoded row groups.
    pub budget: u64,
    /// Bytes of decoded row groups in memory.
    pub used: u64,
    /// Row groups decoded, again each time that one is.
    pub decoded: u64,
    /// How often a row group was in memory when a step needed it.
    pub hits: u64,
    /// Bytes that the source received, for its index, too.
    pub received: u64,
}

impl Tokens {
    /// Takes a source. `budget` bounds the decoded row groups in memory; without one it is what
    /// `spec` needs, and a window more to read ahead.
    ///
    /// # Errors
    /// [`Error::Sample`] if the spec does not fit the data; [`Error::Budget`] if the budget is too
    /// small for it; [`Error::Dataset`] if threads cannot be started.
    pub fn new(
        source: Arc<dyn TokenSource>,
        spec: LaneSpec,
        budget: Option<u64>,
        threads: usize,
    ) -> Result<Arc<Tokens>> {
        let counts: Arc<[u64]> = source.groups().iter().map(|group| group.tokens).collect();
        let documents = source.groups().iter().scan(0u64, |sum, group| {
            let before = *sum;
            *sum += group.documents;
            Some(before)
        });
        let documents = documents.collect();
        let lanes = Lanes::new(spec, counts.clone())?;
        let (least, window) = least_budget(&*source, &lanes);
        let limit = budget.unwrap_or(least.saturating_add(window));
        check_budget(limit, least, &spec)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads == 0 { cores } else { threads };
        let groups = Groups::new(source, limit, threads)
            .map_err(|e| Error::Dataset(format!("cannot start a thread: {e}")))?;
        Ok(Arc::new(Tokens { groups, counts, documents }))
    }

    /// The source.
    pub fn source(&self) -> &dyn TokenSource {
        &**self.groups.source()
    }

    /// Documents of all row groups.
    pub fn documents(&self) -> u64 {
        self.source().groups().iter().map(|group| group.documents).sum()
    }

    /// Counters and gauges.
    pub fn figures(&self) -> TokenFigures {
        let (used, decoded, hits) = self.groups.figures();
        let received = self.source().received_bytes();
        TokenFigures { budget: self.groups.budget(), used, decoded, hits, received }
    }

    /// The row group that has this document, and its place there.
    pub(super) fn find(&self, document: u64) -> (usize, usize) {
        let group = self.documents.partition_point(|&before| before <= document) - 1;
        // Row groups without documents begin where the next one does.
        (group, (document - self.documents[group]) as usize)
    }

    pub(super) fn groups(&self) -> &Groups {
        &self.groups
    }
}

/// The least bytes that steps of `lanes` need in memory at a time, and those of a window.
fn least_budget(source: &dyn TokenSource, lanes: &Lanes) -> (u64, u64) {
    let spec = lanes.spec();
    let count = source.groups().len();
    let window = usize::try_from(spec.window).unwrap_or(usize::MAX).min(count);
    let mut bytes: Vec<u64> = source.groups().iter().map(|group| group.decoded_bytes()).collect();
    let mut tokens: Vec<u64> = lanes.group_tokens().to_vec();
    bytes.sort_unstable_by(|a, b| b.cmp(a));
    tokens.sort_unstable();
    let smallest = |groups: usize| tokens[..groups].iter().sum::<u64>();
    let step = spec.lanes.saturating_mul(spec.seq_len);
    // A step begins in a window, ends in another, and has others whole; the last one of an epoch can
    // be as small as its row groups.
    let whole = step.checked_div(smallest(window)).unwrap_or(count as u64);
    let rest = count % window;
    let short = u64::from(rest > 0 && smallest(rest) < step);
    let windows = whole.saturating_add(short).saturating_add(2);
    let all: u64 = bytes.iter().sum();
    let one: u64 = bytes[..window].iter().sum();
    // A rank has a contiguous share of each window's tokens, whatever documents lie there, and whole
    // row groups at both ends of it.
    let largest = |of: fn(&GroupCounts) -> u64| {
        let mut all: Vec<u64> = source.groups().iter().map(of).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all[..window].iter().sum::<u64>()
    };
    let share = match spec.world {
        1 => one,
        world => {
            let own = GroupCounts {
                tokens: largest(|group| group.tokens) / world + 1,
                documents: largest(|group| group.documents),
            };
            one.min(own.decoded_bytes().saturating_add(2 * bytes[0]))
        }
    };
    (all.min(share.saturating_mul(windows)), share)
}

fn check_budget(limit: u64, least: u64, spec: &LaneSpec) -> Result<()> {
    if limit < least {
        return Err(Error::Budget { limit, needed: least, spec: spec.to_string() });
    }
    Ok(())
}

/// The rows of a token source under a spec: any step of them, at any time.
pub struct TokenRows {
    tokens: Arc<Tokens>,
    lanes: Lanes,
    epochs: Mutex<VecDeque<Arc<Epoch>>>,
    windows: Mutex<VecDeque<Arc<WindowPieces>>>,
    /// The window up to which was read ahead last.
    next: Mutex<Option<(u64, u64)>>,
}

/// What a step has of one row group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepPart {
    /// The epoch.
    pub epoch: u64,
    /// The window's number in the epoch.
    pub window: u64,
    /// The row group, counted through the dataset.
    pub group: usize,
}

/// A step whose row groups are in memory.
pub(crate) struct Step<'a> {
    rows: &'a TokenRows,
    number: u64,
    parts: Vec<(Arc<WindowPieces>, Vec<u32>)>,
    pinned: Pinned,
    provenance: OnceLock<Provenance>,
}

impl TokenRows {
    /// The rows of `tokens` under `spec`.
    ///
    /// # Errors
    /// [`Error::Sample`] if the spec does not fit the data, [`Error::Budget`] if the budget is too
    /// small for it.
    pub fn new(tokens: Arc<Tokens>, spec: LaneSpec) -> Result<TokenRows> {
        let lanes = Lanes::new(spec, tokens.counts.clone())?;
        let (least, _) = least_budget(tokens.source(), &lanes);
        check_budget(tokens.groups.budget(), least, &spec)?;
        Ok(TokenRows {
            tokens,
            lanes,
            epochs: Mutex::default(),
            windows: Mutex::default(),
            next: Mutex::default(),
        })
    }

    /// The order.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// The source, shared with other views.
    pub fn tokens(&self) -> &Arc<Tokens> {
        &self.tokens
    }

    /// Type of a token.
    pub fn dtype(&self) -> DType {
        self.tokens.source().dtype()
    }

    /// Rows of this rank in a step.
    pub fn rows(&self) -> u64 {
        self.lanes.spec().rows()
    }

    /// Steps of the first epoch, which are those that a listing shows.
    pub fn steps_per_epoch(&self) -> u64 {
        self.lanes.first_step(1).unwrap_or(u64::MAX)
    }

    /// The row groups that a step of this rank reads, without reading them.
    pub fn parts(&self, step: u64) -> Vec<StepPart> {
        let mut parts = Vec::new();
        for (epoch, window) in self.met(step) {
            let groups = epoch.groups(&window);
            for place in epoch.needed(&window) {
                let group = groups[place] as usize;
                // Row groups without tokens are never read.
                if self.lanes.group_tokens()[group] > 0 {
                    parts.push(StepPart { epoch: window.epoch, window: window.index, group });
                }
            }
        }
        parts
    }

    /// Writes the tokens of a step, row after row, to `out`, as little-endian bytes.
    ///
    /// # Errors
    /// Those of the source: what cannot be read, is damaged or has changed.
    pub fn fill(&self, step: u64, out: &mut [u8]) -> Result<(), Store> {
        self.step(step)?.fill(0..self.rows(), out)
    }

    /// Where the tokens of a step come from. Reads the step's row groups.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn provenance(&self, step: u64) -> Result<Provenance, Store> {
        Ok(self.step(step)?.provenance().clone())
    }

    /// Both at once: the tokens of a step, and where they come from.
    ///
    /// # Errors
    /// As [`fill`](Self::fill).
    pub fn read(&self, step: u64, out: &mut [u8]) -> Result<Provenance, Store> {
        let step = self.step(step)?;
        step.fill(0..self.rows(), out)?;
        Ok(step.provenance().clone())
    }

    /// Gets the row groups of a step into memory, and begins with those of the next window.
    pub(crate) fn step(&self, number: u64) -> Result<Step<'_>, Store> {
        let met = self.met(number);
        let mut wanted = Vec::new();
        for (epoch, window) in &met {
            wanted.extend(self.needed(epoch, window));
        }
        let pinned = self.tokens.groups.pin(&wanted)?;
        let parts = met
            .iter()
            .map(|(epoch, window)| {
                let pieces = self.pieces(epoch, *window, &pinned);
                (pieces, epoch.groups(window).to_vec())
            })
            .collect();
        if let Some((epoch, window)) = met.last() {
            self.read_ahead(epoch, window);
        }
        Ok(Step { rows: self, number, parts, pinned, provenance: OnceLock::new() })
    }

    fn met(&self, step: u64) -> Vec<(Arc<Epoch>, Window)> {
        let mut met = Vec::new();
        for number in self.lanes.epochs_met(step) {
            let epoch = self.epoch(number);
            met.extend(self.lanes.windows(step, &epoch).map(|window| (epoch.clone(), window)));
        }
        met
    }

    /// The row groups that this rank needs of a window.
    fn needed(&self, epoch: &Epoch, window: &Window) -> Vec<usize> {
        let groups = epoch.groups(window);
        let needed = epoch.needed(window).map(|place| groups[place] as usize);
        needed.filter(|&group| self.lanes.group_tokens()[group] > 0).collect()
    }

    fn epoch(&self, number: u64) -> Arc<Epoch> {
        let mut epochs = self.epochs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(epoch) = epochs.iter().find(|epoch| epoch.number() == number) {
            return epoch.clone();
        }
        let epoch = Arc::new(self.lanes.epoch(number));
        epochs.push_back(epoch.clone());
        if epochs.len() > EPOCHS {
            epochs.pop_front();
        }
        epoch
    }

    fn pieces(&self, epoch: &Epoch, window: Window, pinned: &Pinned) -> Arc<WindowPieces> {
        // Under the lock, so that threads that fill neighbouring steps do not all cut it.
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(pieces) = windows.iter().find(|pieces| *pieces.window() == window) {
            return pieces.clone();
        }
        let groups = epoch.groups(&window);
        let lengths = |place: usize| {
            pinned.get(groups[place] as usize).map_or(&[][..], |group| &group.lengths)
        };
        let pieces = Arc::new(WindowPieces::new(&self.lanes, epoch, window, lengths));
        windows.push_back(pieces.clone());
        if windows.len() > WINDOWS {
            windows.pop_front();
        }
        pieces
    }

    /// Begins to decode the window after this one.
    fn read_ahead(&self, epoch: &Arc<Epoch>, window: &Window) {
        let mut index = window.index + 1;
        let mut epoch = epoch.clone();
        if index >= self.lanes.windows_per_epoch() {
            let Some(number) = epoch.number().checked_add(1) else { return };
            (epoch, index) = (self.epoch(number), 0);
        }
        let place = Some((epoch.number(), index));
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if *next == place {
            return;
        }
        let Some(window) = epoch.window(index) else { return };
        // Where there is not room for all of it yet, the next step tries again.
        *next = place.filter(|_| self.tokens.groups.ahead(&self.needed(&epoch, &window)));
    }
}

impl Step<'_> {
    /// Writes some rows of the rank to `out`.
    pub(crate) fn fill(&self, rows: Range<u64>, mut out: &mut [u8]) -> Result<(), Store> {
        for row in rows {
            for (pieces, groups) in &self.parts {
                for segment in pieces.row(self.number, row) {
                    let group = groups[segment.place] as usize;
                    let from = segment.begin as usize;
                    let tokens = self
                        .pinned
                        .get(group)
                        .and_then(|g| g.tokens.get(from..from + segment.len as usize));
                    let split = out.split_at_mut_checked(4 * segment.len as usize);
                    let (Some(tokens), Some((now, later))) = (tokens, split) else {
                        return Err(self.inconsistent());
                    };
                    now.copy_from_slice(bytemuck::cast_slice(tokens));
                    out = later;
                }
            }
        }
        if out.is_empty() { Ok(()) } else { Err(self.inconsistent()) }
    }

    /// Calls `each` with row, document of the dataset, place in it and length of every piece, in order.
    pub(super) fn each_piece(&self, mut each: impl FnMut(u64, u64, u64, u64)) {
        for row in 0..self.rows.rows() {
            for (pieces, groups) in &self.parts {
                for segment in pieces.row(self.number, row) {
                    let group = groups[segment.place] as usize;
                    let document = self.rows.tokens.documents[group] + segment.document;
                    each(row, document, segment.offset, segment.len);
                }
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
        let why = format!("step {} is not as long as its index says", self.number);
        Store::BadStore { path: self.rows.tokens.source().origin().into(), why }
    }
}

impl Step<'_> {
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
