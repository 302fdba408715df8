//! What the headers of pages have to be: the library makes as much room for a page as its header says.

use super::Walk;
use super::format::{PAGE, STORED, WHOLE};

/// Says no to pages that decompressed take more than `most` bytes each.
///
/// # Errors
/// What is wrong, in words.
pub(crate) fn check_pages(pages: &[u8], most: u64) -> Result<(), String> {
    let unclear = |_| "the header of a page cannot be understood".to_owned();
    let mut walk = Walk { rest: pages, skips: pages.len() as u64 };
    while !walk.rest.is_empty() {
        let (mut whole, mut stored) = (0, 0);
        let mut seen = |id, value: i64| match id {
            WHOLE => whole = value as i32,
            STORED => stored = value as i32,
            _ => {}
        };
        walk.fields(PAGE, &mut seen).map_err(unclear)?;
        if u64::try_from(whole).is_ok_and(|whole| whole > most) {
            return Err(format!(
                "a page of it says that it takes {whole} bytes, and {most} are allowed for a page of this row group"
            ));
        }
        // Less than none is more than there is.
        walk.pass(stored as u64).map_err(unclear)?;
    }
    Ok(())
}
