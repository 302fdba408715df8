//! Pages of memory that is our own.

use memmap2::{MmapMut, UncheckedAdvice};

use super::map::page_size;

/// Gives back to the system what lies behind the first `bytes` of a mapping without a file. Says how many
/// bytes may still take memory.
pub(crate) fn give_back(map: &mut MmapMut, bytes: usize) -> usize {
    let from = bytes.next_multiple_of(page_size()).min(map.len());
    // SAFETY: nobody else has the mapping, and what is given back reads as zeros from then on.
    let given =
        unsafe { map.unchecked_advise_range(UncheckedAdvice::DontNeed, from, map.len() - from) };
    if given.is_ok() { from } else { map.len() }
}
