//! Records that differ in size on disk, ragged or compressed: the index tells where each is.

use std::path::PathBuf;

use crate::announce::{Wanted, announce};
use crate::compress::{Decoder, Scratch, with_scratch};
use crate::geometry::Geometry;
use crate::header::{Header, MAX_RECORD, PLACE};
use crate::index::Index;
use crate::rows::{LARGE_CALL, LARGE_RECORD, damage_of};
use crate::store::mismatch;
use crate::stream::check_ids;
use crate::sys::{AtomicBits, physical_memory};
use crate::{Codec, Error, GuardedFile, Layout, Result, Verify, hash};

/// What `gather` is for everything but dense raw stores.
pub(crate) struct Packed {
    origin: PathBuf,
    files: Vec<GuardedFile>,
    geometry: Geometry,
    index: Index,
    decoder: Decoder,
    codec: Codec,
    /// Bytes of an element.
    size: u64,
    /// Elements of a dense record; ragged ones have their shape in the index.
    item: Option<u64>,
    /// Numbers of a shape in the index.
    ndim: usize,
    /// Records that this handle has read, and checked if that was asked for.
    seen: AtomicBits,
    /// The files do not fit into memory well: announce every read, not only first ones.
    announce: bool,
}

/// Where a record lies, from its entry in the index: u64 offset, u64 checksum, u32 stored bytes,
/// and for ragged records a u32 for each axis.
#[derive(Clone, Copy, Default)]
pub(crate) struct Place {
    pub(crate) offset: u64,
    /// Of the bytes as they are stored.
    pub(crate) sum: u64,
    pub(crate) shard: u32,
    /// Bytes on disk. Less than `raw`: a frame.
    pub(crate) stored: u32,
    /// Bytes of the record.
    pub(crate) raw: u32,
}

impl Place {
    fn is_frame(&self) -> bool {
        self.stored < self.raw
    }

    pub(crate) fn end(&self) -> u64 {
        self.offset + u64::from(self.stored)
    }
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

/// Records whose places are looked up at once.
const MANY: usize = 4096;
/// Bytes of a record to come that the processor is told of; it finds the rest by itself.
const PREFETCH: usize = 2048;
/// Entries of the index that the processor is told of ahead.
const AHEAD: usize = 16;

impl Packed {
    pub(crate) fn new(
        origin: PathBuf,
        files: Vec<GuardedFile>,
        header: &Header,
        index: Index,
        decoder: Decoder,
    ) -> Self {
        let announce = files.iter().map(GuardedFile::len).sum::<u64>() > physical_memory() / 2;
        if announce {
            files.iter().for_each(GuardedFile::random);
        }
        let ndim = match header.schema.layout {
            Layout::Dense { .. } => 0,
            Layout::Ragged { ndim } => ndim as usize,
        };
        Self {
            origin,
            files,
            geometry: header.geometry,
            index,
            decoder,
            codec: header.codec,
            size: header.schema.dtype.size() as u64,
            item: header.schema.item_elements(),
            ndim,
            seen: AtomicBits::new(header.geometry.records),
            announce,
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

    /// Where records lie: inside of their shards, and of sizes that fit each other.
    pub(crate) fn places(&self, ids: &[u64], out: &mut [Place]) -> Result<()> {
        self.entries(ids, |i, id, entry| {
            out[i] = self.place(id, entry)?;
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
        let place = Place {
            offset: u64::from_le_bytes(entry.bytes(0)),
            sum: u64::from_le_bytes(entry.bytes(8)),
            shard,
            stored: u32::from_le_bytes(entry.bytes(16)),
            raw: raw as u32,
        };
        let stored = u64::from(place.stored);
        let end = place.offset.checked_add(stored);
        let fits = match self.codec {
            Codec::Raw => stored == raw,
            _ => stored <= raw,
        };
        if raw > MAX_RECORD || !fits || end.is_none_or(|end| end > self.files[shard as usize].len())
        {
            return Err(self.damaged(id, "its entry in the index cannot be right".into()));
        }
        Ok(place)
    }

    /// As [`Stream::gather`](crate::Stream::gather).
    pub(crate) fn gather(&self, ids: &[u64], out: &mut [u8], verify: Verify) -> Result<()> {
        let room = out.len();
        let misfit = || {
            let why =
                format!("the {} records do not make the {room} bytes of the buffer", ids.len());
            Error::Invalid { path: self.origin.clone(), why }
        };
        let mut rest = out;
        let mut places = vec![Place::default(); ids.len().min(MANY)];
        for ids in ids.chunks(MANY) {
            let places = &mut places[..ids.len()];
            self.places(ids, places)?;
            let bytes = places.iter().map(|p| u64::from(p.raw)).sum::<u64>() as usize;
            let (now, later) = rest.split_at_mut_checked(bytes).ok_or_else(misfit)?;
            let past_cache = room >= LARGE_CALL;
            with_scratch(|scratch| self.read(ids, places, now, verify, past_cache, scratch))?;
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(misfit()) }
    }

    /// Reads records at `places` to `out`, which is as long as they are.
    fn read(
        &self,
        ids: &[u64],
        places: &[Place],
        out: &mut [u8],
        verify: Verify,
        past_cache: bool,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let all_seen = ids.iter().all(|id| self.seen.get(*id));
        if !all_seen || self.announce {
            let due = |id: &u64| self.announce || !self.seen.get(*id);
            let wanted = ids.iter().zip(places).filter(|(id, place)| due(id) && place.stored > 0);
            let wanted =
                wanted.map(|(_, p)| Wanted { file: p.shard, begin: p.offset, end: p.end() });
            announce(&self.files, wanted.collect());
        }

        let ahead = (4096 * ids.len() / out.len().max(1)).clamp(4, 16);
        let mut rest = &mut *out;
        for (i, (&id, place)) in ids.iter().zip(places).enumerate() {
            if let Some(next) = places.get(i + ahead) {
                let len = (next.stored as usize).min(PREFETCH);
                self.files[next.shard as usize].prefetch(next.offset, len);
            }
            let (now, later) = rest.split_at_mut(place.raw as usize);
            rest = later;
            let file = &self.files[place.shard as usize];
            let check = match verify {
                Verify::First => !all_seen && !self.seen.get(id),
                Verify::Always => true,
                Verify::Never => false,
            };
            if !place.is_frame() && !check {
                if past_cache && now.len() >= LARGE_RECORD {
                    file.copy_past_cache(place.offset, now);
                } else {
                    file.copy_to(place.offset, now);
                }
            } else {
                let copy = |bytes: &mut [u8]| {
                    file.copy_to(place.offset, bytes);
                    Ok(())
                };
                if self.take(place, now, check, scratch, copy)?.is_some() {
                    self.read_again(id, place, now, verify, scratch)?;
                }
            }
            if !all_seen {
                // A file that failed under the mapping is read again below, without this bit.
                self.seen.set(id);
            }
        }

        let lost = |file: &GuardedFile| !file.is_empty() && file.damaged();
        let damaged = if ids.len() < self.files.len() {
            places.iter().any(|place| lost(&self.files[place.shard as usize]))
        } else {
            self.files.iter().any(lost)
        };
        if damaged {
            let mut rest = out;
            for (&id, place) in ids.iter().zip(places) {
                let (now, later) = rest.split_at_mut(place.raw as usize);
                rest = later;
                if lost(&self.files[place.shard as usize]) {
                    self.read_again(id, place, now, verify, scratch)?;
                }
            }
        }
        Ok(())
    }

    /// A record, from stored bytes that `copy` gives; or what is wrong with these.
    fn take(
        &self,
        place: &Place,
        out: &mut [u8],
        check: bool,
        scratch: &mut Scratch,
        copy: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<Option<String>> {
        let stored = match place.is_frame() {
            true => scratch.room(place.stored as usize),
            false => &mut *out,
        };
        copy(stored)?;
        if check && let Some(why) = mismatch(place.sum, hash::of(stored)) {
            return Ok(Some(why));
        }
        if place.is_frame() {
            return Ok(self.decoder.decode(scratch, place.stored as usize, out).err());
        }
        Ok(None)
    }

    /// The slow and exact way, for a record whose bytes did not come right from the mapping.
    #[cold]
    fn read_again(
        &self,
        id: u64,
        place: &Place,
        out: &mut [u8],
        verify: Verify,
        scratch: &mut Scratch,
    ) -> Result<()> {
        let file = &self.files[place.shard as usize];
        let copy = |bytes: &mut [u8]| match bytes {
            [] => Ok(()),
            bytes => file.read_at(place.offset, bytes),
        };
        match self.take(place, out, verify != Verify::Never, scratch, copy) {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(self.damaged(id, why)),
            Err(e) => Err(damage_of(e, |why| self.damaged(id, why))),
        }
    }

    /// The record whose stored bytes are given, or what is wrong with these.
    pub(crate) fn check(&self, place: &Place, stored: &[u8], out: &mut Vec<u8>) -> Option<String> {
        if let Some(why) = mismatch(place.sum, hash::of(stored)) {
            return Some(why);
        }
        if !place.is_frame() {
            return None;
        }
        out.resize(place.raw as usize, 0);
        with_scratch(|scratch| {
            scratch.room(stored.len()).copy_from_slice(stored);
            self.decoder.decode(scratch, stored.len(), out).err()
        })
    }

    pub(crate) fn damaged(&self, record: u64, why: String) -> Error {
        let (shard, _) = self.geometry.locate(record);
        Error::Damaged { path: self.origin.clone(), shard, record, why }
    }

    pub(crate) fn files(&self) -> &[GuardedFile] {
        &self.files
    }

    pub(crate) fn geometry(&self) -> Geometry {
        self.geometry
    }

    pub(crate) fn index(&self) -> &Index {
        &self.index
    }
}
