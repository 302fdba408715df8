//! Records that differ in size on disk, ragged or compressed: the index tells where each is.

use std::path::PathBuf;

use crate::geometry::Geometry;
use crate::header::{Header, MAX_RECORD, PLACE};
use crate::index::Index;
use crate::records::{Locate, Place, Records};
use crate::store::mismatch;
use crate::stream::check_ids;
use crate::{Codec, Error, Layout, Result, hash};

/// What `gather` is for everything but dense raw stores.
pub(crate) type Packed = Records<Entries>;

/// The index of such a store. An entry: u64 offset, u64 checksum of the stored bytes, u32 their
/// number, and for ragged records a u32 for each axis.
pub(crate) struct Entries {
    origin: PathBuf,
    geometry: Geometry,
    index: Index,
    /// Bytes of each shard.
    lens: Vec<u64>,
    codec: Codec,
    /// Bytes of an element.
    size: u64,
    /// Elements of a dense record; ragged ones have their shape in the index.
    item: Option<u64>,
    /// Numbers of a shape in the index.
    ndim: usize,
}

/// An entry of the index, in its mapping or read from it.
#[derive(Clone, Copy)]
enum Entry<'a> {
    Mapped(&'a Index, u64),
    Read(&'a [u8]),
}

impl Entry<'_> {
    #[inline]
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        match self {
            Entry::Mapped(index, id) => index.peek(*id, at),
            Entry::Read(entry) => {
                let mut bytes = [0; N];
                bytes.copy_from_slice(&entry[at..at + N]);
                bytes
            }
        }
    }

    #[inline]
    fn dim(&self, axis: usize) -> u64 {
        u64::from(u32::from_le_bytes(self.bytes(PLACE + 4 * axis)))
    }
}

/// Entries of the index that the processor is told of ahead.
const AHEAD: usize = 16;

impl Entries {
    pub(crate) fn new(origin: PathBuf, header: &Header, index: Index, lens: Vec<u64>) -> Self {
        let ndim = match header.schema.layout {
            Layout::Dense { .. } => 0,
            Layout::Ragged { ndim } => ndim as usize,
        };
        Self {
            origin,
            geometry: header.geometry,
            index,
            lens,
            codec: header.codec,
            size: header.schema.dtype.size() as u64,
            item: header.schema.item_elements(),
            ndim,
        }
    }

    /// As [`Stream::elements`](crate::Stream::elements), for ragged records.
    pub(crate) fn elements(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        self.entries(ids, |i, _, entry| {
            out[i] = self.elements_of(entry);
            Ok(())
        })
    }

    /// As [`Stream::shapes`](crate::Stream::shapes), for ragged records.
    pub(crate) fn shapes(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        self.entries(ids, |i, _, entry| {
            for axis in 0..self.ndim {
                out[i * self.ndim + axis] = entry.dim(axis);
            }
            Ok(())
        })
    }

    /// Calls `f` with the entry of each record; again from the first one on if what it was given
    /// has turned out not to count.
    #[inline]
    fn entries(
        &self,
        ids: &[u64],
        mut f: impl FnMut(usize, u64, Entry<'_>) -> Result<()>,
    ) -> Result<()> {
        check_ids(&self.origin, ids, self.geometry.records)?;
        self.index.check(ids)?;
        ids.iter().take(AHEAD).for_each(|id| self.index.prefetch(*id));
        let mut mapped = || {
            for (i, &id) in ids.iter().enumerate() {
                if let Some(&next) = ids.get(i + AHEAD) {
                    self.index.prefetch(next);
                }
                f(i, id, Entry::Mapped(&self.index, id))?;
            }
            Ok(())
        };
        let done = mapped();
        if !self.index.damaged() {
            return done;
        }
        let (mut block, mut entries) = (None, Vec::new());
        for (i, &id) in ids.iter().enumerate() {
            let its = self.index.form().block_of(id);
            if block != Some(its) {
                entries = self.index.block(its)?;
                block = Some(its);
            }
            f(i, id, Entry::Read(&entries[self.index.within(id)]))?;
        }
        Ok(())
    }

    #[inline]
    fn elements_of(&self, entry: Entry<'_>) -> u64 {
        match self.item {
            Some(elements) => elements,
            // Saturated is too large, whatever follows, unless an axis of 0 does.
            None => (0..self.ndim).fold(1, |n: u64, axis| n.saturating_mul(entry.dim(axis))),
        }
    }

    #[inline]
    fn place(&self, id: u64, entry: Entry<'_>) -> Result<Place> {
        let (shard, _) = self.geometry.locate(id);
        let raw = self.elements_of(entry).saturating_mul(self.size);
        let stored = u32::from_le_bytes(entry.bytes(16));
        let place = Place {
            offset: u64::from_le_bytes(entry.bytes(0)),
            sum: u64::from_le_bytes(entry.bytes(8)),
            file: shard,
            stored,
            raw: raw as u32,
            frame: u64::from(stored) < raw,
        };
        let stored = u64::from(stored);
        let end = place.offset.checked_add(stored);
        let fits = match self.codec {
            Codec::Raw => stored == raw,
            _ => stored <= raw,
        };
        if raw > MAX_RECORD || !fits || end.is_none_or(|end| end > self.lens[shard as usize]) {
            return Err(Error::Damaged {
                path: self.origin.clone(),
                shard,
                record: id,
                why: "its entry in the index cannot be right".into(),
            });
        }
        Ok(place)
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }
}

impl Locate for Entries {
    fn len(&self) -> u64 {
        self.geometry.records
    }

    /// Inside of their shards, and of sizes that fit each other.
    fn locate(&self, ids: &[u64], out: &mut [Place]) -> Result<()> {
        self.entries(ids, |i, id, entry| {
            out[i] = self.place(id, entry)?;
            Ok(())
        })
    }

    fn file_of(&self, id: u64) -> u32 {
        self.geometry.locate(id).0
    }

    #[inline]
    fn check_stored(&self, place: &Place, stored: &[u8]) -> Option<String> {
        mismatch(place.sum, hash::of(stored))
    }
}
