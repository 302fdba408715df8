//! The frame of an Arrow IPC file of one record batch, made without the data.
//!
//! ```text
//! ARROW1 | schema message | record batch message | buffers | end of stream, footer, ARROW1
//! ```
//!
//! The messages come from the library; what lies between them are the arrays of the batch, as in any
//! other face. The record batch message is padded so that the first buffer starts at a page.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_ipc::convert::IpcSchemaEncoder;
use arrow_ipc::{
    Block, Buffer, FieldNode, Footer, FooterArgs, Message, MessageArgs, MessageHeader,
    MetadataVersion, RecordBatch, RecordBatchArgs,
};
use arrow_schema::{DataType, Field, Schema};
use batchfs_region::PAGE;
use batchfs_store::DType;
use flatbuffers::{FlatBufferBuilder, UnionWIPOffset, WIPOffset};

use crate::Layout;
use crate::layout::{ALIGN, Array, Fill, Pieces};

const MAGIC: &[u8] = b"ARROW1";

/// In front of each message; alone with a length of zero it ends the stream.
const MARK: [u8; 4] = [0xff; 4];

/// Columns, and what a record batch says of them, depth first.
#[derive(Default)]
struct Columns {
    fields: Vec<Field>,
    nodes: Vec<FieldNode>,
    /// Without a null anywhere, validity bitmaps may be left out: they have length zero.
    buffers: Vec<Buffer>,
    arrays: Vec<Array>,
    end: u64,
    rows: Option<u64>,
}

impl Columns {
    fn node(&mut self, length: u64) {
        self.nodes.push(FieldNode::new(length as i64, 0));
        self.buffers.push(Buffer::new(self.end as i64, 0));
    }

    fn array(&mut self, mut array: Array) {
        array.offset = self.end;
        self.buffers.push(Buffer::new(array.offset as i64, array.nbytes as i64));
        self.end = (array.offset + array.nbytes).next_multiple_of(ALIGN);
        self.arrays.push(array);
    }

    /// A column whose rows are single values or arrays of one shape.
    fn dense(&mut self, name: &str, array: Array) -> Result<(), String> {
        let (rows, item) = array.shape.split_first().ok_or("a column needs rows")?;
        let (rows, axes) = (*rows, item.len());
        self.rows = Some(rows);
        self.node(rows);
        if axes == 0 {
            self.fields.push(value(name, array.dtype)?);
        } else {
            let elements: u64 = item.iter().product();
            let size = i32::try_from(elements).map_err(|_| {
                format!("Arrow's fixed-size lists have at most 2147483647 values, not {elements}")
            })?;
            // A tensor's values have a plain type.
            let child = Field::new("item", plain(array.dtype)?, false);
            let list = DataType::FixedSizeList(Arc::new(child), size);
            let shape = serde_json::json!({ "shape": item }).to_string();
            self.fields.push(
                Field::new(name, list, false)
                    .with_metadata(extension("fixed_shape_tensor", &shape)),
            );
            self.node(rows * elements);
        }
        self.array(array);
        Ok(())
    }

    /// A column of lists, and with more than one axis another one of their shapes.
    fn ragged(
        &mut self,
        name: &str,
        values: Array,
        offsets: Array,
        shapes: Array,
    ) -> Result<(), String> {
        self.lists(name, values, offsets)?;
        if shapes.shape[1] > 1 {
            self.dense(&shapes.name.clone(), shapes)?;
        }
        Ok(())
    }

    /// A column of lists. There may be more values than the last list ends at.
    fn lists(&mut self, name: &str, values: Array, offsets: Array) -> Result<(), String> {
        let list = DataType::List(Arc::new(value("item", values.dtype)?));
        self.fields.push(Field::new(name, list, false));
        let rows = offsets.shape[0] - 1;
        self.rows = Some(rows);
        self.node(rows);
        self.array(offsets);
        self.node(values.shape[0]);
        self.array(values);
        Ok(())
    }
}

/// Puts the arrays of one stream or of all into a file. `about` goes into the schema's metadata.
///
/// # Errors
/// Why Arrow cannot have them.
pub(crate) fn frame(arrays: Vec<Array>, about: &str) -> Result<Layout, String> {
    let mut columns = Columns::default();
    let mut arrays = arrays.into_iter().peekable();
    while let Some(array) = arrays.next() {
        let per_row = Fill::Pieces(Pieces::RowOffsets);
        let bounds = Fill::Pieces(Pieces::RowBoundOffsets);
        if let Some(offsets) = arrays.next_if(|a| a.fill == per_row || a.fill == bounds) {
            columns.lists(&array.name.clone(), array, offsets)?;
            continue;
        }
        let Some(offsets) = arrays.next_if(|a| matches!(a.fill, Fill::Offsets(_))) else {
            columns.dense(&array.name.clone(), array)?;
            continue;
        };
        let shapes = arrays.next().ok_or("ragged values without shapes")?;
        let name = match array.name.strip_suffix(".values") {
            Some(stream) => stream.to_owned(),
            None => "data".to_owned(),
        };
        columns.ragged(&name, array, offsets, shapes)?;
    }
    let schema = Schema::new(std::mem::take(&mut columns.fields))
        .with_metadata(HashMap::from([("batchfs".to_owned(), about.to_owned())]));

    let mut header = MAGIC.to_vec();
    header.resize(8, 0);
    header.extend(message(&schema_message(&schema), ALIGN, header.len() as u64));
    let start = header.len() as u64;
    header.extend(message(&batch_message(&columns), PAGE, start));
    let body = header.len() as u64;
    let block = Block::new(start as i64, (body - start) as i32, columns.end as i64);

    let mut trailer = MARK.to_vec();
    trailer.extend([0; 4]);
    let footer = footer(&schema, block);
    trailer.extend(&footer);
    trailer.extend((footer.len() as u32).to_le_bytes());
    trailer.extend(MAGIC);

    let mut arrays = columns.arrays;
    arrays.iter_mut().for_each(|a| a.offset += body);
    let mut end = Array::new("__footer", DType::UInt8, vec![trailer.len() as u64], Fill::Trailer)?;
    end.offset = body + columns.end;
    let size = end.offset + end.nbytes;
    arrays.push(end);
    Ok(Layout { header, arrays, trailer, size })
}

/// A message with its prefix, padded so that what follows starts at a multiple of `align`.
fn message(data: &[u8], align: u64, at: u64) -> Vec<u8> {
    let prefix = MARK.len() as u64 + 4;
    let end = (at + prefix + data.len() as u64).next_multiple_of(align);
    let mut out = MARK.to_vec();
    out.extend(((end - at - prefix) as u32).to_le_bytes());
    out.extend(data);
    out.resize((end - at) as usize, 0);
    out
}

fn finish(
    mut builder: FlatBufferBuilder<'_>,
    header: WIPOffset<UnionWIPOffset>,
    header_type: MessageHeader,
    body: u64,
) -> Vec<u8> {
    let args = MessageArgs {
        version: MetadataVersion::V5,
        header_type,
        header: Some(header),
        bodyLength: body as i64,
        custom_metadata: None,
    };
    let message = Message::create(&mut builder, &args);
    builder.finish(message, None);
    builder.finished_data().to_vec()
}

fn schema_message(schema: &Schema) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let header = IpcSchemaEncoder::new().schema_to_fb_offset(&mut builder, schema);
    finish(builder, header.as_union_value(), MessageHeader::Schema, 0)
}

fn batch_message(columns: &Columns) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let nodes = builder.create_vector(&columns.nodes);
    let buffers = builder.create_vector(&columns.buffers);
    let args = RecordBatchArgs {
        length: columns.rows.unwrap_or(0) as i64,
        nodes: Some(nodes),
        buffers: Some(buffers),
        ..RecordBatchArgs::default()
    };
    let header = RecordBatch::create(&mut builder, &args);
    finish(builder, header.as_union_value(), MessageHeader::RecordBatch, columns.end)
}

fn footer(schema: &Schema, block: Block) -> Vec<u8> {
    let mut builder = FlatBufferBuilder::new();
    let schema = IpcSchemaEncoder::new().schema_to_fb_offset(&mut builder, schema);
    let dictionaries = builder.create_vector::<Block>(&[]);
    let batches = builder.create_vector(&[block]);
    let args = FooterArgs {
        version: MetadataVersion::V5,
        schema: Some(schema),
        dictionaries: Some(dictionaries),
        recordBatches: Some(batches),
        custom_metadata: None,
    };
    let footer = Footer::create(&mut builder, &args);
    builder.finish(footer, None);
    builder.finished_data().to_vec()
}

fn extension(name: &str, metadata: &str) -> HashMap<String, String> {
    HashMap::from([
        ("ARROW:extension:name".to_owned(), format!("arrow.{name}")),
        ("ARROW:extension:metadata".to_owned(), metadata.to_owned()),
    ])
}

/// A field of single values. Arrow's own booleans are bits; `arrow.bool8` has bytes, as we do.
fn value(name: &str, dtype: DType) -> Result<Field, String> {
    let field = Field::new(name, plain(dtype)?, false);
    Ok(match dtype {
        DType::Bool => field.with_metadata(extension("bool8", "")),
        _ => field,
    })
}

/// The type of values: bools are bytes.
fn plain(dtype: DType) -> Result<DataType, String> {
    match dtype {
        DType::Bool => Ok(DataType::Int8),
        other => arrow_type(other).ok_or_else(|| format!("Arrow has no {other}")),
    }
}

/// The Arrow type whose values have the same bytes, if there is one. Arrow's booleans are bits.
pub fn arrow_type(dtype: DType) -> Option<DataType> {
    Some(match dtype {
        DType::Int8 => DataType::Int8,
        DType::Int16 => DataType::Int16,
        DType::Int32 => DataType::Int32,
        DType::Int64 => DataType::Int64,
        DType::UInt8 => DataType::UInt8,
        DType::UInt16 => DataType::UInt16,
        DType::UInt32 => DataType::UInt32,
        DType::UInt64 => DataType::UInt64,
        DType::Float16 => DataType::Float16,
        DType::Float32 => DataType::Float32,
        DType::Float64 => DataType::Float64,
        DType::Bool
        | DType::BFloat16
        | DType::Complex64
        | DType::Complex128
        | DType::Float8E4M3FN
        | DType::Float8E4M3FNUZ
        | DType::Float8E5M2
        | DType::Float8E5M2FNUZ
        | DType::Float8E8M0FNU => return None,
    })
}

#[cfg(test)]
mod tests {
    use arrow_ipc::{root_as_footer, root_as_message};

    use super::*;

    fn dense(name: &str, dtype: DType, shape: &[u64]) -> Array {
        Array::new(name, dtype, shape.to_vec(), Fill::Records(0)).unwrap()
    }

    fn ragged(prefix: &str, rows: u64, values: u64, axes: u64) -> Vec<Array> {
        let array = |part: &str, dtype, shape, fill| {
            Array::new(format!("{prefix}{part}"), dtype, shape, fill).unwrap()
        };
        vec![
            array("values", DType::Float32, vec![values], Fill::Records(1)),
            array("cu_seqlens", DType::Int32, vec![rows + 1], Fill::Offsets(1)),
            array("shapes", DType::UInt64, vec![rows, axes], Fill::Shapes(1)),
        ]
    }

    /// Checks the frame against what the library reads out of it.
    fn check(layout: &Layout, columns: &[&str]) {
        let mut file = layout.header.clone();
        file.resize((layout.size - layout.trailer.len() as u64) as usize, 7);
        file.extend(&layout.trailer);
        assert_eq!(file.len() as u64, layout.size);
        assert!(file.starts_with(b"ARROW1\0\0") && file.ends_with(b"ARROW1"));
        let at = file.len() - 10;
        let length = u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
        let footer = root_as_footer(&file[at - length..at]).unwrap();
        let block = footer.recordBatches().unwrap().get(0);
        let body = (block.offset() + i64::from(block.metaDataLength())) as usize;
        assert_eq!(body, layout.header.len());
        assert_eq!(body % 4096, 0);
        let message = root_as_message(&file[block.offset() as usize + 8..body]).unwrap();
        assert_eq!(message.bodyLength(), block.bodyLength());
        let batch = message.header_as_record_batch().unwrap();
        let buffers: Vec<_> = batch.buffers().unwrap().iter().collect();
        let full: Vec<_> = buffers.iter().filter(|b| b.length() > 0).collect();
        let arrays: Vec<_> =
            layout.arrays.iter().filter(|a| a.nbytes > 0 && a.fill != Fill::Trailer).collect();
        assert_eq!(full.len(), arrays.len());
        for (buffer, array) in full.iter().zip(&arrays) {
            assert_eq!(body as i64 + buffer.offset(), array.offset as i64, "{}", array.name);
            assert_eq!(buffer.length(), array.nbytes as i64);
            assert_eq!(array.offset % 64, 0);
            assert!(buffer.offset() + buffer.length() <= block.bodyLength());
        }
        let schema = arrow_ipc::convert::try_fb_to_schema(footer.schema().unwrap()).unwrap();
        let names: Vec<_> = schema.fields().iter().map(|f| f.name().clone()).collect();
        assert_eq!(names, columns);
    }

    #[test]
    fn frames_are_read_back_by_the_library() {
        check(&frame(vec![dense("data", DType::UInt8, &[7, 3, 5])], "s").unwrap(), &["data"]);
        check(&frame(vec![dense("data", DType::Bool, &[7])], "s").unwrap(), &["data"]);
        check(&frame(vec![dense("data", DType::Int64, &[7, 0])], "s").unwrap(), &["data"]);
        check(&frame(ragged("", 5, 33, 1), "s").unwrap(), &["data"]);
        check(&frame(ragged("", 5, 33, 2), "s").unwrap(), &["data", "shapes"]);
        let mut all = vec![dense("x.values", DType::Int8, &[5])];
        all.extend(ragged("t.", 5, 0, 3));
        check(&frame(all, "s").unwrap(), &["x.values", "t", "t.shapes"]);
    }

    #[test]
    fn what_arrow_has_not_says_so() {
        let why = frame(vec![dense("data", DType::BFloat16, &[2])], "").unwrap_err();
        assert_eq!(why, "Arrow has no bfloat16");
        let why = frame(vec![dense("data", DType::Int8, &[1, 1 << 31])], "").unwrap_err();
        assert!(why.contains("2147483647"), "{why}");
    }
}
