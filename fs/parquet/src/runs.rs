//! Numbers of a few bits as Parquet packs them: runs of one that repeats, and runs of some side by side.
//! <https://parquet.apache.org/docs/file-format/data-pages/encodings/>, "RLE / Bit-Packing Hybrid".

/// What is left of numbers of `width` bits.
#[derive(Clone)]
pub(crate) struct Runs<'a> {
    pub(crate) bytes: &'a [u8],
    /// At most 16.
    pub(crate) width: u32,
    /// Numbers that are still to come.
    pub(crate) left: usize,
}

pub(crate) enum Run<'a> {
    Same(u16, usize),
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
            let value = value.iter().rev().fold(0, |sum, &byte| sum << 8 | u16::from(byte));
            if u32::from(value) >> self.width != 0 {
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

    /// How many of a run there are: not more than are to come.
    fn take(&mut self, count: usize) -> Option<usize> {
        let count = count.min(self.left);
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
                Run::Same(value, _) => value == level as u16,
                Run::Packed(bytes, count) => {
                    (0..count).all(|at| packed(bytes, self.width, at) == level as u16)
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
    map: impl Fn(u16) -> Option<T>,
) -> Option<()> {
    /// `W` bytes are eight numbers.
    fn eights<const W: usize, T>(
        bytes: &[u8],
        out: &mut [T],
        map: &impl Fn(u16) -> Option<T>,
    ) -> Option<()> {
        for (bytes, out) in bytes.chunks_exact(W).zip(out.chunks_exact_mut(8)) {
            let mut all = [0; 16];
            all[..W].copy_from_slice(bytes);
            let all = u128::from_le_bytes(all);
            for (at, out) in out.iter_mut().enumerate() {
                *out = map((all >> (at * W)) as u16 & (u16::MAX >> (16 - W)))?;
            }
        }
        Some(())
    }
    let whole = if width == 0 { 0 } else { out.len() / 8 * 8 };
    match width {
        0 => {}
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
        _ => eights::<16, T>(bytes, out, &map)?,
    }
    for (at, out) in out.iter_mut().enumerate().skip(whole) {
        *out = map(packed(bytes, width, at))?;
    }
    Some(())
}

/// Number `at` of those that are packed.
pub(crate) fn packed(bytes: &[u8], width: u32, at: usize) -> u16 {
    (0..width as usize).fold(0, |level, bit| {
        let place = at * width as usize + bit;
        level | u16::from(bytes[place / 8] >> (place % 8) & 1) << bit
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_all_widths_are_unpacked() {
        let bytes: Vec<u8> = (0..200u32).map(|i| (i * 151 % 256) as u8).collect();
        for width in 0..=16 {
            for count in [0, 1, 7, 8, 9, 16, 61] {
                let want: Vec<u16> = (0..count).map(|at| packed(&bytes, width, at)).collect();
                let mut got = vec![1; count];
                unpack(&bytes, width, &mut got, Some).unwrap();
                assert_eq!(got, want, "{count} of {width} bits");
                let last = want.last().copied();
                let bad = unpack(&bytes, width, &mut got, |n| (Some(n) != last).then_some(n));
                assert_eq!(bad.is_none(), count > 0);
            }
        }
    }
}
