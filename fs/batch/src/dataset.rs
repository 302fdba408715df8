use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use batchfs_sampler::{Sampler, Spec};
use batchfs_store::Stream;

use crate::{Error, Face, Item, Key, Layout, Result};

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
        Ok(Dataset { origin, streams, len })
    }

    /// How many streams a dataset may have.
    pub const MOST_STREAMS: u16 = 1000;

    /// Where it lies.
    pub fn origin(&self) -> &Path {
        &self.origin
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
    sampler: Sampler,
}

impl View {
    /// A view; `number` tells it from others in [`Key`]s, `prefix` begins its paths in messages.
    ///
    /// # Errors
    /// [`Error::Sample`] if the spec does not fit the number of records.
    pub fn new(number: u16, prefix: &str, dataset: Arc<Dataset>, spec: Spec) -> Result<View> {
        let sampler = Sampler::new(spec, dataset.len())?;
        Ok(View { number, prefix: prefix.to_owned(), dataset, sampler })
    }

    /// Its number.
    pub fn number(&self) -> u16 {
        self.number
    }

    /// The data.
    pub fn dataset(&self) -> &Arc<Dataset> {
        &self.dataset
    }

    /// The order.
    pub fn sampler(&self) -> &Sampler {
        &self.sampler
    }

    /// The path, relative to the mount, that `key` stands for.
    pub fn name(&self, key: Key) -> String {
        let stream = |n| self.dataset.stream(n).map_or("?", |s: &NamedStream| &s.name);
        let (prefix, number, suffix) = (&self.prefix, key.number, key.face.suffix());
        match key.item {
            Item::Batch(s) => format!("{prefix}{}/batch/{number}{suffix}", stream(s)),
            Item::Record(s) => format!("{prefix}{}/record/{number}{suffix}", stream(s)),
            Item::Index => format!("{prefix}index/{number}{suffix}"),
        }
    }

    /// The record ids that `key` is made of.
    ///
    /// # Errors
    /// [`Error::NoRecord`] for a record id out of range. Every step is valid.
    pub fn plan(&self, key: Key) -> Result<Vec<u64>> {
        match key.item {
            Item::Record(_) if key.number < self.dataset.len => Ok(vec![key.number]),
            Item::Record(_) => Err(Error::NoRecord { item: self.name(key), len: self.dataset.len }),
            Item::Batch(_) | Item::Index => {
                let mut ids = vec![0; self.sampler.local_batch() as usize];
                self.sampler.ids(key.number, &mut ids);
                Ok(ids)
            }
        }
    }

    /// Size and structure of the file that `key` names. Reads no payload.
    ///
    /// # Errors
    /// [`Error::NoFace`] with the reason, [`Error::NoRecord`].
    pub fn layout(&self, key: Key) -> Result<Layout> {
        let count = self.sampler.local_batch();
        let schema = |n: u16| {
            let stream = self.dataset.stream(n).ok_or_else(|| "there is no such stream".to_owned());
            stream.map(|s| s.stream.schema())
        };
        let layout = match key.item {
            Item::Batch(s) => schema(s).and_then(|sc| Layout::of(sc, Some(count), key.face)),
            Item::Record(_) if key.number >= self.dataset.len => {
                return Err(Error::NoRecord { item: self.name(key), len: self.dataset.len });
            }
            Item::Record(s) => schema(s).and_then(|sc| Layout::of(sc, None, key.face)),
            Item::Index => Layout::index(count, key.face),
        };
        layout.map_err(|why| Error::NoFace { item: self.name(key), why })
    }

    /// Whether there is such a file, and if not, why. Reads no payload.
    ///
    /// # Errors
    /// As [`layout`](Self::layout).
    pub fn exists(&self, key: Key) -> Result<()> {
        match (key.face, key.item) {
            (Face::Json, Item::Batch(_)) => Ok(()),
            (Face::Json, _) => Err(Error::NoFace {
                item: self.name(key),
                why: "only batches have a .json".to_owned(),
            }),
            _ => self.layout(key).map(drop),
        }
    }
}
