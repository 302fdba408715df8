//! What token lanes promise, for data and specs of all shapes.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::{BTreeMap, BTreeSet};

use batchfs_sampler::SpecError;
use batchfs_sampler::lanes::{LaneSpec, Lanes};
use common::{lanes, rows};
use proptest::prelude::*;

prop_compose! {
    fn data()(
        mut groups in proptest::collection::vec(
            proptest::collection::vec(prop_oneof![4 => 0u32..9, 1 => 20u32..90], 0..12), 1..14),
        lanes in 1u64..13, window in 1u64..6, seq_len in 1u64..20, seed in any::<u64>(),
    ) -> (LaneSpec, Vec<Vec<u32>>) {
        let needed = (lanes * seq_len) as u32;
        groups[0].push(needed);
        let text = format!("lanes={lanes},window={window},seq_len={seq_len},seed={seed}");
        (text.parse().unwrap(), groups)
    }
}

/// The tokens of a row, as (document, position).
fn tokens(row: &[(u64, u64, u64)]) -> impl Iterator<Item = (u64, u64)> + '_ {
    row.iter().flat_map(|&(document, at, len)| (at..at + len).map(move |token| (document, token)))
}

/// Deals tokens one by one: lane b gets token number i of the run when floor((i + 1 + b) / lanes)
/// grows, that is if lanes divides i + 1 + b. Gives each lane the numbers of its tokens.
fn dealt(lanes: u64, from: u128, tokens: u64) -> Vec<u64> {
    let mut count = vec![0; lanes as usize];
    for i in from..from + u128::from(tokens) {
        let lane = (0..lanes).find(|&b| (i + 1 + u128::from(b)).is_multiple_of(lanes.into()));
        count[lane.unwrap() as usize] += 1;
    }
    count
}

proptest! {
    #[test]
    fn the_closed_form_is_the_simulation((spec, groups) in data(), number in any::<u32>()) {
        let order = lanes(spec, &groups);
        let epoch = order.epoch(number.into());
        let mut before = u128::from(number) * u128::from(order.epoch_tokens());
        let mut members = Vec::new();
        for index in 0..order.windows_per_epoch() {
            let window = epoch.window(index).unwrap();
            prop_assert_eq!(window.before, before);
            let tokens: u64 =
                epoch.groups(&window).iter().map(|&g| order.group_tokens()[g as usize]).sum();
            prop_assert_eq!(window.tokens, tokens);
            let counts = dealt(spec.lanes, before, tokens);
            let mut begin = 0;
            for (lane, count) in (0..).zip(counts) {
                let stretch = window.stretch(lane);
                // Stretches lie one behind the other, in the order of the lanes, without a gap.
                prop_assert_eq!((stretch.begin, stretch.len), (begin, count));
                begin += count;
            }
            prop_assert_eq!(begin, tokens);
            before += u128::from(tokens);
            members.extend_from_slice(epoch.groups(&window));
        }
        prop_assert!(epoch.window(order.windows_per_epoch()).is_none());
        members.sort_unstable();
        prop_assert_eq!(members, (0..groups.len() as u32).collect::<Vec<_>>());
    }

    #[test]
    fn rows_are_full_and_each_token_comes_once_an_epoch((spec, groups) in data()) {
        let order = lanes(spec, &groups);
        let total = order.epoch_tokens();
        // Steps until the run of epochs and that of steps end together, or so many.
        let steps = (3 * total / (spec.lanes * spec.seq_len) + 2).min(200);
        let mut runs = vec![Vec::new(); spec.lanes as usize];
        for step in 0..steps {
            for (run, row) in runs.iter_mut().zip(rows(&order, &groups, step)) {
                prop_assert_eq!(row.iter().map(|s| s.2).sum::<u64>(), spec.seq_len);
                run.extend(tokens(&row));
            }
        }
        // Each lane's share of the first epochs, cut where the epochs end.
        let had = |lane: u64, epoch: u64| ((epoch * total + lane) / spec.lanes) as usize;
        for epoch in 0..3 {
            let mut seen: BTreeMap<(u64, u64), u32> = BTreeMap::new();
            let mut complete = true;
            for (lane, run) in (0..).zip(&runs) {
                let (from, until) = (had(lane, epoch), had(lane, epoch + 1));
                complete &= until <= run.len();
                for token in &run[from.min(run.len())..until.min(run.len())] {
                    *seen.entry(*token).or_default() += 1;
                }
            }
            prop_assert!(seen.values().all(|&count| count == 1));
            if complete {
                prop_assert_eq!(seen.len() as u64, total);
                for (document, &len) in (0..).zip(groups.iter().flatten()) {
                    prop_assert!((0..len.into()).all(|at| seen.contains_key(&(document, at))));
                }
            }
        }
    }

    #[test]
    fn a_document_is_one_piece_in_each_lane_that_has_some_of_it((spec, groups) in data()) {
        let order = lanes(spec, &groups);
        let total = order.epoch_tokens();
        let steps = (2 * total / (spec.lanes * spec.seq_len) + 2).min(300);
        let mut runs = vec![Vec::new(); spec.lanes as usize];
        for step in 0..steps {
            for (run, row) in runs.iter_mut().zip(rows(&order, &groups, step)) {
                run.extend(tokens(&row));
            }
        }
        let had = |lane: u64, epoch: u64| ((epoch * total + lane) / spec.lanes) as usize;
        for epoch in 0..2 {
            // Begin, length and lane of each piece of a document.
            let mut pieces: BTreeMap<u64, Vec<(u64, u64, u64)>> = BTreeMap::new();
            let mut complete = true;
            for (lane, run) in (0..).zip(&runs) {
                let Some(own) = run.get(had(lane, epoch)..had(lane, epoch + 1)) else {
                    complete = false;
                    continue;
                };
                let mut met = BTreeSet::new();
                for piece in own.chunk_by(|a, b| a.0 == b.0 && a.1 + 1 == b.1) {
                    let (document, begin) = piece[0];
                    prop_assert!(met.insert(document), "it comes in two pieces");
                    let one = (begin, piece.len() as u64, lane);
                    pieces.entry(document).or_default().push(one);
                }
            }
            if !complete {
                continue;
            }
            // Together they are the document, and neighbouring lanes have neighbouring pieces.
            for (document, &len) in (0..).zip(groups.iter().flatten()) {
                let mut own = pieces.remove(&document).unwrap_or_default();
                own.sort_unstable();
                let mut end = 0;
                for &(begin, len, _) in &own {
                    prop_assert_eq!(begin, end);
                    end += len;
                }
                prop_assert_eq!(end, u64::from(len));
                prop_assert!(own.windows(2).all(|pair| pair[0].2 < pair[1].2));
            }
            prop_assert!(pieces.is_empty());
        }
    }

    #[test]
    fn ranks_joined_are_the_global_step((spec, groups) in data(), step in any::<u64>()) {
        let whole = rows(&lanes(spec, &groups), &groups, step);
        for world in (1..=spec.lanes).filter(|world| spec.lanes.is_multiple_of(*world)) {
            let joined: Vec<_> = (0..world)
                .flat_map(|rank| {
                    let spec = LaneSpec { rank, world, ..spec };
                    rows(&lanes(spec, &groups), &groups, step)
                })
                .collect();
            prop_assert_eq!(&joined, &whole);
        }
    }

    #[test]
    fn steps_and_epochs_agree((spec, groups) in data(), epoch in any::<u32>()) {
        let order = lanes(spec, &groups);
        let first = order.first_step(epoch.into()).unwrap();
        prop_assert_eq!(order.epoch_of(first), u64::from(epoch));
        prop_assert!(first == 0 || order.epoch_of(first - 1) < epoch.into());
        let met = order.epochs_met(first);
        prop_assert!(*met.end() - *met.start() <= 1);
    }
}

#[test]
fn pieces_of_a_lane_come_in_all_orders_equally() {
    // Four documents of a token each in one lane: 24 orders, 200 expected of each.
    let mut seen: BTreeMap<Vec<u64>, u32> = BTreeMap::new();
    for seed in 0..4800 {
        let spec =
            LaneSpec { lanes: 1, window: 1, seq_len: 4, pieces: 4, seed, ..LaneSpec::default() };
        let groups = vec![vec![1, 1, 1, 1]];
        let row = rows(&lanes(spec, &groups), &groups, 0).remove(0);
        *seen.entry(row.iter().map(|piece| piece.0).collect()).or_default() += 1;
    }
    assert_eq!(seen.len(), 24);
    let chi: f64 = seen.values().map(|&n| (f64::from(n) - 200.0).powi(2) / 200.0).sum();
    // 23 degrees of freedom: above 58 once in 10,000.
    assert!(chi < 58.0, "{chi}");
}

#[test]
fn neighbouring_lanes_windows_and_epochs_have_orders_of_their_own() {
    let groups: Vec<Vec<u32>> = vec![vec![1; 64]; 4];
    let spec = LaneSpec { lanes: 2, window: 1, seq_len: 32, pieces: 32, ..LaneSpec::default() };
    let order = lanes(spec, &groups);
    let mut seen = BTreeSet::new();
    for step in 0..40 {
        for (lane, row) in (0..).zip(rows(&order, &groups, step)) {
            let order: Vec<u64> = row.iter().map(|piece| piece.0 % 64 - lane * 32).collect();
            assert!(seen.insert(order), "step {step}, lane {lane} repeats an order");
        }
    }
}

fn refusal(text: &str) -> String {
    text.parse::<LaneSpec>().expect_err(text).to_string()
}

#[test]
fn specs_are_spelled_in_one_way_and_refused_in_words() {
    let spell = |text: &str| text.parse::<LaneSpec>().unwrap().to_string();
    assert_eq!(spell("seed=7"), "lanes=256,window=64,seq_len=2048,seed=7");
    let ranks = "lanes=8,window=2,seq_len=100,seed=0,rank=1,world=4";
    assert_eq!(spell("world=4,rank=1,seq_len=100,window=2,lanes=8,pieces=16"), ranks);
    assert_eq!(spell(ranks), ranks);
    assert!(spell("lanes=8,pieces=17").contains(",pieces=17"));
    assert_eq!(spell("out=int32"), spell("lanes=256"));
    let unsigned = "lanes=8,window=64,seq_len=2048,seed=0,out=uint32,rank=0,world=2";
    assert_eq!(spell("world=2,out=uint32,lanes=8"), unsigned);
    for (text, parts) in [
        ("lanes=0", &["lanes=0"][..]),
        ("window=0", &["window=0"]),
        ("seq_len=0", &["seq_len=0"]),
        ("world=0", &["world=0"]),
        ("lanes=12,world=5", &["lanes=12", "world=5"]),
        ("lanes=8,rank=8,world=8", &["rank=8", "= 7"]),
        ("lanes=4,seq_len=536870912", &["4 rows", "536870912", "2147483647"]),
        ("seq_len=8,pieces=9", &["pieces=9", "seq_len=8"]),
        (
            "batch=3",
            &["unknown key \"batch\"", "lanes, window, seq_len, seed, pieces, out, rank, world"],
        ),
        ("lane=3", &["did you mean lanes?"]),
        ("lanes=x", &["plain decimal"]),
        ("out=int64", &["out=\"int64\"", "int32 or uint32"]),
    ] {
        let message = refusal(text);
        for part in parts {
            assert!(message.contains(part), "{text:?}: {message:?} lacks {part:?}");
        }
    }
    let error = Lanes::new("lanes=8,seq_len=64".parse().unwrap(), vec![500].into()).unwrap_err();
    assert!(matches!(error, SpecError::TooFewTokens { tokens: 500, .. }));
    assert!(error.to_string().contains("512"), "{error}");
}
