use std::io;
use std::sync::{Mutex, PoisonError};
use std::thread;

use batchfs_store::{Error, Stream};
use bytemuck::Pod;
use rayon::ThreadPool;

use crate::layout::Fill;
use crate::tokens::Step;
use crate::{Layout, View};

/// Bytes that a thread should have to copy before another one is woken for the rest: waking
/// costs some ten microseconds, in which one core copies about this much.
const WORTH_A_THREAD: usize = 256 << 10;

/// The same where records are decoded.
const WORTH_A_THREAD_DECODED: usize = 16 << 10;

/// Parts of large batches are kept at least this large: the store copies such past the caches.
const LARGE: usize = 4 << 20;

/// Why a region could not be filled.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Reading the data failed.
    Store(Error),
    /// There is no room for the pieces of a step.
    Pieces {
        /// How many there are.
        needed: u64,
        /// How many there is room for.
        room: u64,
    },
    /// The memory could not be had.
    Region(io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Store(error)
    }
}

pub(crate) fn stream(view: &View, number: u16) -> Result<&dyn Stream, Error> {
    match view.dataset().stream(number) {
        Some(named) => Ok(&*named.stream),
        None => Err(Error::Invalid {
            path: view.dataset().origin().to_owned(),
            why: format!("there is no stream number {number}"),
        }),
    }
}

/// Fills `out`, which is `layout.size` long: the header, the arrays, and zeros between them; on the
/// threads of `pool`, or without it on this one.
///
/// # Errors
/// The first failure of a stream that was met; what `out` holds then is unspecified.
pub(crate) fn gather(
    view: &View,
    number: u64,
    ids: &[u64],
    layout: &Layout,
    out: &mut [u8],
    pool: Option<&ThreadPool>,
) -> Result<(), Failure> {
    let step = step(view, layout, number)?;
    let (header, mut rest) = out.split_at_mut(layout.header.len());
    header.copy_from_slice(&layout.header);
    let mut at = layout.header.len() as u64;
    for array in &layout.arrays {
        let (gap, behind) = rest.split_at_mut((array.offset - at) as usize);
        gap.fill(0);
        let (out, behind) = behind.split_at_mut(array.nbytes as usize);
        match array.fill {
            Fill::Records(s) => match pool {
                Some(pool) => gather_records(stream(view, s)?, ids, out, pool)?,
                None => stream(view, s)?.gather(ids, out)?,
            },
            Fill::Offsets(s) => offsets(stream(view, s)?, ids, out)?,
            Fill::Shapes(s) => shapes(stream(view, s)?, ids, out)?,
            Fill::Ids => {
                put(out, ids);
            }
            Fill::PieceTable => step.as_ref().ok_or_else(|| no_step(view))?.table(out)?,
            Fill::Tokens => {
                let step = step.as_ref().ok_or_else(|| no_step(view))?;
                match pool {
                    Some(pool) => step.fill_shared(out, pool)?,
                    None => step.fill(0..view.local_batch(), out)?,
                }
            }
            Fill::Pieces(what) => {
                step.as_ref().ok_or_else(|| no_step(view))?.pieces(what, out)?;
            }
            Fill::Zeros => out.fill(0),
            Fill::Trailer => out.copy_from_slice(&layout.trailer),
        }
        (rest, at) = (behind, array.offset + array.nbytes);
    }
    rest.fill(0);
    Ok(())
}

/// The step's row groups, if the file is made of tokens.
pub(crate) fn step<'a>(
    view: &'a View,
    layout: &Layout,
    number: u64,
) -> Result<Option<Step<'a>>, Failure> {
    match view.rows() {
        Some(rows)
            if layout.arrays.iter().any(|a| matches!(a.fill, Fill::Tokens | Fill::PieceTable)) =>
        {
            Ok(Some(rows.step(number)?))
        }
        _ => Ok(None),
    }
}

pub(crate) fn no_step(view: &View) -> Error {
    let why = "has no tokens".to_owned();
    Error::Invalid { path: view.dataset().origin().to_owned(), why }
}

/// Where each record starts in the values, and where the last one ends.
pub(crate) fn offsets(stream: &dyn Stream, ids: &[u64], out: &mut [u8]) -> Result<(), Failure> {
    let mut elements = vec![0; ids.len()];
    stream.elements(ids, &mut elements)?;
    // The layout was refused if the sum does not fit.
    let mut end = 0i32;
    let (first, others) = out.split_at_mut(size_of::<i32>());
    first.copy_from_slice(&end.to_le_bytes());
    for (bytes, n) in others.chunks_exact_mut(size_of::<i32>()).zip(elements) {
        end = end.wrapping_add(n as i32);
        bytes.copy_from_slice(&end.to_le_bytes());
    }
    Ok(())
}

pub(crate) fn shapes(stream: &dyn Stream, ids: &[u64], out: &mut [u8]) -> Result<(), Failure> {
    let mut shapes = vec![0; out.len() / size_of::<u64>()];
    stream.shapes(ids, &mut shapes)?;
    put(out, &shapes);
    Ok(())
}

/// Puts numbers into `out`, as far as there is room, and gives what is left of it. They are little-endian, as the
/// host is: the store builds on no other.
pub(crate) fn put<'a, T: Pod>(out: &'a mut [u8], numbers: &[T]) -> &'a mut [u8] {
    let bytes: &[u8] = bytemuck::cast_slice(numbers);
    let (now, rest) = out.split_at_mut(bytes.len().min(out.len()));
    now.copy_from_slice(&bytes[..now.len()]);
    rest
}

/// Copies records back to back into `out`, on several threads where that pays. `out` is as long as
/// [`Stream::gather`] wants it.
///
/// # Errors
/// Those of [`Stream::gather`], of whichever part failed first.
pub fn gather_records(
    stream: &dyn Stream,
    ids: &[u64],
    out: &mut [u8],
    pool: &ThreadPool,
) -> Result<(), Error> {
    // Twice as many parts as threads, so that one that was late to wake costs less.
    let part = match stream.decodes() {
        true => WORTH_A_THREAD_DECODED,
        false if out.len() >= 2 * LARGE => LARGE,
        false => WORTH_A_THREAD,
    };
    let parts = (out.len() / part).clamp(1, 2 * pool.current_num_threads());
    if parts == 1 || pool.current_num_threads() == 1 || ids.len() < 2 {
        return stream.gather(ids, out);
    }
    let count = ids.len().div_ceil(parts).max(1);
    let parts = match stream.schema().item_bytes() {
        Some(item) => {
            let bytes = usize::try_from((count as u64).saturating_mul(item)).unwrap_or(usize::MAX);
            ids.chunks(count).zip(out.chunks_mut(bytes.max(1))).collect()
        }
        None => ragged_parts(stream, ids, count, out)?,
    };
    share(pool, parts, |(ids, out)| stream.gather(ids, out))
}

/// Some of the records of a batch, and where they go.
type Part<'a> = (&'a [u64], &'a mut [u8]);

/// The records `ids`, `count` of them to a part.
fn ragged_parts<'a>(
    stream: &dyn Stream,
    ids: &'a [u64],
    count: usize,
    mut out: &'a mut [u8],
) -> Result<Vec<Part<'a>>, Error> {
    let mut elements = vec![0; ids.len()];
    stream.elements(ids, &mut elements)?;
    let mut parts = Vec::new();
    for (ids, elements) in ids.chunks(count).zip(elements.chunks(count)) {
        let bytes = elements.iter().sum::<u64>() as usize * stream.schema().dtype.size();
        let Some((now, later)) = out.split_at_mut_checked(bytes) else {
            let why = "the records do not fit into the buffer".to_owned();
            return Err(Error::Invalid { path: stream.origin().to_owned(), why });
        };
        parts.push((ids, now));
        out = later;
    }
    Ok(parts)
}

/// Does `work` for each part: on this thread, which need not wait until another one is awake, and
/// on those of `pool`.
pub(crate) fn share<T: Send>(
    pool: &ThreadPool,
    parts: Vec<T>,
    work: impl Fn(T) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let helpers = parts.len().min(pool.current_num_threads()).saturating_sub(1);
    shared(parts, work, |take_parts| {
        pool.in_place_scope(|scope| {
            for _ in 0..helpers {
                scope.spawn(|_| take_parts());
            }
            take_parts();
        });
    })
}

/// As [`share`], on threads that are started for it.
pub(crate) fn share_anew<T: Send>(
    threads: usize,
    parts: Vec<T>,
    work: impl Fn(T) -> Result<(), Error> + Sync,
) -> Result<(), Error> {
    let helpers = parts.len().min(threads).saturating_sub(1);
    shared(parts, work, |take_parts| {
        thread::scope(|scope| {
            for _ in 0..helpers {
                // What cannot be started leaves the work to the others.
                let _ = thread::Builder::new().spawn_scoped(scope, take_parts);
            }
            take_parts();
        });
    })
}

/// Has `run` call what takes parts and does `work` for each, on any number of threads.
fn shared<T: Send>(
    parts: Vec<T>,
    work: impl Fn(T) -> Result<(), Error> + Sync,
    run: impl FnOnce(&(dyn Fn() + Sync)),
) -> Result<(), Error> {
    let left = Mutex::new(parts.into_iter());
    let failed = Mutex::new(None);
    // Neither lock is held while something could panic.
    let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
    run(&|| {
        while let Some(part) = next() {
            if let Err(e) = work(part) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(e);
                break;
            }
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
}
