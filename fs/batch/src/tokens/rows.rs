//! The rows of a token source under a spec: which row groups a step needs.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use batchfs_sampler::SpecError;
use batchfs_sampler::lanes::{LaneSpec, Lanes, Mixture, SourceRow};
use batchfs_store::{DType, Error as Store};

use super::Provenance;
use super::sources::{Tokens, check_budget, need, whole};
use super::step::Step;
use super::windows::{Met, Windows};
use crate::{Error, Result};

/// A step that has less than one of so many tokens of its row groups does not wait until they are decoded.
const LITTLE: u64 = 8;

/// The rows of a token source, or of a mixture, under a spec: any step of them, at any time.
pub struct TokenRows {
    pub(super) tokens: Arc<Tokens>,
    pub(super) lanes: Lanes,
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
            let windows = Windows::new(own, first, tokens.counts[part].into(), tokens.kept.clone());
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
    pub(super) fn read_ahead(&self, soon: &[usize], last: &[Option<Met>]) {
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
