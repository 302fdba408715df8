//! The checksum of the format: xxh3, 64 bits, seed 0. The same on every machine.

use twox_hash::XxHash3_64;

/// Its name in headers and seals.
pub(crate) const NAME: &str = "xxh3_64";

#[inline]
pub(crate) fn of(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn values_are_those_of_xxh3() {
        assert_eq!(super::of(b""), 0x2d06_8005_38d3_94c2);
        assert_eq!(super::of(b"xxh3"), twox_hash::XxHash3_64::oneshot_with_seed(0, b"xxh3"));
    }
}
