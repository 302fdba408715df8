//! The index of a container: the entries of `meta.zr`, in its mapping.

use std::path::PathBuf;

use batchfs_store::{Codec, Error, GuardedFile, Locate, Place, Result, check_ids};
use rayon::prelude::*;

use super::meta::{ENTRY, FRONT, MAX_RECORD, number};

/// Finds records of a container.
pub(super) struct Entries {
    pub(super) origin: PathBuf,
    pub(super) meta: GuardedFile,
    pub(super) records: u64,
    /// Bytes of each shard.
    pub(super) shards: Vec<u64>,
    pub(super) codec: Codec,
    /// Bytes of an element.
    pub(super) size: u64,
    /// Bytes of a dense record.
    pub(super) item: Option<u64>,
    /// Axes of a ragged record, and the bytes that each takes in front of it.
    pub(super) ndim: usize,
    pub(super) width: Width,
}

/// How the axes of a ragged record are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Width {
    /// By loaderx 2.8.19.
    U32 = 4,
    /// By 2.8.18.
    U64 = 8,
}

impl Width {
    /// The axes that a head holds.
    pub(super) fn axes(self, head: &[u8]) -> impl Iterator<Item = u64> {
        head.chunks_exact(self as usize).map(number)
    }

    /// Whether a head of this kind is that of a record with `raw` bytes, head and all.
    pub(super) fn fits(self, head: &[u8], size: u64, raw: u64) -> bool {
        let bytes = self.axes(head).try_fold(size, |n, axis| n.checked_mul(axis));
        bytes.is_some_and(|n| n > 0 && n.checked_add(head.len() as u64) == Some(raw))
    }
}

/// What the whole index says.
#[derive(Clone, Copy, Default)]
pub(super) struct Sums {
    /// Bytes of all records, without heads.
    pub(super) payload: u64,
}

/// Entries that the processor is told of ahead.
const AHEAD: u64 = 16;
/// Entries that are looked at in one go.
const BLOCK: u64 = 16 << 10;

impl Entries {
    fn shard(&self, id: u64) -> u32 {
        (id % self.shards.len() as u64) as u32
    }

    fn at(id: u64) -> u64 {
        FRONT as u64 + id * ENTRY as u64
    }

    /// The place that an entry tells, if it can be right.
    #[inline]
    fn place(&self, id: u64, entry: [u8; ENTRY]) -> Result<Place> {
        let [o0, o1, o2, o3, o4, o5, o6, o7, s0, s1, s2, s3, r0, r1, r2, r3] = entry;
        let offset = u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
        let stored = u32::from_le_bytes([s0, s1, s2, s3]);
        let whole = u64::from(u32::from_le_bytes([r0, r1, r2, r3]));
        let file = self.shard(id);
        let frame = self.codec != Codec::Raw;
        let end = offset.checked_add(u64::from(stored));
        let raw = whole.wrapping_sub(self.head() as u64);
        let why = if end.is_none_or(|end| end > self.shards[file as usize]) {
            "lies beyond the end of its shard, as the index has it"
        } else if whole > MAX_RECORD {
            "is larger than 2 GiB, as the index has it"
        } else if self.item.is_some_and(|item| item != whole) {
            "has another length in the index than the schema gives it"
        } else if whole <= self.head() as u64 || !raw.is_multiple_of(self.size) {
            "has a length in the index that no shape makes"
        } else if !frame && u64::from(stored) != whole || stored == 0 {
            "has two lengths in the index that do not fit each other"
        } else {
            return Ok(Place { offset, sum: 0, file, stored, raw: raw as u32, frame });
        };
        Err(self.damaged(id, why.into()))
    }

    pub(super) fn damaged(&self, record: u64, why: String) -> Error {
        Error::Damaged { path: self.origin.clone(), shard: self.shard(record), record, why }
    }

    /// Calls `f` with the place of each record; again from the first one on if the mapping has
    /// turned out not to count.
    fn places(&self, ids: &[u64], mut f: impl FnMut(usize, Place)) -> Result<()> {
        check_ids(&self.origin, ids, self.records)?;
        let mut mapped = || {
            for (i, &id) in ids.iter().enumerate() {
                if let Some(next) = ids.get(i + AHEAD as usize) {
                    self.meta.prefetch(Self::at(*next), ENTRY);
                }
                let mut entry = [0; ENTRY];
                self.meta.copy_to(Self::at(id), &mut entry);
                f(i, self.place(id, entry)?);
            }
            Ok(())
        };
        let done = mapped();
        if !self.meta.damaged() {
            return done;
        }
        for (i, &id) in ids.iter().enumerate() {
            let mut entry = [0; ENTRY];
            self.meta.read_at(Self::at(id), &mut entry)?;
            f(i, self.place(id, entry)?);
        }
        Ok(())
    }

    /// As [`Stream::elements`](batchfs_store::Stream::elements), of ragged records.
    pub(super) fn elements(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        self.places(ids, |i, place| out[i] = u64::from(place.raw) / self.size)
    }

    /// Looks at every entry: that each can be right, and that the records of a shard lie one behind
    /// the other and fill it, which is the only thing that damage to an offset can be held against.
    pub(super) fn check_all(&self) -> Result<Sums> {
        let blocks = self.records.div_ceil(BLOCK);
        let sums = (0..blocks).into_par_iter().map(|b| self.check_block(b * BLOCK));
        let sums = sums.try_reduce(Sums::default, |a, b| {
            Ok(Sums { payload: a.payload.saturating_add(b.payload) })
        })?;
        let shards = self.shards.len() as u64;
        for (shard, bytes) in (0..).zip(&self.shards) {
            let used = match (self.records + shards - 1 - shard) / shards {
                0 => 0,
                rows => self.one((rows - 1) * shards + shard)?.end(),
            };
            if used != *bytes {
                let why = format!(
                    "shard {shard} has {bytes} bytes, but its records end at {used}; its writer was interrupted, or meta.zr is damaged"
                );
                return Err(Error::BadStore { path: self.origin.clone(), why });
            }
        }
        Ok(sums)
    }

    fn one(&self, id: u64) -> Result<Place> {
        let mut place = [Place::default()];
        self.locate(&[id], &mut place)?;
        Ok(place[0])
    }

    fn check_block(&self, first: u64) -> Result<Sums> {
        let shards = self.shards.len() as u64;
        // With the record before the first one of each shard.
        let from = first.saturating_sub(shards);
        let ids: Vec<u64> = (from..self.records.min(first + BLOCK)).collect();
        let mut places = vec![Place::default(); ids.len()];
        self.locate(&ids, &mut places)?;
        let mut sums = Sums::default();
        for (i, id) in ids.iter().enumerate().skip((first - from) as usize) {
            let due = i.checked_sub(shards as usize).map_or(0, |before| places[before].end());
            if places[i].offset != due {
                let why = format!(
                    "begins at byte {} of its shard, as the index has it, but the record before it ends at {due}",
                    places[i].offset
                );
                return Err(self.damaged(*id, why));
            }
            sums.payload += u64::from(places[i].raw);
        }
        Ok(sums)
    }
}

impl Locate for Entries {
    fn len(&self) -> u64 {
        self.records
    }

    fn locate(&self, ids: &[u64], out: &mut [Place]) -> Result<()> {
        self.places(ids, |i, place| out[i] = place)
    }

    fn file_of(&self, id: u64) -> u32 {
        self.shard(id)
    }

    #[inline]
    fn head(&self) -> usize {
        self.ndim * self.width as usize
    }

    fn keeps_heads(&self) -> bool {
        // With one axis it follows from the length.
        self.ndim > 1 && self.codec != Codec::Raw
    }

    #[inline]
    fn check_head(&self, place: &Place, head: &[u8]) -> Option<String> {
        let whole = u64::from(place.raw) + head.len() as u64;
        if self.width.fits(head, self.size, whole) {
            return None;
        }
        let shape: Vec<u64> = self.width.axes(head).collect();
        Some(format!("has the shape {shape:?}, which does not make its {} bytes", place.raw))
    }
}
