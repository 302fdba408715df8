//! Row groups come back as they were written, whatever the file looks like inside.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use batchfs_store::{Error, GroupCounts, GroupRead, TokenSource as _};
use common::{levels, open, write};
use parquet::basic::{Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::file::properties::{EnabledStatistics, WriterProperties, WriterVersion};
use proptest::prelude::*;

const LIST: &str = "message m { optional group tokens (LIST) { repeated group list { optional int32 element; } } }";

fn properties(variant: usize) -> WriterProperties {
    let builder = WriterProperties::builder().set_data_page_row_count_limit(3 + variant);
    let builder = builder.set_write_batch_size(2);
    match variant % 6 {
        0 => builder.set_compression(Compression::SNAPPY),
        1 => builder
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_dictionary_enabled(false),
        2 => builder
            .set_compression(Compression::GZIP(GzipLevel::default()))
            .set_writer_version(WriterVersion::PARQUET_2_0),
        3 => builder
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::DELTA_BINARY_PACKED)
            .set_writer_version(WriterVersion::PARQUET_2_0),
        4 => builder
            .set_compression(Compression::LZ4_RAW)
            .set_dictionary_enabled(false)
            .set_encoding(Encoding::BYTE_STREAM_SPLIT),
        _ => builder.set_compression(Compression::BROTLI(Default::default())),
    }
    .build()
}

fn document() -> impl Strategy<Value = Option<Vec<i32>>> {
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(Vec::new())),
        8 => proptest::collection::vec(any::<i32>(), 1..40).prop_map(Some),
        2 => (1usize..300, 0..5).prop_map(|(n, token)| Some(vec![token; n])),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_was_written_is_read(
        groups in proptest::collection::vec(proptest::collection::vec(document(), 1..60), 1..4),
        variant in 0usize..24,
    ) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        let written: Vec<_> = groups.iter().map(|group| levels(group, 3, 1)).collect();
        write(&path, LIST, &written, properties(variant));
        let none = groups.iter().flatten().flatten().all(Vec::is_empty);
        let source = match open(&path, dir.path()) {
            Ok(source) => source,
            Err(error) => {
                prop_assert!(none && error.to_string().contains("no tokens"), "{}", error);
                return Ok(());
            }
        };
        prop_assert!(!none);
        for (number, group) in groups.iter().enumerate() {
            let tokens: Vec<i32> = group.iter().flatten().flatten().copied().collect();
            let lengths: Vec<u32> =
                group.iter().map(|d| d.as_ref().map_or(0, |d| d.len() as u32)).collect();
            let counts =
                GroupCounts { tokens: tokens.len() as u64, documents: lengths.len() as u64 };
            prop_assert_eq!(source.groups()[number], counts);
            let read = source.read(number).unwrap();
            prop_assert_eq!(&read.tokens.to_vec(), &tokens);
            prop_assert_eq!(read.lengths, lengths);
        }
    }
}

#[test]
fn dictionaries_of_all_widths_are_read() {
    let widths = (0..17).map(|width| (1 << width) - width / 3);
    let widths = widths.chain([256, 257, 65_536, 65_537, 70_000, 140_000]);
    for (distinct, least) in widths.flat_map(|distinct| [(distinct, 0), (distinct, -5)]) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        let count = 100_000.max(6 * distinct);
        let tokens: Vec<i32> =
            (0..count).map(|i: i32| i.wrapping_mul(7919).rem_euclid(distinct) + least).collect();
        let documents: Vec<_> =
            tokens.chunks(1 + distinct as usize % 77).map(|d| Some(d.to_vec())).collect();
        let properties = WriterProperties::builder()
            .set_dictionary_page_size_limit(1 << 24)
            .set_data_page_row_count_limit(documents.len() / 5);
        write(&path, LIST, &[levels(&documents, 3, 1)], properties.build());
        let source = open(&path, dir.path()).unwrap();
        let read = source.read(0).unwrap();
        assert!(read.tokens.to_vec() == tokens, "{distinct}");
        // In 16 bits where these are enough.
        assert_eq!(read.tokens.is_narrow(), least == 0 && distinct <= 65_536, "{distinct}");
        assert_eq!(read.lengths.len(), documents.len());

        // Places of it, of which the last one is before the others.
        let GroupRead::Packed(packed) = source.read_packed(0).unwrap() else {
            assert!(distinct < 10 || documents.len() > 50_000, "{distinct} are not packed");
            continue;
        };
        for from in [3, 30_000, 70_001, 99_000, 500] {
            let mut out = vec![0; 4 * 997];
            assert!(packed.copy(from, &mut out));
            let got = out.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap()));
            assert!(got.eq(tokens[from..from + 997].iter().copied()), "{distinct} at {from}");
        }
    }
}

#[test]
fn all_shapes_of_lists_are_known() {
    // Schema, level of an item, level of an empty list.
    let shapes = [
        (LIST, 3, 1),
        (
            "message m { required group tokens (LIST) { repeated group list { required int32 element; } } }",
            1,
            0,
        ),
        (
            "message m { optional group tokens (LIST) { repeated group list { required int32 element; } } }",
            2,
            1,
        ),
        (
            "message m { optional group tokens (LIST) { repeated group bag { optional int32 array_element; } } }",
            3,
            1,
        ),
        ("message m { optional group tokens (LIST) { repeated int32 array; } }", 2, 1),
        ("message m { required group tokens (LIST) { repeated int32 element; } }", 1, 0),
        ("message m { repeated int32 tokens; }", 1, 0),
        ("message m { repeated int32 tokens (UINT_16); }", 1, 0),
    ];
    let documents = [Some(vec![1, 2, 3]), Some(vec![]), Some(vec![4]), Some(vec![5, 6])];
    for (schema, defined, empty) in shapes {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        write(&path, schema, &[levels(&documents, defined, empty)], properties(0));
        let source = open(&path, dir.path()).expect(schema);
        let read = source.read(0).expect(schema);
        assert_eq!(read.tokens.to_vec(), [1, 2, 3, 4, 5, 6], "{schema}");
        assert_eq!(read.lengths, [3, 0, 1, 2], "{schema}");
    }
}

#[test]
fn other_shapes_are_refused_by_name() {
    for (schema, levels, what) in [
        ("message m { required int32 tokens; }", (vec![1], vec![], vec![]), "a plain value"),
        ("message m { repeated int32 tokens (DATE); }", (vec![1], vec![1], vec![0]), "date"),
        ("message m { repeated int32 other; }", (vec![1], vec![1], vec![0]), "other"),
        (
            "message m { repeated group tokens { repeated int32 x; } }",
            (vec![1], vec![2], vec![0]),
            "a list of lists",
        ),
        (
            "message m { required group tokens { required group x { required int32 y; } } }",
            (vec![1], vec![], vec![]),
            "a struct",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        write(&path, schema, &[levels], properties(0));
        let error = open(&path, dir.path()).err().expect(schema).to_string();
        assert!(error.contains(what) && error.contains("x.parquet"), "{schema}: {error}");
        assert!(error.contains("--column"), "{schema}: {error}");
    }
}

#[test]
fn null_items_and_levels_that_begin_in_the_middle_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    // The second item of the third row is null.
    let group = (vec![1, 2, 3, 4], vec![3, 3, 1, 3, 2, 3], vec![0, 1, 0, 0, 1, 1]);
    write(&path, LIST, &[group], properties(0));
    match open(&path, dir.path()).err().unwrap() {
        Error::RowGroup { group: 0, row: Some(2), why, .. } => {
            assert!(why.contains("null item") && why.contains("drop the item or the row"), "{why}");
        }
        other => panic!("{other}"),
    }
}

#[test]
fn row_groups_without_rows_are_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let none = || (Vec::new(), Vec::new(), Vec::new());
    let documents = [Some(vec![1, 2]), None, Some(vec![3])];
    let path = dir.path().join("x.parquet");
    // Level histograms, or none: there is nothing to be counted in either.
    for statistics in [EnabledStatistics::None, EnabledStatistics::Page] {
        let groups = [none(), levels(&documents, 3, 1), none(), none()];
        let properties = WriterProperties::builder().set_statistics_enabled(statistics).build();
        write(&path, LIST, &groups, properties);
        let source = open(&path, &dir.path().join(format!("{statistics:?}"))).unwrap();
        let empty = GroupCounts { tokens: 0, documents: 0 };
        let full = GroupCounts { tokens: 3, documents: 3 };
        assert_eq!(source.groups(), [empty, full, empty, empty]);
        assert_eq!(source.read(1).unwrap().tokens.to_vec(), [1, 2, 3]);
        assert_eq!(source.read(1).unwrap().lengths, [2, 0, 1]);
    }
}

#[test]
fn without_histograms_the_column_is_counted_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let documents: Vec<_> = (0..500).map(|i| Some(vec![i; (i % 7) as usize])).collect();
    let properties =
        WriterProperties::builder().set_statistics_enabled(EnabledStatistics::None).build();
    write(&path, LIST, &[levels(&documents, 3, 1)], properties);
    let tokens: u64 = (0..500).map(|i| i % 7).sum();
    let source = open(&path, &dir.path().join("cache")).unwrap();
    assert_eq!(source.groups()[0], GroupCounts { tokens, documents: 500 });
    let again = open(&path, &dir.path().join("cache")).unwrap();
    assert_eq!(again.groups(), source.groups());
    assert_eq!(again.received_bytes(), 0, "the index was kept");
    assert_eq!(again.fingerprint(), source.fingerprint());
}

#[test]
fn damage_anywhere_is_an_error_or_changes_nothing_in_lengths() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let documents: Vec<_> = (0..200).map(|i| Some(vec![i; 1 + (i % 5) as usize])).collect();
    write(&path, LIST, &[levels(&documents, 3, 1)], properties(1));
    let good = std::fs::read(&path).unwrap();
    // No panic, no abort, no hang, whatever byte is other than it was.
    for at in (0..good.len()).step_by(3) {
        for bit in [0x01, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= bit;
            let path = dir.path().join("bad.parquet");
            std::fs::write(&path, &bad).unwrap();
            let cache = dir.path().join(format!("none-{at}-{bit}"));
            let read = open(&path, &cache).and_then(|source| Ok((source.read(0)?, source)));
            match read {
                Ok((read, source)) => {
                    let sum: u64 = read.lengths.iter().map(|&n| u64::from(n)).sum();
                    assert_eq!(sum, read.tokens.len() as u64);
                    assert_eq!(sum, source.groups()[0].tokens);
                }
                Err(error) => {
                    // Whatever it is, there is something to be done about it.
                    let said = error.to_string();
                    let ways = [
                        "again",
                        "--column",
                        "another codec",
                        "without encryption",
                        "smaller row groups",
                        "write both as one",
                    ];
                    assert!(ways.iter().any(|way| said.contains(way)), "{at}, {bit}: {said}");
                }
            }
        }
    }
}
