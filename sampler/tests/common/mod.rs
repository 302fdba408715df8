//! Rows of token lanes, as the golden files spell them.

use batchfs_sampler::lanes::{LaneSpec, Lanes, WindowPieces};

/// Lengths of documents per row group. `5 3;;6` spells them out; `4*100` stands for 4 row groups of
/// 100 documents, of which document d of row group g has (17 g + 31 d + g d) mod 13 tokens.
#[allow(dead_code, reason = "each test is a crate of its own")]
pub fn groups(text: &str) -> Vec<Vec<u32>> {
    let number = |n: &str| n.parse::<u32>().unwrap();
    if let Some((groups, documents)) = text.split_once('*') {
        let length = |g: u32, d: u32| (17 * g + 31 * d + g * d) % 13;
        return (0..number(groups))
            .map(|g| (0..number(documents)).map(|d| length(g, d)).collect())
            .collect();
    }
    text.split(';').map(|group| group.split_whitespace().map(number).collect()).collect()
}

pub fn lanes(spec: LaneSpec, groups: &[Vec<u32>]) -> Lanes {
    let tokens = groups.iter().map(|g| g.iter().map(|&n| u64::from(n)).sum()).collect();
    Lanes::new(spec, tokens).unwrap()
}

/// The rows of the rank in a step: documents of the dataset, offsets, lengths.
pub fn rows(lanes: &Lanes, groups: &[Vec<u32>], step: u64) -> Vec<Vec<(u64, u64, u64)>> {
    let mut before = vec![0; groups.len()];
    for g in 1..groups.len() {
        before[g] = before[g - 1] + groups[g - 1].len() as u64;
    }
    let mut rows = vec![Vec::new(); lanes.spec().rows() as usize];
    for number in lanes.epochs_met(step) {
        let epoch = lanes.epoch(number);
        for window in lanes.windows(step, &epoch) {
            let members = epoch.groups(&window);
            let lengths = |place: usize| groups[members[place] as usize].as_slice();
            let pieces = WindowPieces::new(lanes, &epoch, window, lengths);
            for (lane, row) in (0..).zip(&mut rows) {
                row.extend(
                    pieces
                        .row(step, lane)
                        .map(|s| (before[members[s.place] as usize] + s.document, s.offset, s.len)),
                );
            }
        }
    }
    rows
}
