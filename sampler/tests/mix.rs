//! What mixtures promise, for weights and specs of all shapes; and what pins their order.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "common/golden.rs"]
mod golden;

use std::fmt::Write as _;

use batchfs_sampler::SpecError;
use batchfs_sampler::lanes::{LaneSpec, Mix, Mixture, SourceRow};
use proptest::prelude::*;

const SOURCES: [&str; 5] = ["a", "b", "c", "d", "e"];

prop_compose! {
    fn mixture()(
        weights in proptest::collection::vec(prop_oneof![1u64..10, 1u64..300], 1..6),
        lanes in 1u64..13, seed in any::<u64>(),
    ) -> (Mix, LaneSpec) {
        let items: Vec<String> =
            SOURCES.iter().zip(weights).map(|(name, weight)| format!("{name}={weight}")).collect();
        let spec = format!("lanes={lanes},seq_len=4,seed={seed}").parse().unwrap();
        (items.join(",").parse().unwrap(), spec)
    }
}

proptest! {
    #[test]
    fn each_block_has_exact_shares_and_each_source_its_own_rows_in_order((mix, spec) in mixture()) {
        let (block, shares) = mix.shares();
        let sum: u64 = mix.weights().sum();
        // Not more weights than rows: shares are the weights themselves.
        prop_assert_eq!(block, sum);
        prop_assert_eq!(&shares, &mix.weights().collect::<Vec<_>>());
        let order = Mixture::new(&mix, spec);
        let mut had = vec![0u64; shares.len()];
        for (number, row) in (0..).flat_map(|step| order.rows(step)).enumerate().take(2 * block as usize) {
            let n = had[row.source];
            prop_assert_eq!((row.step, row.lane), (n / spec.lanes, n % spec.lanes));
            had[row.source] += 1;
            if (number as u64 + 1).is_multiple_of(block) {
                let blocks = (number as u64 + 1) / block;
                let want: Vec<u64> = shares.iter().map(|share| share * blocks).collect();
                prop_assert_eq!(&had, &want);
            }
        }
    }

    #[test]
    fn ranks_joined_are_the_global_step((mix, spec) in mixture(), step in any::<u64>()) {
        let whole = Mixture::new(&mix, spec).rows(step);
        prop_assert_eq!(whole.len() as u64, spec.lanes);
        for world in (1..=spec.lanes).filter(|world| spec.lanes.is_multiple_of(*world)) {
            let joined: Vec<SourceRow> = (0..world)
                .flat_map(|rank| Mixture::new(&mix, LaneSpec { rank, world, ..spec }).rows(step))
                .collect();
            prop_assert_eq!(&joined, &whole);
        }
        // A source's rows of a step follow each other, in its own step or that and the next.
        for source in 0..mix.names().len() {
            let own = whole.iter().filter(|row| row.source == source);
            let numbers: Vec<u128> =
                own.map(|r| u128::from(r.step) * u128::from(spec.lanes) + u128::from(r.lane)).collect();
            prop_assert!(numbers.windows(2).all(|pair| pair[0] + 1 == pair[1]));
        }
        prop_assert!(whole.iter().all(|row| row.step <= step && row.lane < spec.lanes));
    }

    #[test]
    fn shares_are_within_one_of_the_weights(weights in proptest::collection::vec(1u64..1_000_000_000, 2..8)) {
        let items: Vec<String> =
            weights.iter().enumerate().map(|(i, weight)| format!("s{i}={weight}.5")).collect();
        let mix: Mix = match items.join(",").parse() {
            Ok(mix) => mix,
            Err(error) => {
                prop_assert!(matches!(error, SpecError::WeightTooSmall { .. }), "{}", error);
                return Ok(());
            }
        };
        let (block, shares) = mix.shares();
        prop_assert!(block <= 65_536);
        prop_assert_eq!(shares.iter().sum::<u64>(), block);
        let sum: u128 = mix.weights().map(u128::from).sum();
        for (share, weight) in shares.iter().zip(mix.weights()) {
            let exact = u128::from(weight) * u128::from(block);
            prop_assert!((u128::from(*share) * sum).abs_diff(exact) < sum);
        }
    }
}

#[test]
fn blocks_have_orders_of_their_own() {
    let mix: Mix = "a=20,b=20".parse().unwrap();
    let spec: LaneSpec = "lanes=1,seq_len=1".parse().unwrap();
    assert_eq!(mix.to_string(), "a=1,b=1");
    let order = Mixture::new(&mix, spec);
    // Which of each pair comes first: 400 coins, fair within five standard deviations.
    let first = (0..400).filter(|n| order.rows(2 * n)[0].source == 0).count();
    assert!((150..=250).contains(&first), "{first}");
}

#[test]
fn mixes_are_spelled_in_one_way_and_refused_in_words() {
    let spell = |text: &str| text.parse::<Mix>().unwrap().to_string();
    assert_eq!(spell("b=0.3,a=0.70"), "a=7,b=3");
    assert_eq!(spell("web.en=2,code=000001.0"), "code=1,web.en=2");
    assert_eq!(spell("x=123456789.5"), "x=1");
    assert_eq!(spell("B=1,a=1,A-2=0.5"), "A-2=1,B=2,a=2");
    assert_eq!(spell("a=0.333333333,b=0.666666667"), "a=333333333,b=666666667");
    // The largest remainders get what is left; of equal ones the earlier source.
    let mix: Mix = "a=21845.5,b=21845.5,c=21845.5".parse().unwrap();
    assert_eq!(mix.shares(), (3, vec![1, 1, 1]));
    let mix: Mix = "a=1000001,b=1000001,c=1000000".parse().unwrap();
    assert_eq!(mix.shares(), (65_536, vec![21_846, 21_845, 21_845]));
    for (text, parts) in [
        ("", &["\"\"", "NAME=WEIGHT"][..]),
        ("a", &["\"a\""]),
        ("a=1,", &["\"\""]),
        ("=1", &["NAME=WEIGHT"]),
        ("a/b=1", &["a/b"]),
        (".a=1", &[".a"]),
        ("a=", &["a=\"\"", "decimal"]),
        ("a=0", &["a=\"0\"", "above 0"]),
        ("a=0.000", &["above 0"]),
        ("a=-1", &["-1"]),
        ("a=1e3", &["1e3"]),
        ("a=1.2.3", &["1.2.3"]),
        ("a=.5", &[".5"]),
        ("a=5.", &["5."]),
        ("a=1234567890", &["9 digits"]),
        ("a=0.1234567891", &["9 digits"]),
        ("a=1,b=2,a=3", &["a is given twice"]),
        ("a=1000000,b=1", &["weight of b", "65536"]),
    ] {
        let message = text.parse::<Mix>().expect_err(text).to_string();
        for part in parts {
            assert!(message.contains(part), "{text:?}: {message:?} lacks {part:?}");
        }
    }
}

const HEAD: &str = "\
# Order of mixtures, version 1, as docs/order.md defines it. One rank's part of a step per line:
# mix | spec | step | rows, each source:step:lane of the source read alone
";

fn line(mix: &str, spec: &str, step: u64) -> String {
    let parsed: Mix = mix.parse().unwrap();
    assert_eq!(parsed.to_string(), mix, "golden files use the canonical spelling");
    let names: Vec<&str> = parsed.names().collect();
    let rows: Vec<String> = Mixture::new(&parsed, spec.parse().unwrap())
        .rows(step)
        .iter()
        .map(|row| format!("{}:{}:{}", names[row.source], row.step, row.lane))
        .collect();
    format!("mix:{mix} | {spec} | {step} | {}", rows.join(" "))
}

#[test]
fn mixtures_are_what_they_were() {
    let mut text = HEAD.to_owned();
    let mixes = ["a=1", "a=7,b=3", "a=333,b=667", "code=1,math=2,web=4"];
    for mix in mixes {
        for spec in [
            "lanes=1,window=64,seq_len=8,seed=0",
            "lanes=8,window=64,seq_len=8,seed=42",
            "lanes=12,window=64,seq_len=8,seed=18446744073709551615,rank=1,world=3",
        ] {
            for step in [0, 1, 2, 1_000_003, u64::MAX] {
                writeln!(text, "{}", line(mix, spec, step)).unwrap();
            }
        }
    }
    // Shares that are rounded.
    for step in [1, u64::MAX] {
        let spec = "lanes=8,window=64,seq_len=8,seed=42";
        writeln!(text, "{}", line("a=1000001,b=1000000,c=999", spec, step)).unwrap();
    }
    // More than 2^64 blocks lie before the last of these.
    for step in [0, 4, u64::MAX] {
        let spec = "lanes=96,window=64,seq_len=1,seed=3,rank=11,world=12";
        writeln!(text, "{}", line("a=2,b=1", spec, step)).unwrap();
    }
    golden::check("mix.txt", &text);
}

#[test]
fn the_examples_of_the_document_hold() {
    for ([mix, spec, step, _], example) in golden::examples("mix:") {
        assert_eq!(line(mix.strip_prefix("mix:").unwrap(), spec, step.parse().unwrap()), example);
    }
}
