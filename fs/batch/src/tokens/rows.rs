use std::ops::Range;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread;

use batchfs_sampler::SpecError;
use batchfs_sampler::lanes::{LaneSpec, Lanes, Mix, Mixture, Segment, SourceRow, WindowPieces};
use batchfs_store::{DType, Error as Store, TokenSource};
use rayon::ThreadPool;

use super::Provenance;
use super::budget::{Need, machine};
use super::groups::{Groups, Pinned};
use super::joined::Joined;
use super::windows::{Met, Windows};
use crate::gather::share;
use crate::{Error, Result};

/// A step that has less than one of so many tokens of its row groups does not wait until they are decoded.
const LITTLE: u64 = 8;

/// Bytes that a thread should have to copy before another one is woken.
const PART: usize = 1 << 20;

/// A source of tokens, or a mixture of several, and the memory for decoded row groups, shared by
/// all views of it.
pub struct Tokens {
    groups: Groups,
    counts: Arc<[u64]>,
    /// Documents before each row group.
    documents: Arc<[u64]>,
    /// If there are several sources.
    mix: Option<Mix>,
    /// The first row group of each source.
    firsts: Vec<usize>,
    /// Path or address of each source.
    origins: Vec<String>,
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
    /// Those of them that no step was waiting for.
    pub ahead: u64,
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
        let origins = vec![source.origin().to_owned()];
        Tokens::with(source, None, vec![0], origins, spec, budget, threads)
    }

    /// Takes several sources, each with its name in `mix`. The rest is as for [`new`](Self::new);
    /// the budget is one for all of them.
    ///
    /// # Errors
    /// As [`new`](Self::new); [`Error::Dataset`] if the names are not those of the mix.
    pub fn mixed(
        sources: Vec<(String, Arc<dyn TokenSource>)>,
        mix: Mix,
        spec: LaneSpec,
        budget: Option<u64>,
        threads: usize,
    ) -> Result<Arc<Tokens>> {
        let mut named = sources;
        let mut ordered = Vec::with_capacity(named.len());
        for name in mix.names() {
            let Some(at) = named.iter().position(|(known, _)| known == name) else {
                let why = format!("{name} has a weight in the mixture, and is no source");
                return Err(Error::Dataset(why));
            };
            ordered.push(named.swap_remove(at).1);
        }
        if let Some((name, _)) = named.first() {
            return Err(Error::Dataset(format!("the source {name} has no weight in the mixture")));
        }
        let origins = ordered.iter().map(|source| source.origin().to_owned()).collect();
        let joined = Joined::new(&mix, ordered);
        let firsts = joined.firsts();
        Tokens::with(Arc::new(joined), Some(mix), firsts, origins, spec, budget, threads)
    }

    fn with(
        source: Arc<dyn TokenSource>,
        mix: Option<Mix>,
        firsts: Vec<usize>,
        origins: Vec<String>,
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
        Lanes::new(spec, counts.clone())?;
        let need = need(&*source, &firsts, &spec);
        // What nobody asked for is not more than the machine has.
        let limit = budget.unwrap_or_else(|| need.ample().min(machine().unwrap_or(u64::MAX)));
        check_budget(limit, need, &*source, &spec)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads == 0 { cores } else { threads };
        let groups = Groups::new(source, limit, threads)
            .map_err(|e| Error::Dataset(format!("cannot start a thread: {e}")))?;
        Ok(Arc::new(Tokens { groups, counts, documents, mix, firsts, origins }))
    }

    /// The mixture, if there are several sources.
    pub fn mix(&self) -> Option<&Mix> {
        self.mix.as_ref()
    }

    /// Path or address of each source, in the order of the mix.
    pub fn origins(&self) -> &[String] {
        &self.origins
    }

    /// The name of the source that a row group is of, if there are several.
    pub fn source_of(&self, group: usize) -> Option<&str> {
        let at = self.firsts.partition_point(|&first| first <= group).checked_sub(1)?;
        self.mix.as_ref()?.names().nth(at)
    }

    /// The row groups of each source.
    fn parts(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        parts(&self.firsts, self.counts.len())
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
        let received = self.source().received_bytes();
        TokenFigures { received, ..self.groups.figures() }
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

fn parts(firsts: &[usize], count: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let ends = firsts.iter().skip(1).copied().chain([count]);
    firsts.iter().zip(ends).map(|(&first, end)| first..end)
}

/// The spec of each source of a mixture: a rank can have rows of any of its lanes.
fn whole(spec: &LaneSpec) -> LaneSpec {
    LaneSpec { rank: 0, world: 1, ..*spec }
}

fn need(source: &dyn TokenSource, firsts: &[usize], spec: &LaneSpec) -> Need {
    let groups = source.groups();
    if let [_] = firsts {
        return Need::new(groups, spec, 1);
    }
    // A step of a mixture has rows of one step of a source, or of two that follow each other.
    let each = parts(firsts, groups.len()).map(|part| Need::new(&groups[part], &whole(spec), 2));
    each.fold(Need::default(), Need::and)
}

fn check_budget(limit: u64, need: Need, source: &dyn TokenSource, spec: &LaneSpec) -> Result<()> {
    if limit >= need.least {
        return Ok(());
    }
    let sizes = source.groups().iter().map(|group| group.decoded_bytes());
    let (group, bytes) = sizes.enumerate().max_by_key(|&(_, bytes)| bytes).unwrap_or((0, 0));
    let place = source.place(group);
    let largest =
        format!("the largest is row group {} of {}, {bytes} bytes", place.group, place.file);
    Err(Error::Budget { limit, needed: need.least, largest, spec: spec.to_string() })
}

/// The rows of a token source, or of a mixture, under a spec: any step of them, at any time.
pub struct TokenRows {
    tokens: Arc<Tokens>,
    lanes: Lanes,
    /// Where rows come from, if there are several sources.
    mixture: Option<Mixture>,
    sources: Vec<Windows>,
    /// The windows that were read ahead last.
    next: Mutex<Vec<(u64, u64)>>,
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
    /// Where each row comes from, if there are several sources.
    mixed: Vec<SourceRow>,
    /// The windows of each source, with their row groups.
    parts: Vec<Vec<(Arc<WindowPieces>, Vec<usize>)>>,
    pinned: Pinned,
    /// What is to be read ahead when this step is done.
    later: Option<(Vec<usize>, Vec<Option<Met>>)>,
    provenance: OnceLock<Provenance>,
}

/// What a step needs, before it is read.
struct Plan {
    mixed: Vec<SourceRow>,
    /// The windows of each source that the step has tokens of.
    met: Vec<Vec<Met>>,
    /// The window of each source that comes last, or that it will need next if it has none here.
    last: Vec<Option<Met>>,
}

impl TokenRows {
    /// The rows of `tokens` under `spec`.
    ///
    /// # Errors
    /// [`Error::Sample`] if the spec does not fit the data, [`Error::Budget`] if the budget is too
    /// small for it.
    pub fn new(tokens: Arc<Tokens>, spec: LaneSpec) -> Result<TokenRows> {
        let lanes = Lanes::new(spec, tokens.counts.clone())?;
        let mixture = tokens.mix.as_ref().map(|mix| Mixture::new(mix, spec));
        let own = if mixture.is_some() { whole(&spec) } else { spec };
        let mut sources = Vec::with_capacity(tokens.firsts.len());
        for part in tokens.parts() {
            let first = part.start;
            let windows = Windows::new(own, first, tokens.counts[part].into());
            sources.push(windows.map_err(|error| match (error, tokens.source_of(first)) {
                (Error::Sample(why), Some(name)) => {
                    Error::Sample(SpecError::Source { name: name.to_owned(), why: Box::new(why) })
                }
                (error, _) => error,
            })?);
        }
        let need = need(tokens.source(), &tokens.firsts, &spec);
        check_budget(tokens.groups.budget(), need, tokens.source(), &spec)?;
        Ok(TokenRows { tokens, lanes, mixture, sources, next: Mutex::default() })
    }

    /// The spec, and where epochs begin. Of a mixture these have the tokens of all sources.
    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    /// The source, shared with other views.
    pub fn tokens(&self) -> &Arc<Tokens> {
        &self.tokens
    }

    /// Type of a token in the rows. That of the [source](TokenSource::dtype) has the same bits.
    pub fn dtype(&self) -> DType {
        if self.lanes.spec().unsigned { DType::UInt32 } else { DType::Int32 }
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
        for (source, met) in self.sources.iter().zip(self.plan(step).met) {
            for met in met {
                let (epoch, window) = (met.1.epoch, met.1.index);
                let groups = source.needed(&met).into_iter();
                parts.extend(groups.map(|group| StepPart { epoch, window, group }));
            }
        }
        parts
    }

    /// Where each row of this rank in a step comes from; `None` if there is one source.
    pub fn mixed(&self, step: u64) -> Option<Vec<SourceRow>> {
        self.mixture.as_ref().map(|mixture| mixture.rows(step))
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
        let Plan { mixed, met, last } = self.plan(number);
        let wanted = |(source, met): (&Windows, &Vec<Met>)| {
            met.iter().flat_map(|met| source.needed(met)).collect::<Vec<_>>()
        };
        let wanted: Vec<usize> = self.sources.iter().zip(&met).flat_map(wanted).collect();
        // What a source needs soon, though this step has nothing of it.
        let soon: Vec<usize> = self
            .sources
            .iter()
            .zip(&met)
            .zip(&last)
            .filter(|((_, met), _)| met.is_empty())
            .filter_map(|((source, _), last)| Some(source.needed(last.as_ref()?)))
            .flatten()
            .collect();
        let all: u64 = wanted.iter().map(|&group| self.tokens.counts[group]).sum();
        let spec = self.lanes.spec();
        let own = spec.rows().saturating_mul(spec.seq_len);
        let little = own.saturating_mul(LITTLE) <= all;
        let pinned = self.tokens.groups.pin(&wanted, &soon, little)?;
        let parts = self.sources.iter().zip(&met).map(|(source, met)| {
            let part = |met| (source.pieces(met, &pinned), source.groups(met));
            met.iter().map(part).collect()
        });
        let parts = parts.collect();
        // Pieces of packed row groups are decoded first, which needs the processor.
        let later = if pinned.packed() {
            Some((soon, last))
        } else {
            self.read_ahead(&soon, &last);
            None
        };
        Ok(Step { rows: self, number, mixed, parts, pinned, later, provenance: OnceLock::new() })
    }

    fn plan(&self, step: u64) -> Plan {
        let Some(mixture) = &self.mixture else {
            let met: Vec<Met> =
                self.sources.iter().flat_map(|source| source.met(step..=step)).collect();
            let last = vec![met.last().cloned()];
            return Plan { mixed: Vec::new(), met: vec![met], last };
        };
        let all = mixture.step(step);
        let (mut met, mut last) = (Vec::new(), Vec::new());
        for (at, source) in self.sources.iter().enumerate() {
            // Rows of a source are in order.
            let mut own = all.rows.iter().filter(|row| row.source == at).map(|row| row.step);
            let found = match (own.next(), own.next_back()) {
                (Some(first), end) => source.met(first..=end.unwrap_or(first)),
                _ => Vec::new(),
            };
            let next = || source.met(all.next[at].step..=all.next[at].step).into_iter().next();
            last.push(found.last().cloned().or_else(next));
            met.push(found);
        }
        Plan { mixed: all.rows, met, last }
    }

    /// Begins to decode what is needed `soon`, and the windows after these.
    fn read_ahead(&self, soon: &[usize], last: &[Option<Met>]) {
        let after = self.sources.iter().zip(last).map(|(source, last)| {
            let next = source.after(last.as_ref()?)?;
            Some((source, next))
        });
        let after: Vec<_> = after.flatten().collect();
        let place = |(_, met): &(&Windows, Met)| (met.1.epoch, met.1.index);
        let places: Vec<(u64, u64)> = after.iter().map(place).collect();
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        if *next == places {
            return;
        }
        let mut wanted = soon.to_vec();
        wanted.extend(after.iter().flat_map(|(source, met)| source.needed(met)));
        // Where there is not room for all of it yet, the next step tries again.
        *next = if self.tokens.groups.ahead(&wanted) { places } else { Vec::new() };
    }
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
}

impl Step<'_> {
    /// Writes some rows of the rank to `out`; all of them on several threads if they are to be decoded.
    pub(crate) fn fill(&self, rows: Range<u64>, out: &mut [u8]) -> Result<(), Store> {
        let all = rows == (0..self.rows.rows()) && self.pinned.packed();
        let threads = if all { thread::available_parallelism().map_or(1, usize::from) } else { 1 };
        let each = rows.end.div_ceil(threads as u64).max(1);
        let len = out.len() / rows.end.max(1) as usize * each as usize;
        if each >= rows.end || len == 0 {
            return self.copy(rows, out);
        }
        let parts = Mutex::new(rows.clone().step_by(each as usize).zip(out.chunks_mut(len)));
        let failed = OnceLock::new();
        // The lock is not held while something could panic.
        let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
        let take_parts = || {
            while let Some((from, out)) = next() {
                if let Err(error) = self.copy(from..(from + each).min(rows.end), out) {
                    let _ = failed.set(error);
                    break;
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..threads.min(rows.end as usize) {
                // What cannot be started leaves the work to the others.
                let _ = thread::Builder::new().spawn_scoped(scope, take_parts);
            }
            take_parts();
        });
        failed.into_inner().map_or(Ok(()), Err)
    }

    fn copy(&self, rows: Range<u64>, mut out: &mut [u8]) -> Result<(), Store> {
        for row in rows {
            for (group, segment) in self.segments(row) {
                let split = out.split_at_mut_checked(4 * segment.len as usize);
                let (now, later) = split.ok_or_else(|| self.inconsistent())?;
                if !self.pinned.copy(group, segment.begin as usize, now)? {
                    return Err(self.inconsistent());
                }
                out = later;
            }
        }
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
