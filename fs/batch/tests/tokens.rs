//! Rows of tokens over a source in memory: bytes, budget, failures, threads.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod memory;

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use batchfs_batch::{Dataset, Error, LaneSpec, StateError, TokenRows, TokenState, Tokens, View};
use batchfs_store::TokenSource as _;
use memory::Memory;
use proptest::prelude::*;

fn spec(text: &str) -> LaneSpec {
    text.parse().unwrap()
}

fn rows(source: &Arc<Memory>, text: &str, budget: Option<u64>) -> TokenRows {
    let tokens = Tokens::new(source.clone(), spec(text), budget, 2).unwrap();
    TokenRows::new(tokens, spec(text)).unwrap()
}

fn step(rows: &TokenRows, number: u64) -> Vec<i32> {
    let mut out = vec![0; (rows.rows() * rows.lanes().spec().seq_len) as usize * 4];
    rows.fill(number, &mut out).unwrap();
    out.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()
}

fn equal_groups(count: usize, documents: usize, len: u32) -> Vec<Vec<u32>> {
    vec![vec![len; documents]; count]
}

#[test]
fn provenance_tells_where_each_token_is_from() {
    let source = Memory::new(vec![vec![3, 0, 9], vec![], vec![20], vec![1; 30], vec![5, 5]]);
    let starts: Vec<u64> = source
        .groups
        .iter()
        .flatten()
        .scan(0, |at, &n| {
            *at += u64::from(n);
            Some(*at - u64::from(n))
        })
        .collect();
    let rows = rows(&source, "lanes=3,window=2,seq_len=7,seed=5", None);
    for number in [0, 1, 2, 3, 4, 100, u64::MAX] {
        let tokens = step(&rows, number);
        let from = rows.provenance(number).unwrap();
        assert_eq!(from.cu_seqlens.first(), Some(&0));
        assert_eq!(from.cu_seqlens.last(), Some(&21));
        for row in 0..3 {
            assert!(from.cu_seqlens.contains(&(7 * row)), "each row begins a piece");
        }
        for (i, ends) in from.cu_seqlens.windows(2).enumerate() {
            let first = starts[from.document_ids[i] as usize] as i64 + from.document_offsets[i];
            let want: Vec<i32> = (0..ends[1] - ends[0]).map(|n| first as i32 + n).collect();
            assert_eq!(tokens[ends[0] as usize..ends[1] as usize], want);
        }
    }
}

#[test]
fn an_epoch_is_decoded_once_and_a_large_budget_keeps_it() {
    let source = Memory::new(equal_groups(12, 10, 8));
    // 12 * 80 tokens make 60 steps of 16.
    let text = "lanes=4,window=3,seq_len=4,seed=1";
    let small = rows(&source, text, None);
    for number in 0..60 {
        step(&small, number);
    }
    let decoded = small.tokens().figures().decoded;
    // Each of the 12 once, and what was begun of the next epoch.
    assert!((12..=18).contains(&decoded), "{decoded}");
    let all = rows(&source, text, Some(1 << 20));
    for number in 0..600 {
        step(&all, number);
    }
    assert_eq!(all.tokens().figures().decoded, 12);
}

#[test]
fn a_budget_below_what_a_step_needs_is_refused_with_the_number() {
    let source = Memory::new(equal_groups(12, 10, 8));
    let text = "lanes=4,window=3,seq_len=4";
    // A row group takes 80 * 4 + 10 * 48 bytes; a step is made of up to two windows of three.
    let least = 2 * 3 * 800;
    let error = Tokens::new(source.clone(), spec(text), Some(least - 1), 1).err().unwrap();
    assert!(
        matches!(error, Error::Budget { needed, limit, .. } if (needed, limit) == (least, least - 1))
    );
    let rows = rows(&source, text, Some(least));
    let expected = self::rows(&source, text, Some(1 << 30));
    for number in (0..200).chain([1 << 40, 3]) {
        assert_eq!(step(&rows, number), step(&expected, number));
        assert!(rows.tokens().figures().used <= least);
    }
    // Another view of the same source may need more than there is.
    let wide = spec("lanes=4,window=12,seq_len=4");
    let error = TokenRows::new(rows.tokens().clone(), wide).err().unwrap();
    assert!(error.to_string().contains("9600"), "{error}");
}

#[test]
fn what_cannot_be_read_fails_its_steps_until_it_can() {
    let source = Memory::new(equal_groups(4, 10, 8));
    let rows = rows(&source, "lanes=1,window=1,seq_len=80,seed=3", None);
    let good: Vec<_> = (0..4).map(|number| step(&rows, number)).collect();
    let bad = rows.parts(2)[0].group;
    let rows = self::rows(&source, "lanes=1,window=1,seq_len=80,seed=3", None);
    source.broken.lock().unwrap().insert(bad);
    let mut out = vec![0; 320];
    for _ in 0..3 {
        let error = rows.fill(2, &mut out).unwrap_err();
        assert!(error.to_string().contains("is broken"), "{error}");
        assert_eq!(step(&rows, 1), good[1]);
        assert_eq!(step(&rows, 3), good[3]);
    }
    source.broken.lock().unwrap().clear();
    assert_eq!(step(&rows, 2), good[2]);
}

#[test]
fn a_source_that_is_late_is_not_waited_for_by_each_in_turn() {
    let source = Memory::new(equal_groups(8, 10, 8));
    let text = "lanes=1,window=1,seq_len=80,seed=3";
    let rows = rows(&source, text, None);
    let first = step(&rows, 0);
    let decoded = || rows.tokens().figures().decoded;
    while decoded() < 2 {
        // The window after it is read ahead.
        std::thread::yield_now();
    }
    source.late.lock().unwrap().extend(0..8);
    let asked = || source.reads.load(Ordering::Relaxed);
    let before = asked();
    let mut out = vec![0; 320];
    let said = |number: u64, out: &mut [u8]| rows.fill(number, out).unwrap_err().to_string();
    let error = said(5, &mut out);
    assert!(error.contains("no answer about"), "{error}");
    for number in [5, 6, 4, 5] {
        assert!(said(number, &mut out).contains("no answer about"));
    }
    assert_eq!(asked() - before, 1, "nobody asked again");
    assert_eq!(decoded(), 2, "what failed is not decoded");
    assert_eq!(step(&rows, 0), first, "what is in memory is given");
}

#[test]
fn damage_in_a_packed_row_group_fails_the_step_that_has_it_and_those_after() {
    let source = Memory::new(equal_groups(4, 10, 80));
    // Windows of one row group of 800 tokens, 100 steps.
    let text = "lanes=1,window=1,seq_len=8,seed=3";
    let rows = self::rows(&source, text, None);
    let good: Vec<_> = (0..400).map(|number| step(&rows, number)).collect();
    source.packed.store(true, Ordering::Relaxed);
    let bad = rows.parts(100)[0].group;
    source.broken.lock().unwrap().insert(bad);
    let mut out = vec![0; 32];
    let half = 800 * bad as i32 + 400;
    let (mut whole, mut damaged) = (Vec::new(), Vec::new());
    for number in 100..200 {
        let all = good[number as usize].iter().all(|&token| token < half);
        if all {
            whole.push(number);
        } else {
            damaged.push(number);
        };
    }
    for first in [damaged[0], damaged[30]] {
        let rows = self::rows(&source, text, None);
        let error = rows.fill(first, &mut out).unwrap_err();
        assert!(error.to_string().contains("is broken"), "{error}");
    }
    let rows = self::rows(&source, text, None);
    // What it has is whole, and so it is given out.
    assert_eq!(step(&rows, whole[20]), good[whole[20] as usize]);
    for number in [whole[21], whole[20], damaged[7]] {
        let error = rows.fill(number, &mut out).unwrap_err();
        assert!(error.to_string().contains("is broken"), "{error}");
        assert_eq!(step(&rows, 20), good[20]);
        assert_eq!(step(&rows, 399), good[399]);
    }
    source.broken.lock().unwrap().clear();
    assert_eq!(step(&rows, damaged[7]), good[damaged[7] as usize]);
}

#[test]
fn packed_row_groups_are_decoded_for_the_next_step_and_counted_once() {
    let source = Memory::new(equal_groups(12, 10, 80));
    let text = "lanes=4,window=3,seq_len=4,seed=1";
    let expected = rows(&source, text, None);
    source.packed.store(true, Ordering::Relaxed);
    let rows = self::rows(&source, text, None);
    for number in [7, 8, 7, 599, 0, 300, 301] {
        assert_eq!(step(&rows, number), step(&expected, number), "{number}");
    }
    let all = self::rows(&source, text, Some(1 << 20));
    for number in 0..600 {
        assert_eq!(step(&all, number), step(&expected, number), "{number}");
    }
    assert_eq!(all.tokens().figures().decoded, 12);
    assert_eq!(all.tokens().figures().used, 12 * (800 * 2 + 10 * 48));
}

#[test]
fn many_threads_at_many_places_share_the_least_budget() {
    for packed in [false, true] {
        let source = Memory::new((0..40).map(|g| vec![1 + g % 7; 200]).collect());
        source.packed.store(packed, Ordering::Relaxed);
        let text = "lanes=5,window=4,seq_len=9,seed=8";
        let error = Tokens::new(source.clone(), spec(text), Some(1), 1).err().unwrap();
        let Error::Budget { needed, .. } = error else { panic!("{error}") };
        let rows = rows(&source, text, Some(needed));
        let expected = self::rows(&source, text, Some(1 << 30));
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let (rows, expected) = (&rows, &expected);
                scope.spawn(move || {
                    for i in 0..60u64 {
                        let number = (i * 37 + thread * 1_000_003) % 5000;
                        assert_eq!(step(rows, number), step(expected, number));
                        assert!(rows.tokens().figures().used <= rows.tokens().figures().budget);
                    }
                });
            }
        });
        assert!(rows.tokens().figures().used <= needed);
    }
}

#[test]
fn who_needs_all_of_the_budget_gets_it_beside_many_who_need_little() {
    let source = Memory::new(equal_groups(40, 10, 10));
    // A step is a little less than a window, so that most begin in one and end in the next.
    let text = "lanes=5,window=8,seq_len=150,seed=8";
    let error = Tokens::new(source.clone(), spec(text), Some(1), 1).err().unwrap();
    let Error::Budget { needed, .. } = error else { panic!("{error}") };
    let large = rows(&source, text, Some(needed));
    let small = spec("lanes=1,window=1,seq_len=8,seed=3");
    let small = TokenRows::new(large.tokens().clone(), small).unwrap();
    source.slow.store(200, Ordering::Relaxed);
    let (steps, done) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (small, steps, done) = (&small, &steps, &done);
            scope.spawn(move || {
                let mut number = thread * 1_000_003;
                while !done.load(Ordering::Relaxed) && steps.load(Ordering::Relaxed) < 20_000 {
                    step(small, number % 100_000);
                    number += 7919;
                    steps.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for number in [1, 2, 1001, 1002] {
            while steps.load(Ordering::Relaxed) == 0 {
                std::thread::yield_now();
            }
            step(&large, number);
        }
        done.store(true, Ordering::Relaxed);
    });
    assert!(steps.load(Ordering::Relaxed) < 20_000, "it had to wait until they were through");
}

#[test]
fn specs_of_the_other_kind_are_refused() {
    let source = Memory::new(equal_groups(4, 10, 8));
    let tokens = Tokens::new(source, spec("lanes=1,seq_len=8"), None, 1).unwrap();
    let data = Arc::new(Dataset::of_tokens(tokens));
    assert!(data.parse_spec("batch=3").unwrap_err().to_string().contains("lanes"));
    let records: batchfs_batch::Spec = "batch=3".parse().unwrap();
    assert!(View::new(0, "", data.clone(), records).is_err());
    let view = View::new(0, "", data, spec("lanes=2,seq_len=8")).unwrap();
    assert_eq!((view.local_batch(), view.steps_per_cycle()), (2, 20));
    assert_eq!((view.cycle_of(19), view.cycle_of(20)), (0, 1));
}

#[test]
fn states_are_of_one_run_whatever_the_ranks() {
    let source = Memory::new(equal_groups(12, 10, 8));
    let text = "lanes=4,window=3,seq_len=4,seed=1";
    let whole = rows(&source, text, None);
    let state = TokenState::new(&whole, 1 << 50);
    let bytes = state.to_bytes();
    let read = TokenState::from_bytes(&bytes).unwrap();
    assert_eq!((&read, read.step()), (&state, 1 << 50));
    let ranks: Vec<TokenRows> = (0..2)
        .map(|rank| rows(&source, &format!("{text},pieces=3,rank={rank},world=2"), None))
        .collect();
    for rank in &ranks {
        state.check(rank).unwrap();
    }
    let parts: Vec<TokenState> = ranks.iter().map(|rank| TokenState::new(rank, 7)).collect();
    assert_eq!(TokenState::merge(&parts).unwrap().step(), 7);
    let apart = [TokenState::new(&whole, 7), TokenState::new(&whole, 8)];
    let error = TokenState::merge(&apart).unwrap_err().to_string();
    assert!(error.contains("step 7") && error.contains("step 8"), "{error}");
    assert!(TokenState::merge(&[]).is_err());

    let other = |text: &str, groups| {
        state.check(&rows(&Memory::new(groups), text, None)).unwrap_err().to_string()
    };
    for (changed, key) in [
        ("lanes=8,window=3,seq_len=4,seed=1", "lanes is 4 in the state and 8 here"),
        ("lanes=4,window=2,seq_len=4,seed=1", "window is 3 in the state and 2 here"),
        ("lanes=4,window=3,seq_len=5,seed=1", "seq_len is 4 in the state and 5 here"),
        ("lanes=4,window=3,seq_len=4,seed=2", "seed is 1 in the state and 2 here"),
    ] {
        let error = other(changed, equal_groups(12, 10, 8));
        assert!(error.ends_with(key), "{error}");
    }
    let error = other(text, equal_groups(13, 10, 8));
    assert!(error.contains("960 tokens") && error.contains("1040"), "{error}");

    let text = String::from_utf8(bytes.clone()).unwrap();
    assert!(text.contains("\"unit\":\"steps of all ranks\"") && text.contains("\"version\":1"));
    let newer = text.replacen("\"version\":1", "\"version\":2", 1);
    assert_eq!(TokenState::from_bytes(newer.as_bytes()), Err(StateError::Version(2)));
    for cut in 0..bytes.len() {
        assert!(TokenState::from_bytes(&bytes[..cut]).is_err(), "cut to {cut}");
    }
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut flipped = bytes.clone();
            flipped[at] ^= 1 << bit;
            assert!(TokenState::from_bytes(&flipped).is_err(), "bit {bit} of byte {at}");
        }
    }
    for bad in [format!("{text} "), format!("{text}{text}"), "[1]\n".to_owned(), String::new()] {
        assert!(matches!(TokenState::from_bytes(bad.as_bytes()), Err(StateError::Malformed(_))));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_least_budget_is_enough_for_every_step(
        mut groups in proptest::collection::vec(proptest::collection::vec(0u32..12, 0..8), 1..20),
        lanes in 1u64..7, window in 1u64..6, seq_len in 1u64..12, world in 1u64..4, at in any::<u64>(),
    ) {
        let lanes = lanes * world;
        groups[0].push((lanes * seq_len) as u32);
        let source = Memory::new(groups);
        for rank in 0..world {
            let text = format!(
                "lanes={lanes},window={window},seq_len={seq_len},seed=3,rank={rank},world={world}"
            );
            let error = Tokens::new(source.clone(), spec(&text), Some(1), 1).err().unwrap();
            let Error::Budget { needed, .. } = error else { panic!("{error}") };
            let tokens = Tokens::new(source.clone(), spec(&text), Some(needed), 1).unwrap();
            let rows = TokenRows::new(tokens, spec(&text)).unwrap();
            for number in (0..12).chain([at, at.wrapping_add(1)]) {
                let groups: HashSet<usize> =
                    rows.parts(number).iter().map(|part| part.group).collect();
                let bytes: u64 =
                    groups.iter().map(|&group| source.groups()[group].decoded_bytes()).sum();
                prop_assert!(bytes <= needed, "step {}: {} > {}", number, bytes, needed);
                step(&rows, number);
            }
        }
    }
}

#[test]
fn the_next_window_is_decoded_while_this_one_is_read() {
    let source = Memory::new(equal_groups(12, 10, 8));
    // Windows of three row groups, 240 tokens, 15 steps.
    let rows = rows(&source, "lanes=4,window=3,seq_len=4,seed=1", None);
    for window in 0..3 {
        for number in window * 15..window * 15 + 14 {
            step(&rows, number);
        }
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        while rows.tokens().figures().decoded < 3 * (window + 2) {
            assert!(std::time::Instant::now() < until, "window {} is not begun", window + 1);
            std::thread::yield_now();
        }
    }
    assert_eq!(rows.tokens().figures().decoded, 12);
}
