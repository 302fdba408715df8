//! Rows of mixtures: each source gives what it gives alone, in the order of the mixture.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod memory;

use std::collections::HashSet;
use std::sync::Arc;

use batchfs_batch::{Error, LaneSpec, Mix, TokenRows, TokenState, Tokens};
use batchfs_store::TokenSource;
use memory::Memory;
use proptest::prelude::*;

fn spec(text: &str) -> LaneSpec {
    text.parse().unwrap()
}

/// Tokens of source k begin at k million.
fn sources(groups: &[Vec<Vec<u32>>]) -> Vec<Arc<Memory>> {
    (0..).zip(groups).map(|(k, groups)| Memory::from(k * 1_000_000, groups.clone())).collect()
}

fn mixed(sources: &[Arc<Memory>], mix: &str, text: &str, budget: Option<u64>) -> Arc<Tokens> {
    let named = ["a", "b", "c"].iter().zip(sources);
    let named = named.map(|(name, source)| {
        let source: Arc<dyn TokenSource> = source.clone();
        ((*name).to_owned(), source)
    });
    let mix: Mix = mix.parse().unwrap();
    Tokens::mixed(named.collect(), mix, spec(text), budget, 2).unwrap()
}

fn rows(tokens: &Arc<Tokens>, text: &str) -> TokenRows {
    TokenRows::new(tokens.clone(), spec(text)).unwrap()
}

fn step(rows: &TokenRows, number: u64) -> Vec<Vec<i32>> {
    let len = rows.lanes().spec().seq_len as usize;
    let mut out = vec![0; rows.rows() as usize * len * 4];
    rows.fill(number, &mut out).unwrap();
    let numbers: Vec<i32> =
        out.chunks_exact(4).map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
    numbers.chunks(len).map(<[i32]>::to_vec).collect()
}

prop_compose! {
    fn groups(least: u32)(
        mut groups in proptest::collection::vec(proptest::collection::vec(0u32..12, 0..8), 1..8),
    ) -> Vec<Vec<u32>> {
        groups[0].push(least);
        groups
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn each_source_gives_what_it_gives_alone(
        a in groups(72), b in groups(72), c in groups(72),
        weights in (1u64..9, 1u64..9, 1u64..9), window in 1u64..4, seq_len in 1u64..7, world in 1u64..4,
    ) {
        let sources = sources(&[a, b, c]);
        let lanes = 4 * world;
        let text = format!("lanes={lanes},window={window},seq_len={seq_len},seed=3");
        let mix = format!("a={},b={},c={}", weights.0, weights.1, weights.2);
        let error = {
            let named = ["a", "b", "c"].iter().zip(&sources);
            let named = named.map(|(n, s)| ((*n).to_owned(), s.clone() as Arc<dyn TokenSource>));
            Tokens::mixed(named.collect(), mix.parse().unwrap(), spec(&text), Some(1), 1).err()
        };
        let Some(Error::Budget { needed, .. }) = error else { panic!("{error:?}") };
        // The least budget is enough.
        let whole = rows(&mixed(&sources, &mix, &text, Some(needed)), &text);
        let ranks: Vec<TokenRows> = (0..world)
            .map(|rank| {
                let text = format!("{text},rank={rank},world={world}");
                rows(&mixed(&sources, &mix, &text, None), &text)
            })
            .collect();
        let mut seen: Vec<Vec<Vec<i32>>> = vec![Vec::new(); 3];
        for number in 0..24 {
            let got = step(&whole, number);
            let joined: Vec<_> = ranks.iter().flat_map(|rank| step(rank, number)).collect();
            prop_assert_eq!(&joined, &got);
            for (row, from) in got.into_iter().zip(whole.mixed(number).unwrap()) {
                prop_assert!(row.iter().all(|token| token / 1_000_000 == from.source as i32));
                seen[from.source].push(row);
            }
            prop_assert!(whole.tokens().figures().used <= needed);
        }
        for (source, seen) in sources.iter().zip(seen) {
            let alone = Tokens::new(source.clone(), spec(&text), None, 1).unwrap();
            let alone = rows(&alone, &text);
            for (number, steps) in (0..).zip(seen.chunks_exact(lanes as usize)) {
                prop_assert_eq!(steps, step(&alone, number));
            }
        }
        // Far away, and at the end of all steps.
        for number in [1 << 40, u64::MAX] {
            let joined: Vec<_> = ranks.iter().flat_map(|rank| step(rank, number)).collect();
            prop_assert_eq!(step(&whole, number), joined);
        }
    }
}

#[test]
fn provenance_counts_documents_through_all_sources() {
    let sources = sources(&[vec![vec![9; 4], vec![3; 20]], vec![vec![5; 30]]]);
    let text = "lanes=3,window=1,seq_len=7,seed=5";
    let tokens = mixed(&sources, "b=1,a=2", text, None);
    assert_eq!(tokens.documents(), 24 + 30);
    assert_eq!(tokens.mix().unwrap().to_string(), "a=2,b=1");
    assert_eq!([0, 1, 2].map(|group| tokens.source_of(group).unwrap()), ["a", "a", "b"]);
    let rows = rows(&tokens, text);
    let lengths: Vec<u32> =
        sources.iter().flat_map(|source| source.groups.iter().flatten()).copied().collect();
    let begin = |document: usize| -> i64 {
        let first = if document < 24 { 0 } else { 24 };
        let base = if document < 24 { 0 } else { 1_000_000 };
        base + lengths[first..document].iter().map(|&n| i64::from(n)).sum::<i64>()
    };
    for number in [0, 1, 2, 3, 50, u64::MAX] {
        let tokens: Vec<i32> = step(&rows, number).concat();
        let from = rows.provenance(number).unwrap();
        assert_eq!(from.cu_seqlens.last(), Some(&21));
        for (i, ends) in from.cu_seqlens.windows(2).enumerate() {
            let first = begin(from.document_ids[i] as usize) + from.document_offsets[i];
            let want: Vec<i32> = (0..ends[1] - ends[0]).map(|n| first as i32 + n).collect();
            assert_eq!(tokens[ends[0] as usize..ends[1] as usize], want);
        }
    }
}

#[test]
fn a_source_that_is_seldom_met_stays_in_memory() {
    // A row of b comes once in 20, every fifth step; its window outlasts hundreds of steps.
    let sources = sources(&[vec![vec![8; 10]; 40], vec![vec![200]; 40]]);
    let text = "lanes=4,window=2,seq_len=4,seed=1";
    let tokens = mixed(&sources, "a=19,b=1", text, None);
    let rows = rows(&tokens, text);
    let mut needed = HashSet::new();
    for number in 0..200 {
        needed.extend(rows.parts(number).into_iter().map(|p| (p.epoch, p.window, p.group)));
        step(&rows, number);
    }
    // Each once, and what was begun of the next windows.
    let decoded = tokens.figures().decoded;
    assert!(decoded <= needed.len() as u64 + 4, "{decoded} for {}", needed.len());
}

#[test]
fn many_threads_share_the_least_budget() {
    let groups = |seed: u32| (0..20).map(|g| vec![1 + (g + seed) % 7; 20]).collect();
    let sources = sources(&[groups(0), groups(3)]);
    let text = "lanes=5,window=4,seq_len=9,seed=8";
    let expected = rows(&mixed(&sources, "a=1,b=2", text, Some(1 << 30)), text);
    let named = ["a", "b"].iter().zip(&sources);
    let named = named.map(|(n, s)| ((*n).to_owned(), s.clone() as Arc<dyn TokenSource>));
    let mix = "a=1,b=2".parse().unwrap();
    let error = Tokens::mixed(named.collect(), mix, spec(text), Some(1), 1).err().unwrap();
    let Error::Budget { needed, .. } = error else { panic!("{error}") };
    let rows = rows(&mixed(&sources, "a=1,b=2", text, Some(needed)), text);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (rows, expected) = (&rows, &expected);
            scope.spawn(move || {
                for i in 0..40u64 {
                    let number = (i * 37 + thread * 1_000_003) % 5000;
                    assert_eq!(step(rows, number), step(expected, number));
                }
            });
        }
    });
    assert!(rows.tokens().figures().used <= needed);
}

#[test]
fn what_does_not_fit_is_named() {
    let sources = sources(&[vec![vec![100; 4]], vec![vec![5; 4]]]);
    let named = |names: &[&str]| -> Vec<(String, Arc<dyn TokenSource>)> {
        let sources = sources.iter().map(|source| source.clone() as Arc<dyn TokenSource>);
        names.iter().map(|name| (*name).to_owned()).zip(sources).collect()
    };
    let refused = |names: &[&str], mix: &str, text: &str| {
        let mix = mix.parse().unwrap();
        let tokens = Tokens::mixed(named(names), mix, spec(text), None, 1);
        let error = match tokens {
            Ok(tokens) => TokenRows::new(tokens, spec(text)).err().unwrap(),
            Err(error) => error,
        };
        error.to_string()
    };
    let text = "lanes=2,window=1,seq_len=8";
    assert!(refused(&["a", "b"], "a=1", text).contains("source b has no weight"));
    assert!(refused(&["a"], "a=1,b=1", text).contains("b has a weight"));
    let few = refused(&["a", "b"], "a=1,b=1", "lanes=4,window=1,seq_len=8");
    assert!(few.contains("source b") && few.contains("20"), "{few}");
}

#[test]
fn a_state_is_of_one_mixture() {
    let sources = sources(&[vec![vec![100; 4]], vec![vec![50; 4]]]);
    let text = "lanes=2,window=1,seq_len=8,seed=0";
    let rows = |mix| rows(&mixed(&sources, mix, text, None), text);
    let state = TokenState::new(&rows("a=1,b=1"), 5);
    state.check(&rows("b=0.5,a=0.5")).unwrap();
    assert!(state.check(&rows("a=1,b=2")).is_err());
}
