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

/// Levels: a run of one level after the other.
fn runs(runs: &[(u64, u8)]) -> Vec<u8> {
    let mut out = Vec::new();
    for &(count, level) in runs {
        let mut head = count << 1;
        while head >= 0x80 {
            out.push(head as u8 | 0x80);
            head >>= 7;
        }
        out.extend([head as u8, level]);
    }
    [&(out.len() as u32).to_le_bytes()[..], &out].concat()
}

/// A file of one row group of one page.
#[derive(Clone)]
struct Page {
    rows: i64,
    /// Levels, as the page and as the footer says.
    levels: (i64, i64),
    reps: Vec<(u64, u8)>,
    defs: Vec<(u64, u8)>,
    tokens: i32,
    encoding: i64,
    histogram: Option<[i64; 4]>,
    codec: i64,
    /// Bytes when it is decompressed, if not those that it has.
    whole: Option<i64>,
}

impl Page {
    fn file(&self) -> Vec<u8> {
        let values: Vec<u8> = (0..self.tokens).flat_map(i32::to_le_bytes).collect();
        let body = [runs(&self.reps), runs(&self.defs), values].concat();
        let len = body.len() as i64;
        let head = Struct::default().i32(1, self.levels.0).i32(2, 0);
        let head = head.i32(3, self.encoding).i32(4, self.encoding);
        let whole = self.whole.unwrap_or(len);
        let page = Struct::default().i32(1, 0).i32(2, whole).i32(3, len).inner(5, head).end();
        let data = [page, body].concat();
        let len = data.len() as i64;
        let column = Struct::default().i32(1, 1).numbers(2, 5, &[0, 3]).i32(4, self.codec);
        let column = column.i64(5, self.levels.1).i64(6, len).i64(7, len).i64(9, 4);
        let column = match self.histogram {
            Some(counts) => column.inner(16, Struct::default().numbers(3, 6, &counts)),
            None => column,
        };
        let chunk = Struct::default().i64(2, 4).inner(3, column);
        let group = Struct::default().structs(1, &[chunk]).i64(2, len).i64(3, self.rows);
        let schema = [
            element("m", 0, Some(1)),
            element("tokens", 1, Some(1)).i32(6, 3),
            element("list", 2, Some(1)),
            element("element", 1, None),
        ];
        file(&data, &footer(&schema, self.rows, &[group]))
    }
}

const MANY: u64 = 300_000_000;

/// One document of one token, and a run of levels that are none.
fn one(rep: u8, def: u8) -> Page {
    Page {
        rows: 1,
        levels: (MANY as i64, MANY as i64),
        reps: vec![(1, 0), (MANY - 1, rep)],
        defs: vec![(1, 3), (MANY - 1, def)],
        tokens: 1,
        encoding: 3,
        histogram: None,
        codec: 0,
        whole: None,
    }
}

#[test]
fn levels_that_are_no_tokens_are_not_decoded_by_the_thousand_millions() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    // What the file would be if it were in order.
    let few = Page {
        levels: (1000, 1000),
        reps: vec![(1, 0), (999, 1)],
        defs: vec![(1000, 3)],
        tokens: 1000,
        ..one(1, 3)
    };
    for histogram in [None, Some([0, 0, 0, 1000])] {
        std::fs::write(&path, Page { histogram, ..few.clone() }.file()).unwrap();
        let source = open(&path, &dir.path().join(format!("{}", histogram.is_some()))).unwrap();
        assert_eq!(source.read(0).unwrap().tokens.to_vec(), (0..1000).collect::<Vec<i32>>());
    }

    let others = MANY as i64 - 1;
    for (page, what) in [
        (one(1, 2), "row 0: has a null item"),
        (one(1, 0), "row group 0: the token column is damaged"),
        (one(0, 0), "more rows than the row group, which has 1"),
        (one(0, 3), "more rows than the row group, which has 1"),
        // It says so itself.
        (Page { histogram: Some([others, 0, 0, 1]), ..one(0, 0) }, "have no more than 2"),
        (Page { histogram: Some([0, 0, others, 1]), ..one(1, 2) }, "row 0: has a null item"),
        (Page { levels: (1000, MANY as i64), ..few.clone() }, "have no more than 1001"),
        // Levels without runs, of which there are not enough.
        (Page { encoding: 4, ..one(1, 0) }, "the token column is damaged"),
        (Page { levels: (MANY as i64, 2), ..one(1, 0) }, "more values than its footer says"),
    ] {
        let error = refused(&page.file());
        assert!(error.contains(what), "{what}: {error}");
    }

    // Room for what a page says that it takes would be all memory. With Snappy, LZ4 and zstd.
    for codec in [1, 7, 6] {
        for whole in [(16 << 20) + 32_001, (1 << 31) - 1] {
            let page = Page { codec, whole: Some(whole), ..few.clone() };
            let error = refused(&page.file());
            assert!(
                error.contains(&format!("it takes {whole} bytes, and 16809216 are")),
                "{error}"
            );
            let page = Page { histogram: Some([0, 0, 0, 1000]), ..page };
            std::fs::write(&path, page.file()).unwrap();
            let source = open(&path, &dir.path().join(format!("{codec}-{whole}"))).unwrap();
            for error in [source.read(0).err().unwrap(), source.read_packed(0).err().unwrap()] {
                assert!(
                    error
                        .to_string()
                        .contains("row group 0: the token column is damaged: a page of it says"),
                    "{error}"
                );
            }
        }
    }
    // Who says that there are so many values has not proven it.
    for codec in [1, 7, 6] {
        let page =
            Page { levels: (1000, MANY as i64), codec, whole: Some((1 << 31) - 1), ..few.clone() };
        let error = refused(&page.file());
        assert!(error.contains("it takes 2147483647 bytes, and 268435456 are"), "{error}");
    }
    assert!(peak() < MEMORY);

    // The footer is in order, and the page is not.
    let lies = Page { levels: (MANY as i64, 2), histogram: Some([1, 0, 0, 1]), ..one(0, 0) };
    std::fs::write(&path, lies.file()).unwrap();
    let source = open(&path, &dir.path().join("lies")).unwrap();
    for error in [source.read(0).err().unwrap(), source.read_packed(0).err().unwrap()] {
        assert!(error.to_string().contains("more values than its footer says"), "{error}");
    }
    assert!(peak() < MEMORY);
}
