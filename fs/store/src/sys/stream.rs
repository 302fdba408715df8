/// As `copy_nonoverlapping`, past the caches: for copies so large that what they write would be
/// out of the cache again before anybody reads it. Writing to a line then does not fetch it first.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap.
#[cfg(target_arch = "x86_64")]
pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    use core::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    let head = dst.align_offset(64).min(len);
    // SAFETY: `head <= len`, of ranges that the caller vouches for.
    unsafe { src.copy_to_nonoverlapping(dst, head) };
    let mut at = head;
    while at + 64 <= len {
        // SAFETY: 64 bytes from `at` on are inside of both ranges; `dst + at` is aligned to 64, as
        // the stores ask for; SSE2 is part of every x86-64.
        unsafe {
            let from: *const __m128i = src.add(at).cast();
            let to: *mut __m128i = dst.add(at).cast();
            // Written out: a closure here is a call for each line where it is not inlined.
            let (a, b) = (_mm_loadu_si128(from), _mm_loadu_si128(from.add(1)));
            let (c, d) = (_mm_loadu_si128(from.add(2)), _mm_loadu_si128(from.add(3)));
            _mm_stream_si128(to, a);
            _mm_stream_si128(to.add(1), b);
            _mm_stream_si128(to.add(2), c);
            _mm_stream_si128(to.add(3), d);
        }
        at += 64;
    }
    // SAFETY: the rest of ranges that the caller vouches for. The fence has the stores done before
    // whatever tells other threads about them.
    unsafe {
        src.add(at).copy_to_nonoverlapping(dst.add(at), len - at);
        _mm_sfence();
    }
}

/// Elsewhere the plain copy does as well.
///
/// # Safety
/// `src` is valid for reads and `dst` for writes of `len` bytes, and they do not overlap.
#[cfg(not(target_arch = "x86_64"))]
pub(super) unsafe fn copy(src: *const u8, dst: *mut u8, len: usize) {
    // SAFETY: what the caller vouches for.
    unsafe { src.copy_to_nonoverlapping(dst, len) };
}

#[cfg(test)]
mod tests {
    #[test]
    fn copies_whatever_the_alignment_and_touches_nothing_else() {
        let from: Vec<u8> = (0..400).map(|i| i as u8).collect();
        for (a, b) in [(0, 0), (1, 0), (0, 1), (7, 63), (64, 17)] {
            for len in [0, 1, 15, 63, 64, 65, 128, 200, 300] {
                let mut to = vec![0xee; 400];
                // SAFETY: both ranges are inside of vectors of 400 bytes.
                unsafe { super::copy(from[a..].as_ptr(), to[b..].as_mut_ptr(), len) };
                assert_eq!(to[b..b + len], from[a..a + len]);
                assert!(to[..b].iter().chain(&to[b + len..]).all(|x| *x == 0xee));
            }
        }
    }
}
