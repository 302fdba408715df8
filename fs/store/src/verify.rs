use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;

use crate::header::bad;
use crate::index::Index;
use crate::packed::Packed;
use crate::records::{Locate as _, Place};
use crate::rows::damage_of;
use crate::store::{Body, mismatch};
use crate::{Error, GuardedFile, OpenOptions, Result, Rows, Store, Stream, Verify, chunks, hash};

/// What [`verify`] found.
#[derive(Debug)]
pub struct Report {
    /// Records of the store.
    pub records: u64,
    /// Bytes of payload that were held against checksums.
    pub bytes: u64,
    /// Everything that is wrong: records ([`Error::Damaged`]), blocks of the index
    /// ([`Error::BadStore`], whose records cannot be checked), bytes that cannot be read
    /// ([`Error::Io`]).
    pub problems: u64,
    /// The first of them, by shard and row, up to [`Report::LISTED`].
    pub first: Vec<Error>,
}

impl Report {
    /// How many problems are listed.
    pub const LISTED: usize = 100;

    /// Whether the store is exactly as it was written.
    pub fn is_whole(&self) -> bool {
        self.problems == 0
    }
}

/// Bytes read at once, unless a record is larger.
const STEP: u64 = 4 << 20;

/// Reads every byte of the store at `path`, on all cores, and holds it against the checksums.
/// `progress` is told, from any thread, how many bytes of payload were just done; the sum is
/// [`Store::payload_bytes`].
///
/// # Errors
/// Those of [`Store::open`], which checks header, seal and the length and beginning of each file.
/// Damage beyond that is in the report.
pub fn verify(path: impl AsRef<Path>, progress: &(dyn Fn(u64) + Sync)) -> Result<Report> {
    let store = Store::open(path, OpenOptions::verify(Verify::Never))?;
    let (index, geometry) = match store.body() {
        Body::Rows { rows, index } => (index, rows.geometry()),
        Body::Packed(packed) => (packed.index().index(), packed.index().geometry()),
    };
    let blocks: Vec<Option<Error>> =
        (0..index.blocks()).into_par_iter().map(|block| index.block(block).err()).collect();
    let known = |id: u64| blocks[index.form().block_of(id) as usize].is_none();

    let tasks: Vec<(u32, Range<u64>)> = (0..geometry.shards)
        .flat_map(|shard| {
            let rows = geometry.rows(shard);
            let step = rows_at_once(&store, rows, shard);
            (0..rows.div_ceil(step)).map(move |i| (shard, i * step..rows.min((i + 1) * step)))
        })
        .collect();
    let found: Vec<Problems> = tasks
        .into_par_iter()
        .map_init(Buffers::default, |buffers, (shard, rows)| {
            let mut problems = Problems::default();
            let done = match store.body() {
                Body::Rows { rows: all, index } => {
                    let checker = Rowwise { store: &store, rows: all, index, shard };
                    checker.check(rows, buffers, &known, &mut problems)
                }
                Body::Packed(packed) => {
                    check_packed(packed, shard, rows, buffers, &known, &mut problems)
                }
            };
            progress(done);
            problems
        })
        .collect();

    let mut all = Problems::default();
    blocks.into_iter().flatten().for_each(|e| all.add(e));
    found.into_iter().for_each(|p| all.join(p));
    Ok(Report {
        records: store.len(),
        bytes: store.payload_bytes(),
        problems: all.count,
        first: all.first,
    })
}

/// Reads every record of a stream that has no checksums, on all cores: what can be seen of damage
/// without them. `progress` is told, from any thread, how many bytes were just done.
///
/// # Errors
/// Those of [`Stream::elements`]. What is wrong with records is in the report.
pub fn read_all(stream: &dyn Stream, progress: &(dyn Fn(u64) + Sync)) -> Result<Report> {
    let parts = chunks(stream, STEP).collect::<Result<Vec<_>>>()?;
    let found: Vec<Problems> = parts
        .into_par_iter()
        .map_init(Vec::new, |buffer, chunk| {
            let mut problems = Problems::default();
            let ids: Vec<u64> = chunk.ids.collect();
            buffer.resize(chunk.bytes as usize, 0);
            if stream.gather(&ids, buffer).is_err() {
                for id in ids {
                    let mut elements = [0];
                    let read = stream.elements(&[id], &mut elements).and_then(|()| {
                        let bytes = elements[0] as usize * stream.schema().dtype.size();
                        stream.gather(&[id], &mut buffer[..bytes])
                    });
                    read.err().into_iter().for_each(|e| problems.add(e));
                }
            }
            progress(chunk.bytes);
            problems
        })
        .collect();
    let mut all = Problems::default();
    found.into_iter().for_each(|p| all.join(p));
    Ok(Report {
        records: stream.len(),
        bytes: stream.payload_bytes(),
        problems: all.count,
        first: all.first,
    })
}

#[derive(Default)]
struct Problems {
    count: u64,
    first: Vec<Error>,
}

impl Problems {
    fn add(&mut self, problem: Error) {
        self.join(Problems { count: 1, first: vec![problem] });
    }

    fn join(&mut self, other: Problems) {
        self.count += other.count;
        let room = Report::LISTED - self.first.len();
        self.first.extend(other.first.into_iter().take(room));
    }
}

#[derive(Default)]
struct Buffers {
    stored: Vec<u8>,
    raw: Vec<u8>,
}

/// Rows that have about [`STEP`] bytes.
fn rows_at_once(store: &Store, rows: u64, shard: u32) -> u64 {
    let row = match store.body() {
        Body::Rows { .. } => store.schema().item_bytes().unwrap_or(0),
        Body::Packed(packed) => packed.files()[shard as usize].len() / rows.max(1),
    };
    (STEP / row.max(1)).clamp(1, 1 << 16)
}

/// Dense raw records of a shard.
struct Rowwise<'a> {
    store: &'a Store,
    rows: &'a Rows,
    index: &'a Index,
    shard: u32,
}

impl Rowwise<'_> {
    /// Checks rows and gives the number of their bytes. Records whose checksum is not `known`,
    /// since its block of the index is damaged, are passed over.
    fn check(
        &self,
        rows: Range<u64>,
        buffers: &mut Buffers,
        known: &impl Fn(u64) -> bool,
        problems: &mut Problems,
    ) -> u64 {
        let item = self.store.schema().item_bytes().unwrap_or(0);
        let bytes = (rows.end - rows.start) * item;
        let buffer = &mut buffers.stored;
        buffer.resize(bytes as usize, 0);
        let all = self.file().read_at(self.place(rows.start, item), buffer).is_ok();
        for (row, bytes) in rows.zip(buffer.chunks_exact_mut(item.max(1) as usize)) {
            let record = self.rows.geometry().id(self.shard, row);
            if known(record)
                && let Err(problem) = self.check_one(record, self.place(row, item), bytes, all)
            {
                problems.add(problem);
            }
        }
        bytes
    }

    /// Checks `bytes` of a record, which are still to be read unless `there`.
    fn check_one(&self, record: u64, place: u64, bytes: &mut [u8], there: bool) -> Result<()> {
        let (path, shard) = (self.store.origin().to_owned(), self.shard);
        let damaged = |why| Error::Damaged { path, shard, record, why };
        let read = if there { Ok(()) } else { self.file().read_at(place, bytes) };
        if let Err(e) = read {
            return Err(damage_of(e, damaged));
        }
        match mismatch(self.index.sum(record)?, hash::of(bytes)) {
            Some(why) => Err(damaged(why)),
            None => Ok(()),
        }
    }

    fn file(&self) -> &GuardedFile {
        &self.rows.files()[self.shard as usize]
    }

    fn place(&self, row: u64, item: u64) -> u64 {
        self.store.data_start() + row * item
    }
}

/// Checks rows of a shard whose records differ in size: that they lie back to back, and each of
/// them. Gives the number of bytes of the records.
fn check_packed(
    packed: &Packed,
    shard: u32,
    rows: Range<u64>,
    buffers: &mut Buffers,
    known: &impl Fn(u64) -> bool,
    problems: &mut Problems,
) -> u64 {
    let geometry = packed.index().geometry();
    let id = |row| geometry.id(shard, row);
    let place = |row| {
        let mut place = [Place::default()];
        known(id(row)).then(|| packed.index().locate(&[id(row)], &mut place).map(|()| place[0]))
    };
    let file = &packed.files()[shard as usize];
    // Where the next record has to begin, if that is known.
    let mut due = match rows.start.checked_sub(1) {
        None => Some(0),
        Some(before) => place(before).and_then(Result::ok).map(|place| place.end()),
    };
    let (mut raw, mut run) = (0, Vec::new());
    for row in rows.clone() {
        let place = match place(row) {
            Some(Ok(place)) => place,
            Some(Err(e)) => {
                problems.add(e);
                due = None;
                continue;
            }
            None => {
                due = None;
                continue;
            }
        };
        raw += u64::from(place.raw);
        if due.is_some_and(|due| due != place.offset) {
            let why = "does not lie behind the record before it".into();
            problems.add(packed.damaged(id(row), why));
        }
        let follows = |run: &[(u64, Place)]| match (run.first(), run.last()) {
            (Some((_, first)), Some((_, last))) => {
                last.end() == place.offset && place.end() - first.offset <= STEP
            }
            _ => true,
        };
        if !follows(&run) {
            check_run(packed, file, &run, buffers, problems);
            run.clear();
        }
        run.push((id(row), place));
        due = Some(place.end());
    }
    check_run(packed, file, &run, buffers, problems);
    let whole = geometry.rows(shard) == rows.end;
    if let (true, Some(end)) = (whole, due)
        && end != file.len()
    {
        let why = format!("has {} bytes, but its records end at {end}", file.len());
        problems.add(bad(file.path(), why));
    }
    raw
}

/// Checks records that lie back to back.
fn check_run(
    packed: &Packed,
    file: &GuardedFile,
    run: &[(u64, Place)],
    buffers: &mut Buffers,
    problems: &mut Problems,
) {
    let (Some((_, first)), Some((_, last))) = (run.first(), run.last()) else { return };
    buffers.stored.resize((last.end() - first.offset) as usize, 0);
    let read = |at: u64, out: &mut [u8]| match out {
        [] => Ok(()),
        out => file.read_at(at, out),
    };
    let all = read(first.offset, &mut buffers.stored).is_ok();
    let mut rest = buffers.stored.as_mut_slice();
    for (record, place) in run {
        let (stored, later) = rest.split_at_mut(place.stored as usize);
        rest = later;
        let damaged = |why| packed.damaged(*record, why);
        if let Err(e) = if all { Ok(()) } else { read(place.offset, stored) } {
            problems.add(damage_of(e, damaged));
        } else if let Some(why) = packed.check(place, stored, &mut buffers.raw) {
            problems.add(damaged(why));
        }
    }
}
