//! Training of a dictionary from some records of a stream.

use crate::compress::{Encoder, MAX_DICTIONARY};
use crate::{Error, Result, Stream};

/// A dictionary for [`Codec::ZstdDict`](crate::Codec::ZstdDict), and what it was seen to do.
#[derive(Clone, Debug)]
pub struct Trained {
    /// The dictionary, in the format of zstd.
    pub bytes: Vec<u8>,
    /// Records that it was made from or tried on.
    pub samples: usize,
    /// Bytes of the records that it was tried on; where there are enough, others than those that
    /// it was made from.
    pub tried: u64,
    /// Bytes that these take with plain zstd.
    pub without: u64,
    /// Bytes that they take with the dictionary.
    pub with: u64,
    /// Bytes that the dictionary saves in a store of the whole stream, itself counted; an estimate,
    /// negative if the store gets larger.
    pub saves: i64,
}

impl Trained {
    /// Why plain zstd is the better choice for this stream, if it is.
    pub fn warning(&self) -> Option<String> {
        (self.saves <= 0).then(|| {
            format!(
                "the dictionary does not pay: {} bytes of records take {} with it, {} without, and it has {} bytes itself; use plain zstd",
                self.tried, self.with, self.without, self.bytes.len()
            )
        })
    }
}

/// The smallest dictionary that zstd makes.
const MIN_DICTIONARY: usize = 256;
/// Fewer samples than this zstd does not take.
const MIN_SAMPLES: usize = 7;
/// Shorter records have nothing in them that a dictionary could hold.
const MIN_RECORD: u64 = 8;
/// Longer ones find what repeats in themselves.
const MAX_RECORD: u64 = 1 << 20;
/// Records that are looked at, and bytes that are read, at most.
const LOOK_AT: u64 = 1 << 16;
const READ: u64 = 32 << 20;
/// Bytes of samples for each byte of the dictionary, as zstd's authors advise.
const PER_BYTE: u64 = 100;
/// One of so many samples is kept back to try the dictionary on.
const KEEP_BACK: usize = 8;

/// Trains a dictionary of at most `size` bytes on some records of `stream`; zstd's own default is
/// 112,640. The same records and the same `size` give the same bytes.
///
/// It reads up to 32 MiB, of records of 8 bytes to 1 MiB that lie all over the stream. What is
/// returned may be shorter than `size`. Look at its [`warning`](Trained::warning).
///
/// # Errors
/// [`Error::Invalid`] if `size` is not within 256 bytes to 16 MiB, if fewer than seven records are
/// of such a size, or if they have too little in common; those of the stream.
pub fn train_dict(stream: &dyn Stream, size: usize) -> Result<Trained> {
    let invalid = |why: String| Error::Invalid { path: stream.origin().to_owned(), why };
    if !(MIN_DICTIONARY..=MAX_DICTIONARY).contains(&size) {
        return Err(invalid(format!(
            "a dictionary of {size} bytes cannot be: it has {MIN_DICTIONARY} to {MAX_DICTIONARY}"
        )));
    }
    let samples = Samples::draw(stream, (size as u64).saturating_mul(PER_BYTE).min(READ))?;
    let count = samples.lens.len();
    if count < MIN_SAMPLES {
        return Err(invalid(format!(
            "no dictionary can be made: of {} records {}, {count} have {MIN_RECORD} bytes to {} MiB, and at least {MIN_SAMPLES} are needed; use plain zstd",
            stream.len(),
            if samples.all { "all told" } else { "looked at" },
            MAX_RECORD >> 20,
        )));
    }
    let (train, kept) = samples.split();
    let bytes = zstd::dict::from_continuous(&train.bytes, &train.lens, size).map_err(|_| {
        invalid(format!(
            "no dictionary of {size} bytes can be made from {count} records of {} bytes together: they are too few, too short, or have nothing in common; use more records or plain zstd",
            train.bytes.len()
        ))
    })?;

    let tried = if kept.lens.is_empty() { &train } else { &kept };
    let (without, with) = match (tried.stored(None), tried.stored(Some(&bytes))) {
        (Ok(without), Ok(with)) => (without, with),
        (Err(why), _) | (_, Err(why)) => {
            return Err(invalid(format!("the dictionary cannot be used: {why}")));
        }
    };
    let total = samples.of_stream as i128;
    let gain = i128::from(without) - i128::from(with);
    let saves = gain * total / (tried.bytes.len() as i128).max(1) - bytes.len() as i128;
    Ok(Trained {
        samples: count,
        tried: tried.bytes.len() as u64,
        without,
        with,
        saves: saves.clamp(i64::MIN.into(), i64::MAX.into()) as i64,
        bytes,
    })
}

/// Records back to back.
#[derive(Default)]
struct Part {
    bytes: Vec<u8>,
    lens: Vec<usize>,
}

impl Part {
    /// Bytes that its records take in a store.
    fn stored(&self, dictionary: Option<&[u8]>) -> Result<u64, String> {
        let encoder = Encoder::new(3, dictionary)?;
        let mut frames = encoder.frames()?;
        let (mut total, mut rest, mut into) = (0, self.bytes.as_slice(), Vec::new());
        for len in &self.lens {
            let (now, later) = rest.split_at(*len);
            rest = later;
            into.clear();
            total += frames.push(now, &mut into)? as u64;
        }
        Ok(total)
    }
}

/// Records of a stream, drawn from all over it.
struct Samples {
    bytes: Vec<u8>,
    lens: Vec<usize>,
    /// Bytes of the whole stream, estimated from the records looked at.
    of_stream: u64,
    /// Every record was looked at.
    all: bool,
}

impl Samples {
    fn draw(stream: &dyn Stream, budget: u64) -> Result<Self> {
        let len = stream.len();
        let ids = drawn(len);
        let mut elements = vec![0; ids.len()];
        stream.elements(&ids, &mut elements)?;
        let size = stream.schema().dtype.size() as u64;

        let (mut picked, mut lens, mut total, mut seen) = (Vec::new(), Vec::new(), 0, 0u64);
        for (id, elements) in ids.iter().zip(elements) {
            let bytes = elements.saturating_mul(size);
            seen = seen.saturating_add(bytes);
            let enough = picked.len() >= 2 * KEEP_BACK && total + bytes > budget;
            if (MIN_RECORD..=MAX_RECORD).contains(&bytes) && !enough {
                picked.push(*id);
                lens.push(bytes as usize);
                total += bytes;
            }
        }
        let mut bytes = vec![0; total as usize];
        stream.gather(&picked, &mut bytes)?;
        let of_stream = u128::from(seen) * u128::from(len) / (ids.len() as u128).max(1);
        let of_stream = u64::try_from(of_stream).unwrap_or(u64::MAX);
        Ok(Self { bytes, lens, of_stream, all: ids.len() as u64 == len })
    }

    /// Those to make a dictionary from, and, if there are enough, those to try it on.
    fn split(&self) -> (Part, Part) {
        let (mut train, mut kept) = (Part::default(), Part::default());
        let mut rest = self.bytes.as_slice();
        for (i, len) in self.lens.iter().enumerate() {
            let (now, later) = rest.split_at(*len);
            rest = later;
            let back = self.lens.len() >= 8 * KEEP_BACK && i % KEEP_BACK == KEEP_BACK - 1;
            let part = if back { &mut kept } else { &mut train };
            part.bytes.extend_from_slice(now);
            part.lens.push(*len);
        }
        (train, kept)
    }
}

/// Up to [`LOOK_AT`] ids, one from each of as many equal parts of `0..len`, in random order; the
/// same ones every time.
fn drawn(len: u64) -> Vec<u64> {
    let parts = len.min(LOOK_AT);
    let mut state = len;
    let mut below = |n: u64| {
        // SplitMix64; the bias of the modulus does not matter here.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = state;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ (x >> 31)) % n.max(1)
    };
    let bound = |part: u64| (u128::from(len) * u128::from(part) / u128::from(parts)) as u64;
    let mut ids: Vec<u64> = (0..parts).map(|i| bound(i) + below(bound(i + 1) - bound(i))).collect();
    for i in (1..ids.len()).rev() {
        ids.swap(i, below(i as u64 + 1) as usize);
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_drawn_from_all_parts_once() {
        for len in [0, 1, 2, 7, 65_535, 65_536, 65_537, 1 << 40, u64::MAX] {
            let mut ids = drawn(len);
            assert_eq!(ids, drawn(len));
            ids.sort_unstable();
            ids.dedup();
            assert_eq!(ids.len() as u64, len.min(LOOK_AT));
            assert!(ids.iter().all(|id| *id < len));
        }
    }
}
