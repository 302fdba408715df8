//! Numbers of a few bits as Parquet packs them: runs of one that repeats, and runs of some side by side.
//! <https://parquet.apache.org/docs/file-format/data-pages/encodings/>, "RLE / Bit-Packing Hybrid".

/// What is left of numbers of `width` bits.
#[derive(Clone)]
pub(crate) struct Runs<'a> {
    pub(crate) bytes: &'a [u8],
    /// At most 32.
    pub(crate) width: u32,
    /// Numbers that are still to come.
    pub(crate) left: usize,
}

pub(crate) enum Run<'a> {
    Same(u32, usize),
    /// That many numbers of some bits each, the lowest bits first.
    Packed(&'a [u8], usize),
}

impl Run<'_> {
    pub(crate) fn len(&self) -> usize {
        let (Run::Same(_, count) | Run::Packed(_, count)) = self;
        *count
    }
}

impl<'a> Runs<'a> {
    /// So many levels, up to the `highest`.
    pub(crate) fn levels(bytes: &'a [u8], highest: i16, count: usize) -> Runs<'a> {
        Runs { bytes, width: u16::BITS - (highest as u16).leading_zeros(), left: count }
    }

    /// The next run; none at the end, or if there should be one and is none.
    pub(crate) fn next(&mut self) -> Option<Run<'a>> {
        if self.left == 0 {
            return None;
        }
        let head = self.number()?;
        let count = usize::try_from(head >> 1).ok()?;
        if head & 1 == 0 {
            let (value, rest) = self.bytes.split_at_checked(self.width.div_ceil(8) as usize)?;
            let value = value.iter().rev().fold(0, |sum, &byte| sum << 8 | u32::from(byte));
            if u64::from(value) >> self.width != 0 {
                return None;
            }
            self.bytes = rest;
            return Some(Run::Same(value, self.take(count)?));
        }
        let (packed, rest) =
            self.bytes.split_at_checked(count.checked_mul(self.width as usize)?)?;
        self.bytes = rest;
        // The last ones of a page are filled up to eight.
        Some(Run::Packed(packed, self.take(count.checked_mul(8)?)?))
    }

    /// How many of a run there are: not more than are to come. The library takes no longer runs, either.
    fn take(&mut self, count: usize) -> Option<usize> {
        let count = Some(count).filter(|&count| count <= i32::MAX as usize)?.min(self.left);
        self.left -= count;
        (count > 0).then_some(count)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..35).step_by(7) {
            let (&byte, rest) = self.bytes.split_first()?;
            self.bytes = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    /// Whether all numbers are there, and are this level.
    pub(crate) fn all(mut self, level: i16) -> bool {
        while let Some(run) = self.next() {
            let same = match run {
                Run::Same(value, _) => value == level as u32,
                Run::Packed(bytes, count) => {
                    (0..count).all(|at| packed(bytes, self.width, at) == level as u32)
                }
            };
            if !same {
                return false;
            }
        }
        self.left == 0
    }
}

/// Writes what `map` makes of as many numbers as there is room for, which are packed from a whole byte on.
/// `None` if it makes nothing of one.
pub(crate) fn unpack<T>(
    bytes: &[u8],
    width: u32,
    out: &mut [T],
    map: impl Fn(u32) -> Option<T>,
) -> Option<()> {
    /// `W` bytes are eight numbers.
    fn eights<const W: usize, T>(
        bytes: &[u8],
        out: &mut [T],
        map: &impl Fn(u32) -> Option<T>,
    ) -> Option<()> {
        for (bytes, out) in bytes.chunks_exact(W).zip(out.chunks_exact_mut(8)) {
            let mut all = [0; 16];
            all[..W].copy_from_slice(bytes);
            let all = u128::from_le_bytes(all);
            for (at, out) in out.iter_mut().enumerate() {
                *out = map((all >> (at * W)) as u32 & (u32::MAX >> (32 - W)))?;
            }
        }
        Some(())
    }
    /// The same for more than 16 bytes, which overlap as two times 16.
    fn wide_eights<const W: usize, T>(
        bytes: &[u8],
        out: &mut [T],
        map: &impl Fn(u32) -> Option<T>,
    ) -> Option<()> {
        for (bytes, out) in bytes.chunks_exact(W).zip(out.chunks_exact_mut(8)) {
            let (first, last) = (bytes.first_chunk()?, bytes.last_chunk()?);
            let (first, last) = (u128::from_le_bytes(*first), u128::from_le_bytes(*last));
            for at in 0..4 {
                out[at] = map((first >> (at * W)) as u32 & (u32::MAX >> (32 - W)))?;
                out[7 - at] = map((last >> (128 - (at + 1) * W)) as u32 & (u32::MAX >> (32 - W)))?;
            }
        }
        Some(())
    }
    let whole = if (1..=20).contains(&width) { out.len() / 8 * 8 } else { 0 };
    match width {
        1 => eights::<1, T>(bytes, out, &map)?,
        2 => eights::<2, T>(bytes, out, &map)?,
        3 => eights::<3, T>(bytes, out, &map)?,
        4 => eights::<4, T>(bytes, out, &map)?,
        5 => eights::<5, T>(bytes, out, &map)?,
        6 => eights::<6, T>(bytes, out, &map)?,
        7 => eights::<7, T>(bytes, out, &map)?,
        8 => eights::<8, T>(bytes, out, &map)?,
        9 => eights::<9, T>(bytes, out, &map)?,
        10 => eights::<10, T>(bytes, out, &map)?,
        11 => eights::<11, T>(bytes, out, &map)?,
        12 => eights::<12, T>(bytes, out, &map)?,
        13 => eights::<13, T>(bytes, out, &map)?,
        14 => eights::<14, T>(bytes, out, &map)?,
        15 => eights::<15, T>(bytes, out, &map)?,
        16 => eights::<16, T>(bytes, out, &map)?,
        17 => wide_eights::<17, T>(bytes, out, &map)?,
        18 => wide_eights::<18, T>(bytes, out, &map)?,
        19 => wide_eights::<19, T>(bytes, out, &map)?,
        20 => wide_eights::<20, T>(bytes, out, &map)?,
        // None at all, or so many distinct tokens that hardly anybody has them.
        _ => {}
    }
    for (at, out) in out.iter_mut().enumerate().skip(whole) {
        *out = map(packed(bytes, width, at))?;
    }
    Some(())
}

/// Number `at` of those that are packed.
pub(crate) fn packed(bytes: &[u8], width: u32, at: usize) -> u32 {
    let bit = at * width as usize;
    let rest = &bytes[bit / 8..];
    let word = rest.first_chunk().copied().unwrap_or_else(|| {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        word
    });
    let number = u64::from_le_bytes(word) >> (bit % 8);
    (number & ((1 << width) - 1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_widths_are_unpacked() {
        let bytes: Vec<u8> = (0..300u32).map(|i| (i * 151 % 256) as u8).collect();
        let bit = |at: usize| u64::from(bytes[at / 8] >> (at % 8) & 1);
        for width in 0..=32 {
            let number =
                |at: usize| (0..width).map(|b| bit(at * width + b) << b).sum::<u64>() as u32;
            for count in [0, 1, 7, 8, 9, 16, 61] {
                let want: Vec<u32> = (0..count).map(number).collect();
                let mut got = vec![1; count];
                let width = width as u32;
                unpack(&bytes, width, &mut got, Some).unwrap();
                assert_eq!(got, want, "{count} of {width} bits");
                // No byte is needed that has none of them.
                let few = &bytes[..(count * width as usize).div_ceil(8)];
                let single = (0..count).map(|at| packed(few, width, at));
                assert!(single.eq(want.iter().copied()), "{count} of {width} bits");
                let last = want.last().copied();
                let bad = unpack(&bytes, width, &mut got, |n| (Some(n) != last).then_some(n));
                assert_eq!(bad.is_none(), count > 0);
            }
        }
    }

    #[test]
    fn runs_end_with_what_is_to_come() {
        let next = |bytes: &[u8], left| {
            let mut runs = Runs { bytes, width: 3, left };
            let run = runs.next().map(|run| (matches!(run, Run::Same(5, _)), run.len()));
            (run, runs.left)
        };
        assert_eq!(next(&[10, 5], 7), (Some((true, 5)), 2));
        assert_eq!(next(&[10, 5], 3), (Some((true, 3)), 0));
        assert_eq!(next(&[3, 1, 2, 3], 20), (Some((false, 8)), 12));
        assert_eq!(next(&[3, 1, 2, 3], 5), (Some((false, 5)), 0));
        // Too wide, cut off, of none, and longer than any run is.
        assert_eq!(next(&[10, 8], 7).0, None);
        assert_eq!(next(&[3, 1, 2], 8).0, None);
        assert_eq!(next(&[0, 5], 7).0, None);
        assert_eq!(next(&[0xfe, 0xff, 0xff, 0xff, 0x0f, 5], 7).0, Some((true, 7)));
        assert_eq!(next(&[0x80, 0x80, 0x80, 0x80, 0x10, 5], 7).0, None);
    }
}
