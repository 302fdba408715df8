//! Hints to the processor.

/// Asks the processor to have these bytes in its cache soon.
pub(crate) fn prefetch(bytes: &[u8]) {
    // They need not begin where a line does.
    bytes.iter().step_by(64).chain(bytes.last()).for_each(|byte| line(byte));
}

/// The same for the line that has this address, whatever is there.
#[inline]
pub(super) fn line(p: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which neither faults nor changes anything; SSE is in the baseline.
    unsafe {
        use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(p.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: a hint, which neither faults nor changes anything.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{0}]", in(reg) p, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = p;
}
