use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use batchfs_sampler::{Sampler, SpecError};
use batchfs_store::{DType, Layout as Records, Stream};

use crate::face::Making;
use crate::layout::{Array, Fill};
use crate::order::Order;
use crate::render::Picture;
use crate::resident::{self, Resident};
use crate::stamp::stamp;
use crate::tokens::{Documents, TokenRows, Tokens};
use crate::{Error, Face, Item, Key, Layout, Result, ViewSpec};

/// Most record ids that are held for one step: half a GiB of them.
const MOST_IDS: u64 = 1 << 26;

/// A stream and the name of its folder in the mount.
pub struct NamedStream {
    /// The name.
    pub name: String,
    /// The records.
    pub stream: Arc<dyn Stream>,
}

/// Aligned streams: record `i` of one belongs to record `i` of each other.
pub struct Dataset {
    origin: PathBuf,
    streams: Vec<NamedStream>,
    len: u64,
    /// The source of the only stream, if that is one of tokens.
    tokens: Option<Arc<Tokens>>,
    /// The streams that are in memory, by number.
    resident: BTreeMap<u16, Arc<Resident>>,
    /// What whoever mounts it should know.
    notes: Vec<String>,
    /// What each stream's source was when it was opened, if that is told.
    stamps: Vec<Option<String>>,
}

impl Dataset {
    /// Joins streams of equal length.
    ///
    /// # Errors
    /// [`Error::Dataset`] if there are none or too many, or their lengths differ.
    pub fn new(origin: impl Into<PathBuf>, streams: Vec<NamedStream>) -> Result<Dataset> {
        let origin = origin.into();
        let bad = |why: String| Error::Dataset(format!("{}: {why}", origin.display()));
        let lengths: Vec<_> = streams.iter().map(|s| (s.name.as_str(), s.stream.len())).collect();
        batchfs_store::check_lengths(&lengths).map_err(bad)?;
        let len = streams.first().map_or(0, |s| s.stream.len());
        if streams.len() > usize::from(Dataset::MOST_STREAMS) {
            return Err(bad(format!(
                "{} streams are more than the {} that one mount can show",
                streams.len(),
                Dataset::MOST_STREAMS
            )));
        }
        Ok(Dataset {
            origin,
            streams,
            len,
            tokens: None,
            resident: BTreeMap::new(),
            notes: Vec::new(),
            stamps: Vec::new(),
        })
    }

    /// A stream of tokens, which is always alone: its records are the documents, its batches rows of
    /// packed documents.
    pub fn of_tokens(tokens: Arc<Tokens>) -> Dataset {
        let stream = Documents::new(tokens.clone());
        let streams = vec![NamedStream { name: "tokens".to_owned(), stream: Arc::new(stream) }];
        let (origin, len) = (tokens.source().origin().into(), tokens.documents());
        Dataset {
            origin,
            streams,
            len,
            tokens: Some(tokens),
            resident: BTreeMap::new(),
            notes: Vec::new(),
            stamps: Vec::new(),
        }
    }

    /// Reads all streams into memory whose records can be kept there, each at a page of its own, on
    /// `threads` threads (0 takes as many as there are cores). [`notes`](Self::notes) says of the
    /// others why they are not.
    ///
    /// # Errors
    /// [`Error::NotEnough`] before anything is read, if the system has no room for them;
    /// [`Error::Store`] if a record cannot be read.
    pub fn make_resident(&mut self, threads: usize) -> Result<()> {
        let mut needed = 0u64;
        let mut wanted = Vec::new();
        for (number, named) in self.streams.iter().enumerate() {
            match Resident::needed(&*named.stream) {
                Ok(bytes) => {
                    needed = needed.saturating_add(bytes);
                    wanted.push(number);
                }
                Err(why) => self.notes.push(format!("{}: {why}", named.name)),
            }
        }
        let available = resident::available();
        if needed > available {
            return Err(Error::NotEnough { needed, available });
        }
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let pool = pool.map_err(|e| Error::Dataset(format!("cannot start threads: {e}")))?;
        for number in wanted {
            let stream = self.streams[number].stream.clone();
            let kept = pool.install(|| Resident::load(stream));
            let kept = Arc::new(kept.map_err(|source| Error::Store {
                item: self.streams[number].name.clone(),
                source,
            })?);
            self.streams[number].stream = kept.clone();
            self.resident.insert(number as u16, kept);
        }
        Ok(())
    }

    /// The stream with this number, if it is in memory.
    pub fn resident(&self, number: u16) -> Option<&Arc<Resident>> {
        self.resident.get(&number)
    }

    /// Has `schema.json` tell what the streams' sources are, so that another process can see
    /// whether it finds the same ones, and read records by itself.
    #[must_use]
    pub fn stamped(mut self) -> Dataset {
        self.stamps = self.streams.iter().map(|s| stamp(s.stream.origin())).collect();
        self
    }

    /// What the source of the stream with this number was, if that is told.
    pub(crate) fn stamp_of(&self, number: u16) -> Option<&str> {
        self.stamps.get(usize::from(number))?.as_deref()
    }

    /// What whoever mounts it should know, a line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The source of its tokens, if it is made of these.
    pub fn tokens(&self) -> Option<&Arc<Tokens>> {
        self.tokens.as_ref()
    }

    /// Reads a spec for views of this data.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse_spec(&self, text: &str) -> Result<ViewSpec, SpecError> {
        match self.tokens {
            Some(_) => text.parse().map(ViewSpec::Tokens),
            None => text.parse().map(ViewSpec::Records),
        }
    }

    /// How many streams a dataset may have.
    pub const MOST_STREAMS: u16 = 1000;

    /// Where it lies.
    pub fn origin(&self) -> &Path {
        &self.origin
    }

    /// The files and folders that it is made of, or addresses: more than one if it is a mixture.
    pub fn places(&self) -> Vec<PathBuf> {
        match &self.tokens {
            Some(tokens) => tokens.origins().iter().map(PathBuf::from).collect(),
            None => vec![self.origin.clone()],
        }
    }

    /// The streams, in the order of their numbers.
    pub fn streams(&self) -> &[NamedStream] {
        &self.streams
    }

    /// The stream with this number.
    pub fn stream(&self, number: u16) -> Option<&NamedStream> {
        self.streams.get(usize::from(number))
    }

    /// The number of the stream of this name.
    pub fn number_of(&self, name: &str) -> Option<u16> {
        self.streams.iter().position(|s| s.name == name).map(|i| i as u16)
    }

    /// Records in each stream.
    #[allow(clippy::len_without_is_empty)]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The latest change of any of the streams.
    pub fn modified(&self) -> SystemTime {
        self.streams.iter().map(|s| s.stream.modified()).max().unwrap_or(SystemTime::UNIX_EPOCH)
    }
}

/// A dataset under one sampler spec.
pub struct View {
    number: u16,
    prefix: String,
    dataset: Arc<Dataset>,
    order: Order,
}

impl View {
    /// A view; `number` tells it from others in [`Key`]s, `prefix` begins its paths in messages.
    ///
    /// # Errors
    /// [`Error::Sample`] if the spec does not fit the data, [`Error::Budget`] if it needs more
    /// memory than there is for row groups.
    pub fn new(
        number: u16,
        prefix: &str,
        dataset: Arc<Dataset>,
        spec: impl Into<ViewSpec>,
    ) -> Result<View> {
        let order = match (spec.into(), &dataset.tokens) {
            (ViewSpec::Records(spec), None) => Order::Records(Sampler::new(spec, dataset.len())?),
            (ViewSpec::Tokens(spec), Some(tokens)) => {
                Order::Tokens(Arc::new(TokenRows::new(tokens.clone(), spec)?))
            }
            (spec, _) => {
                let what = if dataset.tokens.is_some() { "tokens" } else { "records" };
                return Err(Error::Dataset(format!("{spec} is no spec for a dataset of {what}")));
            }
        };
        Ok(View { number, prefix: prefix.to_owned(), dataset, order })
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The data.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// The order of records; `None` for a view of tokens.
    pub fn sampler(&self) -> Option<&Sampler> {
        match &self.order {
            Order::Records(sampler) => Some(sampler),
            Order::Tokens(_) => None,
        }
    }

    /// The rows of tokens; `None` for a view of records.
    pub fn rows(&self) -> Option<&Arc<TokenRows>> {
        match &self.order {
            Order::Records(_) => None,
            Order::Tokens(rows) => Some(rows),
        }
    }

    /// The spec.
    pub fn spec(&self) -> ViewSpec {
        match &self.order {
            Order::Records(sampler) => ViewSpec::Records(*sampler.spec()),
            Order::Tokens(rows) => ViewSpec::Tokens(*rows.lanes().spec()),
        }
    }

    /// Records, or rows, of this rank in a batch.
    pub fn local_batch(&self) -> u64 {
        match &self.order {
            Order::Records(sampler) => sampler.local_batch(),
            Order::Tokens(rows) => rows.rows(),
        }
    }

    /// Steps of a cycle, or of the first epoch: those that a listing shows.
    pub fn steps_per_cycle(&self) -> u64 {
        match &self.order {
            Order::Records(sampler) => sampler.steps_per_cycle(),
            Order::Tokens(rows) => rows.steps_per_epoch(),
        }
    }

    /// The cycle, or epoch, of a step.
    pub fn cycle_of(&self, step: u64) -> u64 {
        match &self.order {
            Order::Records(sampler) => sampler.cycle_of(step),
            Order::Tokens(rows) => rows.lanes().epoch_of(step),
        }
    }

    /// The path, relative to the mount, that `key` stands for.
    pub fn name(&self, key: Key) -> String {
        let stream = |n| self.dataset.stream(n).map_or("?", |s: &NamedStream| &s.name);
        let (prefix, number, suffix) = (&self.prefix, key.number, key.face.suffix());
        match key.item {
            Item::Batch(s) => format!("{prefix}{}/batch/{number}{suffix}", stream(s)),
            Item::Record(s) => format!("{prefix}{}/record/{number}{suffix}", stream(s)),
            Item::Index => format!("{prefix}index/{number}{suffix}"),
            Item::All => format!("{prefix}all/batch/{number}{suffix}"),
        }
    }

    /// Whether an item of it is made by copying records that lie in the source as they are.
    pub(crate) fn only_copies(&self, item: Item) -> bool {
        let streams = self.dataset.streams();
        let decodes = |s: &NamedStream| s.stream.decodes();
        self.rows().is_none()
            && match item {
                Item::Batch(s) | Item::Record(s) => {
                    self.dataset.stream(s).is_some_and(|s| !decodes(s))
                }
                Item::All => !streams.iter().any(decodes),
                Item::Index => true,
            }
    }

    /// The record ids that `key` is made of; none for a step of tokens, which is made of pieces.
    ///
    /// # Errors
    /// [`Error::NoRecord`] for a record id out of range; [`Error::TooManyIds`] for a batch of more
    /// records than anybody can have meant. Every step is valid.
    pub fn plan(&self, key: Key) -> Result<Vec<u64>> {
        match key.item {
            Item::Record(_) if key.number < self.dataset.len => Ok(vec![key.number]),
            Item::Record(_) => Err(Error::NoRecord { item: self.name(key), len: self.dataset.len }),
            Item::Batch(_) | Item::Index | Item::All => {
                let Order::Records(sampler) = &self.order else { return Ok(Vec::new()) };
                let count = sampler.local_batch();
                if count > MOST_IDS {
                    let (needed, limit) = (count.saturating_mul(8), MOST_IDS * 8);
                    return Err(Error::TooManyIds { item: self.name(key), needed, limit });
                }
                let mut ids = vec![0; count as usize];
                sampler.ids(key.number, &mut ids);
                Ok(ids)
            }
        }
    }

    /// Size and structure of the file that `key` names; for one that is not gathered, of the file
    /// that it is made from, or that it describes. Reads no payload.
    ///
    /// # Errors
    /// [`Error::NoFace`] with the reason, [`Error::NoRecord`], [`Error::Overflow`]; for ragged
    /// streams [`Error::Store`] if the index is damaged.
    pub fn layout(&self, key: Key) -> Result<Layout> {
        let no = |why: String| Error::NoFace { item: self.name(key), why };
        key.item.check(key.face).map_err(|why| no(why.to_owned()))?;
        let face = match (key.face, key.item) {
            (Face::Json, Item::All) => Face::Safetensors,
            (face, _) if face.making() == Making::Gathered => face,
            _ => Face::Bare,
        };
        let arrays = match (&self.order, key.item) {
            (Order::Tokens(rows), Item::Batch(_) | Item::All) => rows.arrays(face).map_err(no)?,
            (Order::Tokens(rows), Item::Index) => rows.index_arrays().map_err(no)?,
            _ => self.arrays(key)?,
        };
        let about = match face {
            Face::Safetensors | Face::Arrow => self.about(key),
            _ => String::new(),
        };
        Layout::frame(arrays, face, &about).map_err(no)
    }

    /// How the bytes of the file that `key` names come about.
    pub fn making(&self, key: Key) -> Making {
        match (&self.order, key.item, key.face) {
            // It says where the tokens come from, which is known when they were read.
            (Order::Tokens(_), Item::Batch(_) | Item::All, Face::Json) => Making::Rendered,
            (_, _, face) => face.making(),
        }
    }

    /// The size of the file that `key` names, `None` for one whose size is not known before it is
    /// made. Reads no payload.
    ///
    /// # Errors
    /// As [`layout`](Self::layout): that there is no such file, and why.
    pub fn size(&self, key: Key) -> Result<Option<u64>> {
        // How long a document is, is known when it was read.
        if let (Some(_), Item::Record(_)) = (self.rows(), key.item) {
            let no = |why: &str| Error::NoFace { item: self.name(key), why: why.to_owned() };
            key.item.check(key.face).map_err(no)?;
            if key.number >= self.dataset.len {
                return Err(Error::NoRecord { item: self.name(key), len: self.dataset.len });
            }
            return match key.face {
                Face::Png => Err(no("tokens are no picture")),
                Face::Json => Err(no("a document has no description of its own; see schema.json")),
                _ => Ok(None),
            };
        }
        match self.making(key) {
            Making::Gathered => Ok(Some(self.layout(key)?.size)),
            Making::Described => Ok(Some(self.describe(key)?.len() as u64)),
            Making::Rendered => {
                let layout = self.layout(key)?;
                if key.face == Face::Png {
                    let no = |why| Error::NoFace { item: self.name(key), why };
                    Picture::of(&layout).map_err(no)?;
                }
                Ok(None)
            }
        }
    }

    /// The arrays of an item, without places.
    fn arrays(&self, key: Key) -> Result<Vec<Array>> {
        let array = |name: String, dtype, shape, fill| {
            Array::new(name, dtype, shape, fill)
                .map_err(|why| Error::NoFace { item: self.name(key), why })
        };
        let batch = self.local_batch();
        let streams = match key.item {
            Item::Index => {
                return Ok(vec![array("ids".into(), DType::UInt64, vec![batch], Fill::Ids)?]);
            }
            Item::Batch(s) | Item::Record(s) => s..s + 1,
            Item::All => 0..self.dataset.streams.len() as u16,
        };
        // Dense shapes are the same for all records, so that no step has to be planned for them.
        let ids = match key.item {
            Item::Record(_) => self.plan(key)?,
            _ if self.is_dense(streams.clone()) => Vec::new(),
            _ => self.plan(key)?,
        };
        let mut all = Vec::new();
        for s in streams {
            let Some(NamedStream { name, stream }) = self.dataset.stream(s) else {
                let why = "there is no such stream".to_owned();
                return Err(Error::NoFace { item: self.name(key), why });
            };
            let dtype = stream.schema().dtype;
            let store = |source| Error::Store { item: self.name(key), source };
            let named = |part: &str| match key.item {
                Item::All => format!("{name}.{part}"),
                _ => part.to_owned(),
            };
            let data = if key.item == Item::All { name.clone() } else { "data".to_owned() };
            match (&stream.schema().layout, key.item) {
                (_, Item::Record(_)) => {
                    let mut shape = vec![0; stream.schema().ndim()];
                    stream.shapes(&ids, &mut shape).map_err(store)?;
                    all.push(array(data, dtype, shape, Fill::Records(s))?);
                }
                (Records::Dense { item_shape }, _) => {
                    let shape = std::iter::once(batch).chain(item_shape.iter().copied()).collect();
                    all.push(array(data, dtype, shape, Fill::Records(s))?);
                }
                (Records::Ragged { ndim }, _) => {
                    let mut elements = vec![0; ids.len()];
                    stream.elements(&ids, &mut elements).map_err(store)?;
                    let values = elements
                        .iter()
                        .try_fold(0u64, |n, e| n.checked_add(*e))
                        .filter(|n| i32::try_from(*n).is_ok())
                        .ok_or_else(|| Error::Overflow { item: self.name(key) })?;
                    all.push(array(named("values"), dtype, vec![values], Fill::Records(s))?);
                    let offsets = vec![batch + 1];
                    all.push(array(named("cu_seqlens"), DType::Int32, offsets, Fill::Offsets(s))?);
                    let shapes = vec![batch, u64::from(*ndim)];
                    all.push(array(named("shapes"), DType::UInt64, shapes, Fill::Shapes(s))?);
                }
            }
        }
        Ok(all)
    }

    fn is_dense(&self, streams: std::ops::Range<u16>) -> bool {
        streams
            .filter_map(|s| self.dataset.stream(s))
            .all(|s| s.stream.schema().item_bytes().is_some())
    }

    /// What a safetensors file says of itself. A pure function of spec and number.
    fn about(&self, key: Key) -> String {
        match key.item {
            Item::Record(_) => format!("record {}", key.number),
            _ => format!("spec {}, step {}", self.spec(), key.number),
        }
    }
}
