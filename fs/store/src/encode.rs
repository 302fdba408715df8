//! Records on their way to the disk: cut into pieces, checked and compressed side by side.

use std::borrow::Cow;

use rayon::prelude::*;

use crate::compress::Encoder;
use crate::geometry::Geometry;
use crate::hash;

/// Bytes of a piece, unless a record is larger: what one thread does at a time.
const PIECE: usize = 32 << 10;

/// Records that are one after the other in an append and in their shard.
pub(crate) struct Piece<'a> {
    pub(crate) shard: u32,
    /// The first of them, counted from where the append's ids begin.
    pub(crate) first: usize,
    /// Bytes of each.
    pub(crate) lens: &'a [u32],
    /// The bytes of all.
    pub(crate) bytes: &'a [u8],
}

/// A piece as it is to be stored.
pub(crate) struct Encoded<'a> {
    pub(crate) bytes: Cow<'a, [u8]>,
    /// Stored length and checksum of each record.
    pub(crate) marks: Vec<(u32, u64)>,
}

/// Cuts records of `lens` bytes, which get the ids from `first` on, into pieces.
pub(crate) fn pieces<'a>(
    geometry: Geometry,
    first: u64,
    lens: &'a [u32],
    mut bytes: &'a [u8],
) -> Vec<Piece<'a>> {
    let mut pieces = Vec::new();
    let mut at = 0;
    while at < lens.len() {
        let (shard, _) = geometry.locate(first + at as u64);
        let (mut end, mut len) = (at, 0);
        loop {
            len += lens[end] as usize;
            end += 1;
            let other = || (first + end as u64).is_multiple_of(1 << geometry.stripe_log2);
            if end == lens.len() || other() || len + lens[end] as usize > PIECE {
                break;
            }
        }
        let (now, later) = bytes.split_at(len);
        pieces.push(Piece { shard, first: at, lens: &lens[at..end], bytes: now });
        bytes = later;
        at = end;
    }
    pieces
}

/// What is to be stored of each piece: the records themselves without an `encoder`.
///
/// # Errors
/// Why the `encoder` failed.
pub(crate) fn encode<'a>(
    pieces: &[Piece<'a>],
    encoder: Option<&Encoder>,
    parallel: bool,
) -> Result<Vec<Encoded<'a>>, String> {
    match (encoder, parallel) {
        (None, false) => Ok(pieces.iter().map(as_they_are).collect()),
        (None, true) => Ok(pieces.par_iter().map(as_they_are).collect()),
        (Some(encoder), false) => pieces.iter().map(|p| compressed(p, encoder)).collect(),
        (Some(encoder), true) => pieces.par_iter().map(|p| compressed(p, encoder)).collect(),
    }
}

fn as_they_are<'a>(piece: &Piece<'a>) -> Encoded<'a> {
    let marks = records(piece).map(|raw| (raw.len() as u32, hash::of(raw))).collect();
    Encoded { bytes: Cow::Borrowed(piece.bytes), marks }
}

fn compressed<'a>(piece: &Piece<'a>, encoder: &Encoder) -> Result<Encoded<'a>, String> {
    let mut frames = encoder.frames()?;
    let mut bytes = Vec::new();
    let mut marks = Vec::with_capacity(piece.lens.len());
    for raw in records(piece) {
        let start = bytes.len();
        let len = frames.push(raw, &mut bytes)?;
        marks.push((len as u32, hash::of(&bytes[start..])));
    }
    Ok(Encoded { bytes: Cow::Owned(bytes), marks })
}

fn records<'a>(piece: &Piece<'a>) -> impl Iterator<Item = &'a [u8]> {
    let mut rest = piece.bytes;
    piece.lens.iter().map(move |len| {
        let (now, later) = rest.split_at(*len as usize);
        rest = later;
        now
    })
}
