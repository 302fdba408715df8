//! Token sources, and the memory for their decoded row groups.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use batchfs_sampler::lanes::{LaneSpec, Lanes, Mix};
use batchfs_store::TokenSource;

use super::budget::{Need, machine};
use super::groups::Groups;
use super::joined::Joined;
use crate::{Error, Result};

/// A source of tokens, or a mixture of several, and the memory for decoded row groups, shared by
/// all views of it.
pub struct Tokens {
    pub(super) groups: Groups,
    pub(super) counts: Arc<[u64]>,
    /// Documents before each row group.
    pub(super) documents: Arc<[u64]>,
    /// If there are several sources.
    pub(super) mix: Option<Mix>,
    /// The first row group of each source.
    pub(super) firsts: Vec<usize>,
    /// Bytes that the pieces of windows take which all views keep.
    pub(super) kept: Arc<AtomicU64>,
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
    /// `spec` needs, and a window more to read ahead, and where tokens take 16 bits half of it stays unused.
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

    /// Takes one source, or those of a mixture, each with its name. The rest is as for [`new`](Self::new).
    ///
    /// # Errors
    /// As [`mixed`](Self::mixed); [`Error::Dataset`] if there are not as many sources as that.
    pub fn of(
        mut sources: Vec<(String, Arc<dyn TokenSource>)>,
        mix: Option<Mix>,
        spec: LaneSpec,
        budget: Option<u64>,
        threads: usize,
    ) -> Result<Arc<Tokens>> {
        match (mix, sources.pop()) {
            (Some(mix), last) => {
                sources.extend(last);
                Tokens::mixed(sources, mix, spec, budget, threads)
            }
            (None, Some((_, source))) if sources.is_empty() => {
                Tokens::new(source, spec, budget, threads)
            }
            (None, Some(_)) => {
                let why = "there are several sources, and no mix that says how much of each";
                Err(Error::Dataset(why.to_owned()))
            }
            (None, None) => Err(Error::Dataset("there is no source".to_owned())),
        }
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
        // More windows than are needed would cost memory that is new, which takes as long as decoding.
        let refund = budget.is_some() || limit < need.ample();
        check_budget(limit, need, &*source, &spec)?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if threads == 0 { cores } else { threads };
        let groups = Groups::new(source, firsts.clone(), limit, refund, threads)
            .map_err(|e| Error::Dataset(format!("cannot start a thread: {e}")))?;
        Ok(Arc::new(Tokens {
            groups,
            counts,
            documents,
            mix,
            firsts,
            kept: Arc::default(),
            origins,
        }))
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
    pub(super) fn parts(&self) -> impl Iterator<Item = Range<usize>> + '_ {
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

pub(super) fn parts(firsts: &[usize], count: usize) -> impl Iterator<Item = Range<usize>> + '_ {
    let ends = firsts.iter().skip(1).copied().chain([count]);
    firsts.iter().zip(ends).map(|(&first, end)| first..end)
}

/// The spec of each source of a mixture: a rank can have rows of any of its lanes.
pub(super) fn whole(spec: &LaneSpec) -> LaneSpec {
    LaneSpec { rank: 0, world: 1, ..*spec }
}

pub(super) fn need(source: &dyn TokenSource, firsts: &[usize], spec: &LaneSpec) -> Need {
    let groups = source.groups();
    if let [_] = firsts {
        return Need::new(groups, spec, 1);
    }
    // A step of a mixture has rows of one step of a source, or of two that follow each other.
    let each = parts(firsts, groups.len()).map(|part| Need::new(&groups[part], &whole(spec), 2));
    each.fold(Need::default(), Need::and)
}

pub(super) fn check_budget(
    limit: u64,
    need: Need,
    source: &dyn TokenSource,
    spec: &LaneSpec,
) -> Result<()> {
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
