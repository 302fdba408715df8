//! The golden files pin the order of token lanes, as those of records do.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
#[path = "common/golden.rs"]
mod golden;

use std::fmt::Write;

use common::{groups, lanes, rows};

const HEAD: &str = "\
# Order of tokens, version 1, as docs/order.md defines it. One rank's part of a step per line:
# spec | lengths of documents, by row group | step | rows, each of pieces document:offset:length
# Lengths of the form G*D: G row groups of D documents, (17 g + 31 d + g d) mod 13 tokens each.
";

fn line(spec: &str, data: &str, step: u64) -> String {
    let data_groups = groups(data);
    let order = lanes(spec.parse().unwrap(), &data_groups);
    assert_eq!(order.spec().to_string(), spec, "golden files use the canonical spelling");
    let rows: Vec<String> = rows(&order, &data_groups, step)
        .iter()
        .map(|row| {
            let pieces: Vec<String> =
                row.iter().map(|(d, at, n)| format!("{d}:{at}:{n}")).collect();
            pieces.join(" ")
        })
        .collect();
    format!("{spec} | {data} | {step} | {}", rows.join("; "))
}

#[test]
fn lanes_are_what_they_were() {
    let mut text = HEAD.to_owned();
    let small = ["5 3;1 9;6", "7", "0 0 30;;1 1 1 1 0 1", "2*9", "7*40"];
    for data in small {
        for spec in [
            "lanes=1,window=1,seq_len=3,seed=0",
            "lanes=2,window=2,seq_len=3,seed=42",
            "lanes=6,window=64,seq_len=1,seed=18446744073709551615",
            "lanes=6,window=3,seq_len=1,seed=7,rank=1,world=3",
        ] {
            for step in [0, 1, 2, 3, 4, 5, 30, 1_000_003, u64::MAX] {
                writeln!(text, "{}", line(spec, data, step)).unwrap();
            }
        }
    }
    // Row groups and pieces beyond what is shuffled: both are bijections.
    for step in [0, 1, 100, 20_000] {
        writeln!(text, "{}", line("lanes=3,window=50,seq_len=40,seed=5", "600*30", step)).unwrap();
    }
    golden::check("lanes.txt", &text);
}

#[test]
fn the_examples_of_the_document_hold() {
    for ([spec, data, step, _], example) in golden::examples("lanes=") {
        assert_eq!(line(spec, data, step.parse().unwrap()), example);
    }
}
