//! The golden files pin the order of records.

#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "common/golden.rs"]
mod golden;

use std::fmt::Write;

use batchfs_sampler::Sampler;

const HEAD: &str = "\
# Order of records, version 1, as docs/order.md defines it. One batch per line:
# spec | number of records | step | ids of the rank's part of the batch, in order
";

const STEPS: [u64; 8] = [0, 1, 3, 12, 1_000_003, 1 << 32, 1 << 63, u64::MAX];

fn line(spec: &str, len: u64, step: u64) -> String {
    let sampler = Sampler::new(spec.parse().unwrap(), len).unwrap();
    assert_eq!(sampler.spec().to_string(), spec, "golden files use the canonical spelling");
    let mut ids = vec![0; sampler.local_batch() as usize];
    sampler.ids(step, &mut ids);
    let ids: Vec<String> = ids.iter().map(u64::to_string).collect();
    format!("{spec} | {len} | {step} | {}", ids.join(" "))
}

fn check(name: &str, specs: &[String], lengths: &[u64]) {
    let mut text = HEAD.to_owned();
    for spec in specs {
        for &len in lengths {
            for step in STEPS {
                writeln!(text, "{}", line(spec, len, step)).unwrap();
            }
        }
    }
    golden::check(name, &text);
}

/// Seeds, and a rank that starts inside a batch.
fn specs(mode: &str, batch: u64, tail: &str) -> Vec<String> {
    let mut specs: Vec<String> =
        [0, 42, u64::MAX].map(|seed| format!("mode={mode},batch={batch},seed={seed}{tail}")).into();
    specs.push(format!("mode={mode},batch={},seed=7{tail},rank=2,world=3", batch * 3));
    specs
}

/// Shuffles up to 512 records, bijections with 16 bits up to 2^30 and with 32 above.
const CYCLIC: [u64; 17] = [
    24,
    25,
    100,
    511,
    512,
    513,
    1000,
    1025,
    2500,
    65_537,
    200_000,
    1 << 30,
    (1 << 30) + 1,
    1 << 33,
    (1 << 62) + 1,
    (1 << 63) + 1,
    u64::MAX,
];

#[test]
fn sequential() {
    let specs =
        ["mode=sequential,batch=8", "mode=sequential,batch=24,rank=2,world=3"].map(String::from);
    check("sequential.txt", &specs, &[24, 100, (1 << 63) + 1, u64::MAX]);
}

#[test]
fn iid() {
    let lengths = [
        1,
        3,
        1000,
        (1 << 24) - 1,
        1 << 24,
        (1 << 24) + 1,
        200_000_000,
        1 << 33,
        (1 << 63) + 1,
        u64::MAX,
    ];
    check("iid.txt", &specs("iid", 8, ""), &lengths);
    // 2^32 mod 16,711,936 is almost that: about one draw of a batch is rejected.
    check(
        "iid-large-batch.txt",
        &["mode=iid,batch=300,seed=1".to_owned()],
        &[16_711_936, 200_000_000],
    );
}

#[test]
fn drop() {
    check("cyclic.txt", &specs("cyclic", 8, ""), &CYCLIC);
    check(
        "cyclic-large-batch.txt",
        &["mode=cyclic,batch=300,seed=1".to_owned()],
        &[512, 530, 100_000],
    );
}

#[test]
fn carry() {
    check("carry.txt", &specs("cyclic", 8, ",remainder=carry"), &CYCLIC);
}

/// The examples in `docs/order.md` have the form of these files' lines.
#[test]
fn the_examples_of_the_document_hold() {
    let examples = golden::examples("mode=");
    assert!(examples.len() >= 6, "the examples are gone");
    for ([spec, len, step, _], example) in examples {
        assert_eq!(line(spec, len.parse().unwrap(), step.parse().unwrap()), example);
    }
}
