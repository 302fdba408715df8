use batchfs_store::{Error, Stream};
use rayon::ThreadPool;
use rayon::prelude::*;

use crate::layout::Fill;
use crate::{Layout, View};

/// Bytes that a thread should have to copy before another one is woken for the rest: waking
/// costs some ten microseconds, in which one core copies about this much.
const WORTH_A_THREAD: usize = 256 << 10;

/// Parts of large batches are kept at least this large: the store copies such past the caches.
const LARGE: usize = 4 << 20;

/// Fills `out`, which is `layout.size` long: the header, the arrays, and zeros between them; on the
/// threads of `pool`, or without it on this one.
///
/// # Errors
/// The first failure of a stream that was met; what `out` holds then is unspecified.
pub(crate) fn gather(
    view: &View,
    ids: &[u64],
    layout: &Layout,
    out: &mut [u8],
    pool: Option<&ThreadPool>,
) -> Result<(), Error> {
    let stream = |number| match view.dataset().stream(number) {
        Some(named) => Ok(&*named.stream),
        None => Err(Error::Invalid {
            path: view.dataset().origin().to_owned(),
            why: format!("there is no stream number {number}"),
        }),
    };
    let (header, mut rest) = out.split_at_mut(layout.header.len());
    header.copy_from_slice(&layout.header);
    let mut at = layout.header.len() as u64;
    for array in &layout.arrays {
        let (gap, behind) = rest.split_at_mut((array.offset - at) as usize);
        gap.fill(0);
        let (out, behind) = behind.split_at_mut(array.nbytes as usize);
        match array.fill {
            Fill::Records(s) => match pool {
                Some(pool) => gather_records(stream(s)?, ids, out, pool)?,
                None => stream(s)?.gather(ids, out)?,
            },
            Fill::Offsets(s) => {
                let mut elements = vec![0; ids.len()];
                stream(s)?.elements(ids, &mut elements)?;
                // The layout was refused if the sum does not fit.
                let mut end = 0i32;
                let (first, others) = out.split_at_mut(size_of::<i32>());
                first.copy_from_slice(&end.to_le_bytes());
                for (bytes, n) in others.chunks_exact_mut(size_of::<i32>()).zip(elements) {
                    end = end.wrapping_add(n as i32);
                    bytes.copy_from_slice(&end.to_le_bytes());
                }
            }
            Fill::Shapes(s) => {
                let mut shapes = vec![0; out.len() / size_of::<u64>()];
                stream(s)?.shapes(ids, &mut shapes)?;
                put(out, &shapes);
            }
            Fill::Ids => put(out, ids),
            Fill::Zeros => out.fill(0),
            Fill::Trailer => out.copy_from_slice(&layout.trailer),
        }
        (rest, at) = (behind, array.offset + array.nbytes);
    }
    Ok(())
}

fn put(out: &mut [u8], numbers: &[u64]) {
    for (bytes, n) in out.chunks_exact_mut(size_of::<u64>()).zip(numbers) {
        bytes.copy_from_slice(&n.to_le_bytes());
    }
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
    let part = if out.len() >= 2 * LARGE { LARGE } else { WORTH_A_THREAD };
    let parts = (out.len() / part).clamp(1, 2 * pool.current_num_threads());
    if parts == 1 || pool.current_num_threads() == 1 || ids.len() < 2 {
        return stream.gather(ids, out);
    }
    let count = ids.len().div_ceil(parts).max(1);
    let Some(item) = stream.schema().item_bytes() else {
        return gather_ragged(stream, ids, count, out, pool);
    };
    let bytes = (count as u64).saturating_mul(item).max(1);
    let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
    pool.install(|| {
        ids.par_chunks(count)
            .zip(out.par_chunks_mut(bytes))
            .try_for_each(|(ids, out)| stream.gather(ids, out))
    })
}

/// The same for records of different sizes, `count` of them to a part.
fn gather_ragged(
    stream: &dyn Stream,
    ids: &[u64],
    count: usize,
    mut out: &mut [u8],
    pool: &ThreadPool,
) -> Result<(), Error> {
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
    pool.install(|| parts.into_par_iter().try_for_each(|(ids, out)| stream.gather(ids, out)))
}
