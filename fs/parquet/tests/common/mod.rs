//! Parquet files written level by level, so that they can be of kinds that no library writes today.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use batchfs_parquet::{Options, ParquetTokens, Result};
use parquet::data_type::Int32Type;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;

/// Row groups of one int32 column: values, definition levels, repetition levels.
#[allow(dead_code, reason = "each test is a crate of its own")]
pub type Levels = (Vec<i32>, Vec<i16>, Vec<i16>);

#[allow(dead_code, reason = "each test is a crate of its own")]
pub fn write(path: &Path, schema: &str, groups: &[Levels], properties: WriterProperties) {
    let schema = Arc::new(parse_message_type(schema).unwrap());
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    // A plain column has no levels.
    let some = |levels: &[i16]| (!levels.is_empty()).then(|| levels.to_vec());
    for (values, defs, reps) in groups {
        let mut group = writer.next_row_group().unwrap();
        let mut column = group.next_column().unwrap().unwrap();
        column
            .typed::<Int32Type>()
            .write_batch(values, some(defs).as_deref(), some(reps).as_deref())
            .unwrap();
        column.close().unwrap();
        group.close().unwrap();
    }
    writer.close().unwrap();
}

/// Levels of documents; `None` is a null row. `defined` is the level of an item, `empty` that of an
/// empty list, and a null row is 0.
#[allow(dead_code, reason = "each test is a crate of its own")]
pub fn levels(documents: &[Option<Vec<i32>>], defined: i16, empty: i16) -> Levels {
    let (mut values, mut defs, mut reps) = (Vec::new(), Vec::new(), Vec::new());
    for document in documents {
        match document.as_deref() {
            None | Some([]) => {
                defs.push(if document.is_some() { empty } else { 0 });
                reps.push(0);
            }
            Some(tokens) => {
                values.extend(tokens);
                defs.extend(tokens.iter().map(|_| defined));
                reps.extend((0..tokens.len()).map(|i| i16::from(i > 0)));
            }
        }
    }
    (values, defs, reps)
}

pub fn open(path: &Path, cache: &Path) -> Result<ParquetTokens> {
    let options = Options { cache: Some(cache.to_owned()), ..Options::default() };
    ParquetTokens::open(path.to_str().unwrap(), &options)
}
