//! What all specs have in common: `key=value` items joined by commas, and plain decimals.

use crate::error::SpecError;

/// The items of `text` in its order, with keys of `keys`, each at most once.
pub(crate) fn items<'a>(
    text: &'a str,
    keys: &'static [&'static str],
) -> Result<Vec<(&'static str, &'a str)>, SpecError> {
    let mut found: Vec<(&'static str, &'a str)> = Vec::new();
    for item in text.split(',') {
        let (key, value) =
            item.split_once('=').ok_or_else(|| SpecError::NotKeyValue { item: item.to_owned() })?;
        let Some(&key) = keys.iter().find(|&&known| known == key) else {
            let nearest = nearest(key, keys);
            return Err(SpecError::UnknownKey { key: key.to_owned(), nearest, keys });
        };
        if found.iter().any(|&(k, _)| k == key) {
            return Err(SpecError::DuplicateKey { key });
        }
        found.push((key, value));
    }
    Ok(found)
}

pub(crate) fn bad(key: &'static str, value: &str, allowed: &'static str) -> SpecError {
    SpecError::BadValue { key, value: value.to_owned(), allowed }
}

pub(crate) fn number(key: &'static str, value: &str) -> Result<u64, SpecError> {
    let plain =
        value.bytes().all(|b| b.is_ascii_digit()) && (value == "0" || !value.starts_with('0'));
    plain.then(|| value.parse().ok()).flatten().ok_or_else(|| {
        bad(key, value, "a plain decimal number up to 18446744073709551615, without sign, spaces or leading zeros")
    })
}

/// The known key within two edits of `key`, the nearest first.
fn nearest(key: &str, keys: &'static [&'static str]) -> Option<&'static str> {
    // A key longer than this is no slip of the keyboard, and the table below stays small.
    if key.len() > 16 {
        return None;
    }
    keys.iter()
        .map(|&known| (edits(&key.to_lowercase(), known), known))
        .min()
        .filter(|&(edits, known)| edits <= 2 && edits < known.len() - 1)
        .map(|(_, known)| known)
}

/// Levenshtein's distance in bytes.
fn edits(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.bytes().enumerate() {
            let substituted = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
