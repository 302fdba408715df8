use std::ops::Range;
use std::path::Path;

use rayon::prelude::*;

use crate::index::PER_BLOCK;
use crate::store::mismatch;
use crate::{Error, OpenOptions, Result, Store, Stream as _, Verify, hash};

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
    let item = store.item();
    let geometry = store.rows().geometry();

    let blocks: Vec<Option<Error>> = (0..store.index().blocks())
        .into_par_iter()
        .map(|block| store.index().block(block).err())
        .collect();
    let known = |id: u64| blocks[(id / PER_BLOCK) as usize].is_none();

    let step = (STEP / item).max(1);
    let tasks: Vec<(u32, u64, u64)> = (0..geometry.shards)
        .flat_map(|shard| {
            let rows = geometry.rows(shard);
            (0..rows.div_ceil(step)).map(move |i| (shard, i * step, step.min(rows - i * step)))
        })
        .collect();
    let found: Vec<(u64, Vec<Error>)> = tasks
        .into_par_iter()
        .map_init(Vec::new, |buffer, (shard, row, rows)| {
            let found = check_rows(&store, buffer, shard, row..row + rows, &known);
            progress(rows * item);
            found
        })
        .collect();

    let index: Vec<Error> = blocks.into_iter().flatten().collect();
    let problems = index.len() as u64 + found.iter().map(|(n, _)| n).sum::<u64>();
    let mut first = index;
    first.extend(found.into_iter().flat_map(|(_, errors)| errors));
    first.truncate(Report::LISTED);
    Ok(Report { records: store.len(), bytes: store.payload_bytes(), problems, first })
}

/// Number and first ones of the problems in rows of a shard. Records whose checksum is not
/// `known`, since its block of the index is damaged, are passed over.
fn check_rows(
    store: &Store,
    buffer: &mut Vec<u8>,
    shard: u32,
    rows: Range<u64>,
    known: &impl Fn(u64) -> bool,
) -> (u64, Vec<Error>) {
    let item = store.item();
    let file = &store.rows().files()[shard as usize];
    let place = |row: u64| store.data_start() + row * item;
    buffer.resize(((rows.end - rows.start) * item) as usize, 0);
    let all = file.read_at(place(rows.start), buffer).is_ok();

    let check = |row: u64, bytes: &mut [u8]| {
        let record = store.rows().geometry().id(shard, row);
        if !known(record) {
            return Ok(());
        }
        let damaged = |why| Error::Damaged { path: store.origin().to_owned(), shard, record, why };
        if !all {
            file.read_at(place(row), bytes).map_err(|e| match e {
                Error::BadStore { why, .. } => damaged(format!("its shard {why}")),
                e => e,
            })?;
        }
        match mismatch(store.index().entry(record)?, hash::of(bytes)) {
            Some(why) => Err(damaged(why)),
            None => Ok(()),
        }
    };
    let (mut count, mut first) = (0, Vec::new());
    for (row, bytes) in rows.zip(buffer.chunks_exact_mut(item as usize)) {
        if let Err(problem) = check(row, bytes) {
            count += 1;
            if first.len() < Report::LISTED {
                first.push(problem);
            }
        }
    }
    (count, first)
}
