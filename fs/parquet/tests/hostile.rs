//! Small files that would take all memory, the stack or hours are refused with what is wrong.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;
#[path = "common/thrift.rs"]
mod thrift;

use std::time::{Duration, Instant};

use batchfs_store::TokenSource as _;
use common::{levels, open, write};
use parquet::file::properties::WriterProperties;
use proptest::prelude::*;
use thrift::{Struct, element, file, footer, peak};

const LIST: &str = "message m { optional group tokens (LIST) { repeated group list { optional int32 element; } } }";
/// Far more than is needed, and far less than the files below ask for.
const MEMORY: u64 = 512 << 20;

/// What is said of a file, which has to be said soon and without much memory.
fn refused(bytes: &[u8]) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    std::fs::write(&path, bytes).unwrap();
    let begun = Instant::now();
    let error = open(&path, dir.path()).err().expect("it is refused").to_string();
    assert!(begun.elapsed() < Duration::from_secs(20), "{error}");
    assert!(error.contains("x.parquet"), "{error}");
    assert!(peak() < MEMORY, "{error}");
    error
}

#[test]
fn schemas_that_no_stack_or_memory_is_enough_for_are_refused() {
    let root = |children| element("m", 0, Some(children));
    let nested = |depth: usize| {
        let mut schema = vec![root(1)];
        schema.extend((1..depth).map(|_| element("g", 0, Some(1))));
        schema.push(element("x", 2, None));
        footer(&schema, 0, &[])
    };
    for depth in [101, 8_000, 20_000, 1_000_000] {
        let error = refused(&file(b"", &nested(depth)));
        assert!(error.contains("groups in groups") && error.contains("write it again"), "{error}");
    }
    assert!(refused(&file(b"", &nested(100))).contains("no column \"tokens\""));

    let huge = [root(1), element("g", 0, Some((1 << 31) - 1)), element("x", 2, None)];
    let error = refused(&file(b"", &footer(&huge, 0, &[])));
    assert!(error.contains("2147483647 fields"), "{error}");
    // Each group says less than there is, all of them together more.
    let mut many = vec![root(1)];
    many.extend((0..50).map(|_| element("g", 0, Some(40))));
    many.extend((0..50).map(|_| element("x", 2, None)));
    assert!(refused(&file(b"", &footer(&many, 0, &[]))).contains("40 fields"));

    // A long name above many columns.
    let mut long = vec![root(1), element(&"n".repeat(1 << 20), 0, Some(100_000))];
    long.extend((0..100_000).map(|_| element("x", 2, None)));
    assert!(refused(&file(b"", &footer(&long, 0, &[]))).contains("the names in its schema"));
}

#[test]
fn lists_that_are_not_there_take_no_time() {
    // Of booleans, which take no bytes, in fields that nobody knows.
    let mut out = Struct::default().i32(1, 1);
    for id in 20..200 {
        out = out.list(id, 1, (1 << 31) - 1);
    }
    assert!(refused(&file(b"", &out.end())).contains("cannot be understood"));
    // As many as there are bytes, again and again.
    let mut out = Struct::default().list(20, 9, 200_000);
    for _ in 0..200_000 {
        out = out.raw(&[0xf1, 0xa0, 0x8d, 0x06]);
    }
    let out = out.raw(&vec![0; 100_000]);
    assert!(refused(&file(b"", &out.end())).contains("cannot be understood"));
}

/// A footer of the library, with statistics and all.
fn real() -> (Vec<u8>, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let documents: Vec<_> = (0..40).map(|i| Some(vec![i; 1 + i as usize % 5])).collect();
    let groups = [levels(&documents[..25], 3, 1), levels(&documents[25..], 3, 1)];
    write(&path, LIST, &groups, WriterProperties::builder().build());
    let bytes = std::fs::read(&path).unwrap();
    let (rest, tail) = bytes.split_at(bytes.len() - 8);
    let len = u32::from_le_bytes(tail[..4].try_into().unwrap()) as usize;
    let (data, footer) = rest.split_at(rest.len() - len);
    (data[4..].to_vec(), footer.to_vec())
}

#[derive(Clone, Debug)]
enum Change {
    Set(u8),
    Insert(Vec<u8>),
    Remove(usize),
    Repeat(usize, usize),
}

fn change() -> impl Strategy<Value = (prop::sample::Index, Change)> {
    // Bytes that mean something: heads of fields and lists, and numbers of many bytes.
    let byte = || prop_oneof![any::<u8>(), (0u8..16, 0u8..13).prop_map(|(a, b)| a << 4 | b)];
    let change = prop_oneof![
        byte().prop_map(Change::Set),
        prop::collection::vec(byte(), 1..6).prop_map(Change::Insert),
        Just(Change::Insert(vec![0xff, 0xff, 0xff, 0xff, 0x0f])),
        Just(Change::Insert(vec![0xfc, 0xff, 0xff, 0xff, 0x07])),
        (1usize..40).prop_map(Change::Remove),
        (1usize..60, 1usize..3000).prop_map(|(len, times)| Change::Repeat(len, times)),
    ];
    (any::<prop::sample::Index>(), change)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn a_changed_footer_is_an_error_or_a_dataset(
        changes in prop::collection::vec(change(), 1..4),
    ) {
        thread_local! {
            static REAL: (Vec<u8>, Vec<u8>) = real();
        }
        let (data, mut footer) = REAL.with(Clone::clone);
        for (at, change) in changes {
            let at = at.index(footer.len().max(1)).min(footer.len());
            let to = |len: usize| (at + len).min(footer.len());
            let (cut, new) = match change {
                Change::Set(byte) => (at..to(1), vec![byte]),
                Change::Insert(bytes) => (at..at, bytes),
                Change::Remove(len) => (at..to(len), Vec::new()),
                Change::Repeat(len, times) => (at..at, footer[at..to(len)].repeat(times)),
            };
            footer.splice(cut, new);
        }
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        std::fs::write(&path, file(&data, &footer)).unwrap();
        let begun = Instant::now();
        match open(&path, dir.path()) {
            Ok(source) => drop(source.read(0)),
            Err(error) => prop_assert!(error.to_string().contains("x.parquet")),
        }
        prop_assert!(begun.elapsed() < Duration::from_secs(20));
        prop_assert!(peak() < MEMORY);
    }
}
