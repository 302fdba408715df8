//! A row group of more values than 31 bits count: kilobytes in the file, gigabytes decoded.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs::File;
use std::sync::Arc;

use batchfs_batch::{Error, LaneSpec, Tokens};
use batchfs_store::{GroupCounts, TokenSource as _};
use common::open;
use parquet::data_type::Int32Type;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

const ROWS: u64 = 2200;
const TOKENS: usize = 1_000_000;

#[test]
#[ignore = "writes and counts two thousand million values"]
fn a_huge_row_group_is_refused_with_its_name_and_size() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let schema = "message m { required group tokens (LIST) { repeated group list { required int32 element; } } }";
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let properties = Arc::new(WriterProperties::builder().build());
    let file = File::create(&path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, properties).unwrap();
    let mut group = writer.next_row_group().unwrap();
    let mut column = group.next_column().unwrap().unwrap();
    let (values, defs) = (vec![7; TOKENS], vec![1; TOKENS]);
    let reps: Vec<i16> = (0..TOKENS).map(|i| i16::from(i > 0)).collect();
    for _ in 0..ROWS {
        column.typed::<Int32Type>().write_batch(&values, Some(&defs), Some(&reps)).unwrap();
    }
    column.close().unwrap();
    group.close().unwrap();
    writer.close().unwrap();
    assert!(std::fs::metadata(&path).unwrap().len() < 64 << 20);

    let source = Arc::new(open(&path, dir.path()).unwrap());
    let counts = GroupCounts { tokens: ROWS * TOKENS as u64, documents: ROWS };
    assert_eq!(source.groups(), [counts]);
    let spec: LaneSpec = "lanes=1,window=1,seq_len=8".parse().unwrap();
    let error = Tokens::new(source, spec, Some(1 << 30), 1).err().unwrap();
    assert!(matches!(error, Error::Budget { needed: 8_800_105_600, .. }), "{error}");
    for part in ["x.parquet", "row group 0", "8800105600", "1073741824", "--budget"] {
        assert!(error.to_string().contains(part), "{error}");
    }
}
