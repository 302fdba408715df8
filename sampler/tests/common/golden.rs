//! Files that pin an order. A difference is a change of the order contract, never a detail: training
//! runs would silently see other data. `BATCHFS_BLESS=1` rewrites them, for a new version of the
//! contract only.

use std::path::Path;

/// Compares `text` with the golden file `name`.
pub fn check(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var("BATCHFS_BLESS").is_ok_and(|value| value == "1") {
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    for (number, (golden, now)) in golden.lines().zip(text.lines()).enumerate() {
        assert_eq!(golden, now, "{name}, line {}: the order is not what it was", number + 1);
    }
    assert_eq!(golden.lines().count(), text.lines().count(), "{name}: another number of lines");
}

/// The lines of docs/order.md that begin with `start` and have the four parts of a golden file's
/// line: those parts, and the line.
pub fn examples(start: &str) -> Vec<([&'static str; 4], &'static str)> {
    let document = include_str!("../../../docs/order.md");
    let lines = document.lines().filter(|line| line.starts_with(start));
    let found: Vec<_> = lines.filter_map(|line| Some((parts(line)?, line))).collect();
    assert!(found.len() >= 3, "the examples are gone");
    found
}

fn parts(line: &str) -> Option<[&str; 4]> {
    line.split(" | ").collect::<Vec<_>>().try_into().ok()
}
