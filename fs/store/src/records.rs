//! Records that are each looked up, wherever an index says that they lie.

use std::path::{Path, PathBuf};

use crate::announce::{Wanted, announce};
use crate::compress::{Decoder, MAX_HEAD, Scratch, with_scratch};
use crate::heads::Heads;
use crate::rows::{LARGE_CALL, LARGE_RECORD, damage_of};
use crate::sys::{AtomicBits, physical_memory};
use crate::{Error, GuardedFile, Result, Verify};

/// Where a record lies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// First byte in its file.
    pub offset: u64,
    /// For [`Locate::check_stored`] alone.
    pub sum: u64,
    /// Which of the files.
    pub file: u32,
    /// Bytes there, with the head.
    pub stored: u32,
    /// Bytes of the record as it is given out, without the head.
    pub raw: u32,
    /// Whether the stored bytes are compressed, head and all.
    pub frame: bool,
}

impl Place {
    /// Where it ends in its file.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.stored))
    }
}

/// An index: what [`Records`] asks where records are.
pub trait Locate: Send + Sync {
    /// Number of records.
    fn len(&self) -> u64;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Writes the places of `ids` to `out`, which is as long. They lie inside of their files, and
    /// have `raw` and head bytes where they are not frames.
    ///
    /// # Errors
    /// [`Error::NoSuchRecord`]; [`Error::Damaged`] for an entry that cannot be right.
    fn locate(&self, ids: &[u64], out: &mut [Place]) -> Result<()>;

    /// The file that a record is in, for messages.
    fn file_of(&self, id: u64) -> u32;

    /// Bytes in front of every record that are not given out, at most [`Records::MAX_HEAD`].
    fn head(&self) -> usize {
        0
    }

    /// Whether [`Records::heads`] is going to be asked. Then those of frames are kept once seen.
    fn keeps_heads(&self) -> bool {
        false
    }

    /// What is wrong with stored bytes. Asked when [`Verify`] says so.
    fn check_stored(&self, _place: &Place, _stored: &[u8]) -> Option<String> {
        None
    }

    /// What is wrong with a head. Asked whenever its record is read, if there are heads.
    fn check_head(&self, _place: &Place, _head: &[u8]) -> Option<String> {
        None
    }
}

/// What `gather` is for records that an index tells the places of.
pub struct Records<L> {
    origin: PathBuf,
    files: Vec<GuardedFile>,
    index: L,
    decoder: Decoder,
    /// Records that this handle has read, and checked if that was asked for.
    seen: AtomicBits,
    heads: Option<Heads>,
    /// The files do not fit into memory well: announce every read, not only first ones.
    announce: bool,
}

/// Records whose places are looked up at once.
const MANY: usize = 4096;
/// Bytes of a record to come that the processor is told of; it finds the rest by itself.
const PREFETCH: usize = 2048;

impl<L: Locate> Records<L> {
    /// The longest head.
    pub const MAX_HEAD: usize = MAX_HEAD;

    /// Records in `files`, where `index` says. `dictionary` is for those that are frames: one in
    /// the format of zstd, or bytes without its magic number, which are taken as content.
    ///
    /// # Errors
    /// [`Error::BadStore`] if zstd cannot use the dictionary.
    pub fn new(
        origin: PathBuf,
        files: Vec<GuardedFile>,
        index: L,
        dictionary: Option<&[u8]>,
    ) -> Result<Self> {
        let decoder = Decoder::new(dictionary)
            .map_err(|why| Error::BadStore { path: origin.clone(), why })?;
        Ok(Self::with_decoder(origin, files, index, decoder))
    }

    pub(crate) fn with_decoder(
        origin: PathBuf,
        files: Vec<GuardedFile>,
        index: L,
        decoder: Decoder,
    ) -> Self {
        let announce = files.iter().map(GuardedFile::len).sum::<u64>() > physical_memory() / 2;
        if announce {
            files.iter().for_each(GuardedFile::random);
        }
        let seen = AtomicBits::new(index.len());
        let heads = index.keeps_heads().then(|| Heads::new(index.len(), index.head()));
        Self { origin, files, index, decoder, seen, heads, announce }
    }

    /// As [`Stream::gather`](crate::Stream::gather).
    ///
    /// # Errors
    /// Those of [`Stream::gather`](crate::Stream::gather) and of the index.
    pub fn gather(&self, ids: &[u64], out: &mut [u8], verify: Verify) -> Result<()> {
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
            self.index.locate(ids, places)?;
            let bytes = places.iter().map(|p| u64::from(p.raw)).sum::<u64>() as usize;
            let (now, later) = rest.split_at_mut_checked(bytes).ok_or_else(misfit)?;
            let past_cache = room >= LARGE_CALL;
            with_scratch(|scratch| self.read(ids, places, now, verify, past_cache, scratch))?;
            rest = later;
        }
        if rest.is_empty() { Ok(()) } else { Err(misfit()) }
    }

    /// Writes the heads of `ids`, one after the other, to `out`. Frames are decompressed for it,
    /// unless they were before.
    ///
    /// # Errors
    /// Those of [`gather`](Self::gather).
    pub fn heads(&self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        let head = self.index.head();
        if head == 0 {
            return Ok(());
        }
        let mut places = vec![Place::default(); ids.len().min(MANY)];
        let mut record = Vec::new();
        for (ids, out) in ids.chunks(MANY).zip(out.chunks_mut(MANY * head)) {
            let places = &mut places[..ids.len()];
            self.index.locate(ids, places)?;
            for ((&id, place), out) in ids.iter().zip(places).zip(out.chunks_exact_mut(head)) {
                let file = &self.files[place.file as usize];
                if place.frame {
                    if self.heads.as_ref().is_some_and(|heads| heads.get(id, out)) {
                        continue;
                    }
                } else {
                    file.copy_to(place.offset, out);
                    if !file.damaged() && self.index.check_head(place, out).is_none() {
                        continue;
                    }
                }
                record.resize(place.raw as usize, 0);
                with_scratch(|scratch| {
                    self.read(&[id], &[*place], &mut record, Verify::Never, false, scratch)?;
                    out.copy_from_slice(&scratch.head[..head]);
                    Ok(())
                })?;
            }
        }
        Ok(())
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
                wanted.map(|(_, p)| Wanted { file: p.file, begin: p.offset, end: p.end() });
            announce(&self.files, wanted.collect());
        }

        let head = self.index.head();
        let ahead = (4096 * ids.len() / out.len().max(1)).clamp(4, 16);
        let mut rest = &mut *out;
        for (i, (&id, place)) in ids.iter().zip(places).enumerate() {
            if let Some(next) = places.get(i + ahead) {
                let len = (next.stored as usize).min(PREFETCH);
                self.files[next.file as usize].prefetch(next.offset, len);
            }
            let (now, later) = rest.split_at_mut(place.raw as usize);
            rest = later;
            let file = &self.files[place.file as usize];
            let check = match verify {
                Verify::First => !all_seen && !self.seen.get(id),
                Verify::Always => true,
                Verify::Never => false,
            };
            let copy = |at: u64, bytes: &mut [u8]| {
                if past_cache && bytes.len() >= LARGE_RECORD {
                    file.copy_past_cache(place.offset + at, bytes);
                } else {
                    file.copy_to(place.offset + at, bytes);
                }
            };
            if !place.frame && !check && head == 0 {
                copy(0, now);
            } else {
                // Bytes that are looked at again are wanted in the cache.
                let copy = |at, bytes: &mut [u8]| {
                    match check || place.frame {
                        true => file.copy_to(place.offset + at, bytes),
                        false => copy(at, bytes),
                    }
                    Ok(())
                };
                if self.take(place, now, check, scratch, copy)?.is_some() {
                    self.read_again(id, place, now, verify, scratch)?;
                }
                if let (Some(heads), true) = (&self.heads, place.frame) {
                    heads.put(id, &scratch.head[..head]);
                }
            }
            if !all_seen {
                // A file that failed under the mapping is read again below, without this bit.
                self.seen.set(id);
            }
        }

        let lost = |file: &GuardedFile| !file.is_empty() && file.damaged();
        let damaged = if ids.len() < self.files.len() {
            places.iter().any(|place| lost(&self.files[place.file as usize]))
        } else {
            self.files.iter().any(lost)
        };
        if damaged {
            let mut rest = out;
            for (&id, place) in ids.iter().zip(places) {
                let (now, later) = rest.split_at_mut(place.raw as usize);
                rest = later;
                if lost(&self.files[place.file as usize]) {
                    self.read_again(id, place, now, verify, scratch)?;
                }
            }
        }
        Ok(())
    }

    /// A record, from stored bytes that `copy` gives, counted from where they begin; or what is
    /// wrong with these. Leaves the head in `scratch`.
    #[inline]
    fn take(
        &self,
        place: &Place,
        out: &mut [u8],
        check: bool,
        scratch: &mut Scratch,
        copy: impl Fn(u64, &mut [u8]) -> Result<()>,
    ) -> Result<Option<String>> {
        let head = self.index.head();
        if !place.frame {
            if head > 0 && check {
                let stored = scratch.room(place.stored as usize);
                copy(0, stored)?;
                if let Some(why) = self.index.check_stored(place, stored) {
                    return Ok(Some(why));
                }
                out.copy_from_slice(&stored[head..]);
                scratch.head[..head].copy_from_slice(&scratch.stored[..head]);
            } else {
                if head > 0 {
                    copy(0, &mut scratch.head[..head])?;
                }
                copy(head as u64, out)?;
                if check && let Some(why) = self.index.check_stored(place, out) {
                    return Ok(Some(why));
                }
            }
        } else {
            let stored = scratch.room(place.stored as usize);
            copy(0, stored)?;
            if check && let Some(why) = self.index.check_stored(place, stored) {
                return Ok(Some(why));
            }
            if let Err(why) = self.decoder.decode(scratch, place.stored as usize, head, out) {
                return Ok(Some(why));
            }
        }
        match head {
            0 => Ok(None),
            _ => Ok(self.index.check_head(place, &scratch.head[..head])),
        }
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
        let file = &self.files[place.file as usize];
        let copy = |at, bytes: &mut [u8]| match bytes {
            [] => Ok(()),
            bytes => file.read_at(place.offset + at, bytes),
        };
        match self.take(place, out, verify != Verify::Never, scratch, copy) {
            Ok(None) => Ok(()),
            Ok(Some(why)) => Err(self.damaged(id, why)),
            Err(e) => Err(damage_of(e, |why| self.damaged(id, why))),
        }
    }

    /// What is wrong with a record whose stored bytes are given.
    pub(crate) fn check(&self, place: &Place, stored: &[u8], out: &mut Vec<u8>) -> Option<String> {
        out.resize(place.raw as usize, 0);
        let copy = |at: u64, bytes: &mut [u8]| {
            let at = at as usize;
            bytes.copy_from_slice(&stored[at..at + bytes.len()]);
            Ok(())
        };
        with_scratch(|scratch| self.take(place, out, true, scratch, copy))
            .unwrap_or_else(|e| Some(e.to_string()))
    }

    /// An [`Error::Damaged`] about a record.
    pub fn damaged(&self, record: u64, why: String) -> Error {
        let shard = self.index.file_of(record);
        Error::Damaged { path: self.origin.clone(), shard, record, why }
    }

    /// The folder or file that all of this is.
    pub fn origin(&self) -> &Path {
        &self.origin
    }

    /// The index.
    pub fn index(&self) -> &L {
        &self.index
    }

    pub(crate) fn files(&self) -> &[GuardedFile] {
        &self.files
    }
}
