use batchfs_store::{Error, Stream};
use rayon::ThreadPool;
use rayon::prelude::*;

use crate::{Item, Key, Layout, View};

/// Bytes that a thread should have to copy before another one is woken for the rest: waking
/// costs some ten microseconds, in which one core copies about this much.
const WORTH_A_THREAD: usize = 256 << 10;

/// Parts of large batches are kept at least this large: the store copies such past the caches.
const LARGE: usize = 4 << 20;

/// Fills `out`, which is `layout.size` long, with what `key` names; on the threads of `pool`, or
/// without it on this one.
///
/// # Errors
/// The first failure of the stream that was met; what `out` holds then is unspecified.
pub(crate) fn gather(
    view: &View,
    key: Key,
    ids: &[u64],
    layout: &Layout,
    out: &mut [u8],
    pool: Option<&ThreadPool>,
) -> Result<(), Error> {
    let (header, payload) = out.split_at_mut(layout.header.len());
    header.copy_from_slice(&layout.header);
    match key.item {
        Item::Batch(s) | Item::Record(s) => match view.dataset().stream(s) {
            Some(stream) => match pool {
                Some(pool) => gather_records(&*stream.stream, ids, payload, pool),
                None => stream.stream.gather(ids, payload),
            },
            None => Err(Error::Invalid {
                path: view.dataset().origin().to_owned(),
                why: format!("there is no stream number {s}"),
            }),
        },
        Item::Index => {
            for (bytes, id) in payload.chunks_exact_mut(8).zip(ids) {
                bytes.copy_from_slice(&id.to_le_bytes());
            }
            Ok(())
        }
    }
}

/// Copies records of a dense stream back to back into `out`, on several threads where that pays.
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
    if parts == 1 || pool.current_num_threads() == 1 {
        return stream.gather(ids, out);
    }
    let count = ids.len().div_ceil(parts).max(1);
    let item = out.len() / ids.len().max(1);
    if item == 0 {
        return stream.gather(ids, out);
    }
    pool.install(|| {
        ids.par_chunks(count)
            .zip(out.par_chunks_mut(count * item))
            .try_for_each(|(ids, out)| stream.gather(ids, out))
    })
}
