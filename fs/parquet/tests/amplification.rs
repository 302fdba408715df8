//! What is read, in bytes received: of all ranks together, and of one step.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use batchfs_batch::{Error, LaneSpec, TokenRows, Tokens};
use batchfs_parquet::ParquetTokens;
use batchfs_store::TokenSource as _;
use common::{levels, open, write};
use parquet::file::properties::WriterProperties;

const LIST: &str = "message m { optional group tokens (LIST) { repeated group list { optional int32 element; } } }";

/// Row groups of about 2,000 tokens, in documents of 1 to 60.
fn data(path: &Path, groups: i32) {
    let group = |g: i32| {
        let length = |d: i32| 1 + (g * 31 + d * 17 + d * d * g) % 60;
        let documents: Vec<_> =
            (0..66).map(|d| Some(vec![g * 1000 + d; length(d) as usize])).collect();
        levels(&documents, 3, 1)
    };
    let groups: Vec<_> = (0..groups).map(group).collect();
    // Without a dictionary, so that a row group's bytes are in proportion to its tokens.
    let properties = WriterProperties::builder().set_dictionary_enabled(false);
    write(path, LIST, &groups, properties.build());
}

fn rows(source: &Arc<ParquetTokens>, text: &str) -> TokenRows {
    let spec: LaneSpec = text.parse().unwrap();
    // What a step needs and a window more, of a part of the data only: little stays until the next
    // epoch.
    let error = Tokens::new(source.clone(), spec, Some(1), 2).err().unwrap();
    let Error::Budget { needed, .. } = error else { panic!("{error}") };
    let tokens = Tokens::new(source.clone(), spec, Some(needed * 3 / 2), 2).unwrap();
    TokenRows::new(tokens, spec).unwrap()
}

fn fill(rows: &TokenRows, step: u64) {
    let spec = rows.lanes().spec();
    let mut out = vec![0; (spec.rows() * spec.seq_len * 4) as usize];
    rows.fill(step, &mut out).unwrap();
}

/// Waits until nothing more is read ahead, and gives the bytes received.
fn received(rows: &TokenRows) -> u64 {
    let until = Instant::now() + Duration::from_secs(60);
    let mut last = rows.tokens().figures();
    let mut same = 0;
    while same < 20 {
        assert!(Instant::now() < until, "it reads on for ever");
        std::thread::sleep(Duration::from_millis(1));
        let now = rows.tokens().figures();
        same = if now == last { same + 1 } else { 0 };
        last = now;
    }
    last.received
}

#[test]
fn all_ranks_together_read_little_more_than_the_data() {
    const GROUPS: u64 = 96;
    const EPOCHS: u64 = 3;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    data(&path, GROUPS as i32);
    open(&path, dir.path()).unwrap();
    for (world, window) in
        [(1, 4), (2, 4), (4, 4), (8, 4), (2, 16), (4, 16), (8, 16), (4, 5), (8, 24), (16, 8)]
    {
        let mut read = 0;
        let mut once = 0;
        for rank in 0..world {
            // The index is kept: what is received is row groups.
            let source = Arc::new(open(&path, dir.path()).unwrap());
            assert_eq!(source.received_bytes(), 0);
            once = (0..GROUPS as usize)
                .map(|group| source.place(group).bytes)
                .map(|bytes| bytes.end - bytes.start)
                .sum::<u64>();
            let text =
                format!("lanes=16,window={window},seq_len=8,seed=5,rank={rank},world={world}");
            let rows = rows(&source, &text);
            let steps = |epoch| rows.lanes().first_step(epoch).unwrap();
            // What is read ahead of the first epoch is as much as what the last reads ahead.
            for step in steps(1) - 2..steps(1) {
                fill(&rows, step);
            }
            let before = received(&rows);
            for step in steps(1)..steps(1 + EPOCHS) {
                fill(&rows, step);
            }
            read += received(&rows) - before;
        }
        let windows = GROUPS.div_ceil(window);
        let bound = 1.0 + (world - 1) as f64 * windows as f64 / GROUPS as f64 + 0.02;
        let factor = read as f64 / (EPOCHS * once) as f64;
        println!("world {world}, window {window}: {factor:.4}, at most {bound:.4}");
        assert!(factor <= bound, "world {world}, window {window}: {factor} > {bound}");
        // Not because something was left out.
        assert!(factor > 0.6, "world {world}, window {window}: {factor}");
    }
}

#[test]
fn a_seek_reads_its_own_windows_wherever_it_goes() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    data(&path, 48);
    open(&path, dir.path()).unwrap();
    for rank in 0..2 {
        let text = format!("lanes=16,window=6,seq_len=8,seed=5,rank={rank},world=2");
        for step in [0, 1, 777, 10_000_000, u64::MAX / 2, u64::MAX] {
            let source = Arc::new(open(&path, dir.path()).unwrap());
            let rows = rows(&source, &text);
            let parts = rows.parts(step);
            let own: HashSet<usize> = parts.iter().map(|part| part.group).collect();
            // The windows that the step meets: one, or two if it begins in one and ends in another.
            let met: HashSet<(u64, u64)> = parts.iter().map(|p| (p.epoch, p.window)).collect();
            assert!((1..=2).contains(&met.len()) && own.len() <= 6 * met.len(), "step {step}");
            fill(&rows, step);
            let received = received(&rows);
            let figures = rows.tokens().figures();
            assert_eq!(figures.decoded - figures.ahead, own.len() as u64, "step {step}");
            // The window after it is read ahead, and nothing else.
            assert!(figures.ahead <= 6, "step {step}: {figures:?}");
            let bytes = |group: usize| {
                let bytes = source.place(group).bytes;
                bytes.end - bytes.start
            };
            let asked: u64 = own.iter().map(|&group| bytes(group)).sum();
            let largest = (0..48).map(bytes).max().unwrap();
            assert!((asked..=asked + figures.ahead * largest).contains(&received), "step {step}");
        }
    }
}
