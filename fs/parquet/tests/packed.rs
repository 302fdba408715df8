//! Row groups that are decoded piece by piece are those that are decoded as a whole.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use batchfs_batch::{LaneSpec, TokenRows, Tokens};
use batchfs_parquet::ParquetTokens;
use batchfs_store::{Error, GroupRead, PackedGroup, TokenGroup, TokenSource as _};
use common::{levels, open, write};
use parquet::basic::{Compression, Encoding, GzipLevel, ZstdLevel};
use parquet::data_type::Int64Type;
use parquet::file::properties::{WriterProperties, WriterPropertiesBuilder, WriterVersion};
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use proptest::prelude::*;

const LIST: &str = "message m { optional group tokens (LIST) { repeated group list { optional int32 element; } } }";
const WIDE: &str = "message m { repeated int64 tokens; }";

fn properties(variant: usize) -> WriterProperties {
    let plain = |builder: WriterPropertiesBuilder| builder.set_dictionary_enabled(false);
    let builder = WriterProperties::builder()
        .set_data_page_row_count_limit(60 + 50 * (variant / 12))
        .set_write_batch_size(10);
    let builder = match variant % 6 {
        0 => builder.set_compression(Compression::SNAPPY),
        1 => builder.set_compression(Compression::ZSTD(ZstdLevel::default())),
        2 => plain(builder),
        3 => plain(builder).set_encoding(Encoding::DELTA_BINARY_PACKED),
        4 => plain(builder)
            .set_compression(Compression::LZ4_RAW)
            .set_encoding(Encoding::BYTE_STREAM_SPLIT),
        // The dictionary is full soon, and pages are plain from there on.
        _ => builder
            .set_compression(Compression::GZIP(GzipLevel::default()))
            .set_dictionary_page_size_limit(200),
    };
    let version = [WriterVersion::PARQUET_1_0, WriterVersion::PARQUET_2_0][variant / 6 % 2];
    builder.set_writer_version(version).build()
}

fn document() -> impl Strategy<Value = Option<Vec<i32>>> {
    prop_oneof![
        1 => Just(None),
        1 => Just(Some(Vec::new())),
        8 => proptest::collection::vec(-50..200, 1..90).prop_map(Some),
        2 => (1usize..300, 0..5).prop_map(|(n, token)| Some(vec![token; n])),
    ]
}

fn packed(source: &ParquetTokens) -> Option<Arc<dyn PackedGroup>> {
    match source.read_packed(0).unwrap() {
        GroupRead::Packed(packed) => Some(packed),
        GroupRead::Whole(_) => None,
    }
}

fn piece(packed: &dyn PackedGroup, from: usize, len: usize) -> Option<Vec<i32>> {
    let mut out = vec![0; 4 * len];
    let all = packed.copy(from, &mut out);
    all.then(|| out.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn pieces_are_those_of_the_whole(
        documents in proptest::collection::vec(document(), 40..300),
        no_empty in any::<bool>(),
        no_negative in any::<bool>(),
        variant in 0usize..24,
        places in proptest::collection::vec((0f64..1.0, 0f64..0.3), 1..12),
    ) {
        let mut documents = documents;
        if no_empty {
            documents.retain(|document| document.as_ref().is_some_and(|d| !d.is_empty()));
        }
        if no_negative {
            documents.iter_mut().flatten().flatten().for_each(|token| *token = token.abs());
        }
        prop_assume!(documents.iter().flatten().any(|d| !d.is_empty()));
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        write(&path, LIST, &[levels(&documents, 3, 1)], properties(variant));
        let source = open(&path, dir.path()).unwrap();
        let whole = source.read(0).unwrap();
        let Some(packed) = packed(&source) else {
            // Of few tokens the pages can take more than the tokens do.
            prop_assert!(whole.tokens.len() < 10_000, "variant {}", variant);
            return Ok(());
        };
        prop_assert_eq!(packed.lengths(), &whole.lengths[..]);
        for (from, len) in places {
            let from = (from * whole.tokens.len() as f64) as usize;
            let len = ((len * whole.tokens.len() as f64) as usize).min(whole.tokens.len() - from);
            prop_assert_eq!(&piece(&*packed, from, len).unwrap(), &whole.tokens.to_vec()[from..from + len]);
        }
        prop_assert_eq!(piece(&*packed, whole.tokens.len() - 1, 2), None);
        prop_assert_eq!(packed.unpack().unwrap(), whole);
    }
}

#[test]
fn all_encodings_stay_packed() {
    let documents: Vec<_> =
        (0..400).map(|i| Some((0..100).map(|n| (i * n) % 1000).collect::<Vec<i32>>())).collect();
    for variant in 0..24 {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        write(&path, LIST, &[levels(&documents, 3, 1)], properties(variant));
        let source = open(&path, dir.path()).unwrap();
        let packed = packed(&source).unwrap_or_else(|| panic!("variant {variant}"));
        assert_eq!(packed.unpack().unwrap(), source.read(0).unwrap(), "variant {variant}");
    }
}

/// One row group of documents of 64 bits.
fn write_wide(path: &Path, documents: &[Vec<i64>], properties: WriterProperties) {
    let schema = Arc::new(parse_message_type(WIDE).unwrap());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let values: Vec<i64> = documents.iter().flatten().copied().collect();
    let reps: Vec<i16> =
        documents.iter().flat_map(|d| (0..d.len()).map(|at| i16::from(at > 0))).collect();
    let defs = vec![1; values.len()];
    column.typed::<Int64Type>().write_batch(&values, Some(&defs), Some(&reps)).unwrap();
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
}

#[test]
fn a_value_that_does_not_fit_is_told_by_the_step_that_has_it_or_the_next_one() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let mut documents: Vec<Vec<i64>> = (0..400).map(|i| (i..i + 100).collect()).collect();
    write_wide(&path, &documents, properties(0));
    let source = Arc::new(open(&path, dir.path()).unwrap());
    assert_eq!(packed(&source).unwrap().unpack().unwrap(), source.read(0).unwrap());
    let spec: LaneSpec = "lanes=1,window=1,seq_len=100".parse().unwrap();
    let rows = |source: &Arc<ParquetTokens>| {
        TokenRows::new(Tokens::new(source.clone(), spec, None, 2).unwrap(), spec).unwrap()
    };
    // The step that has the token, and one that has not.
    let good = rows(&source);
    let has = |step: u64| {
        let from = good.provenance(step).unwrap();
        let piece = |at: usize| (from.document_ids[at], from.document_offsets[at]);
        let len = |at: usize| i64::from(from.cu_seqlens[at + 1] - from.cu_seqlens[at]);
        let held = |at: usize| piece(at).0 == 300 && (0..len(at)).contains(&(7 - piece(at).1));
        (0..from.document_ids.len()).any(held)
    };
    let step = (0..400).find(|&step| has(step)).unwrap();
    let other = (step + 200) % 400;
    let mut expected = vec![0; 400];
    good.fill(other, &mut expected).unwrap();

    documents[300][7] = 1 << 40;
    write_wide(&path, &documents, properties(0));
    let source = Arc::new(open(&path, dir.path()).unwrap());
    let packed = packed(&source).unwrap();
    assert!(packed.unpack().is_none());
    assert!(piece(&*packed, 30_000, 8).is_none());
    assert_eq!(piece(&*packed, 30_000, 7).unwrap(), (300..307).collect::<Vec<i32>>());
    assert_eq!(piece(&*packed, 30_008, 2).unwrap(), [308, 309]);

    let told = |error: Error| match error {
        Error::RowGroup { file, group: 0, row: Some(300), why } => {
            assert!(file.ends_with("x.parquet"));
            assert!(why.contains("holds 1099511627776"), "{why}");
        }
        other => panic!("{other}"),
    };
    let mut out = vec![0; 400];
    told(rows(&source).fill(step, &mut out).unwrap_err());
    let bad = rows(&source);
    bad.fill(other, &mut out).unwrap();
    assert_eq!(out, expected);
    for step in [other, step, (other + 1) % 400] {
        told(bad.fill(step, &mut out).unwrap_err());
    }
}

#[test]
fn wide_values_without_a_dictionary_are_decoded_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let documents: Vec<Vec<i64>> = (0..400).map(|i| (i..i + 100).collect()).collect();
    write_wide(&path, &documents, properties(2));
    let source = open(&path, dir.path()).unwrap();
    let GroupRead::Whole(whole) = source.read_packed(0).unwrap() else { panic!("packed") };
    assert_eq!(whole, source.read(0).unwrap());
}

/// Whatever is wrong with a row group is found when it is unpacked, if not before.
fn same(whole: Result<TokenGroup, Error>, packed: Result<GroupRead, Error>, at: usize) {
    match (whole, packed) {
        (Ok(whole), Ok(GroupRead::Whole(other))) => assert_eq!(whole, other, "{at}"),
        (Ok(whole), Ok(GroupRead::Packed(packed))) => {
            assert_eq!(packed.lengths(), whole.lengths, "{at}");
            let last = whole.tokens.len() - 1;
            assert_eq!(piece(&*packed, last, 1).unwrap(), &whole.tokens.to_vec()[last..], "{at}");
            assert_eq!(packed.unpack().unwrap(), whole, "{at}");
        }
        (Err(error), Ok(GroupRead::Packed(packed))) => {
            assert!(packed.unpack().is_none(), "{at}: {error}");
        }
        (Err(error), Err(other)) => assert_eq!(error.to_string(), other.to_string(), "{at}"),
        (whole, packed) => panic!("{at}: {:?}, {:?}", whole.is_ok(), packed.is_ok()),
    }
}

#[test]
fn damage_is_found_in_packed_row_groups_as_in_whole_ones() {
    let documents: Vec<_> = (0..250)
        .map(|i| (i % 9 != 0).then(|| (0..i % 23).map(|n| (i * n) % 90).collect::<Vec<i32>>()))
        .collect();
    for (variant, documents) in
        [(5 + 6, documents.clone()), (0, documents), (8, vec![Some(vec![1, 2, 3, 4, 5]); 300])]
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.parquet");
        // Without compression, so that what is damaged is what is decoded.
        let properties = match variant {
            0 => WriterProperties::builder().set_data_page_row_count_limit(60).build(),
            _ => properties(variant),
        };
        write(&path, LIST, &[levels(&documents, 3, 1)], properties);
        let good = std::fs::read(&path).unwrap();
        let range = open(&path, dir.path()).unwrap().place(0).bytes;
        let range = range.start as usize..range.end as usize;
        let mut both = 0;
        for at in range.step_by(3) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at / 3 % 8);
            let path = dir.path().join("bad.parquet");
            std::fs::write(&path, &bad).unwrap();
            if let Ok(source) = open(&path, &dir.path().join(format!("none-{at}"))) {
                let packed = source.read_packed(0);
                both += usize::from(matches!(packed, Ok(GroupRead::Packed(_))));
                same(source.read(0), packed, at);
            }
        }
        assert!(both > 20, "variant {variant}: {both} were packed");
    }
}
