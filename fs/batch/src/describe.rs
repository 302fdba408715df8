use serde_json::{Value, json};

use crate::{Face, Item, Key, NamedStream, View};

/// Most record ids that a `.json` lists: it is made as a whole, outside of the memory budget.
const MOST_IDS: usize = 1 << 20;

impl NamedStream {
    /// What `schema.json` of the stream says.
    pub fn describe(&self) -> Value {
        let schema = self.stream.schema();
        let mut out = json!({
            "format": "batchfs-schema",
            "version": 1,
            "stream": self.name,
            "records": self.stream.len(),
            "item_bytes": schema.item_bytes(),
            "source": self.stream.origin().to_string_lossy(),
        });
        if let (Value::Object(out), Ok(Value::Object(schema))) =
            (&mut out, serde_json::to_value(schema))
        {
            out.extend(schema);
        }
        out
    }
}

impl View {
    /// The `.json` face of a batch, of one stream or of all, or of a record, as text: what a
    /// client needs to take the file beside it apart, the bare one or for all streams the
    /// `.safetensors`. Of a step of tokens there is more to tell, when it was read.
    ///
    /// # Errors
    /// As [`View::layout`].
    pub fn describe(&self, key: Key) -> crate::Result<String> {
        let layout = self.layout(key)?;
        let (stream, of) = match key.item {
            Item::Batch(s) => (self.dataset().stream(s), Face::Bare),
            Item::Record(s) => (self.dataset().stream(s), Face::Bare),
            _ => (None, Face::Safetensors),
        };
        let mut out = json!({
            "version": 1,
            "stream": stream.map(|s| &s.name),
            "layout": stream.map(|s| layout_name(&s.stream.schema().layout)),
            "file": format!("{}{}", key.number, of.suffix()),
            "nbytes": layout.size,
            "arrays": layout.describe(),
        });
        match key.item {
            Item::Record(_) => {
                out["format"] = "batchfs-record".into();
                out["record"] = key.number.into();
            }
            _ => {
                out["format"] = "batchfs-batch".into();
                out["spec"] = self.spec().to_string().into();
                out["step"] = key.number.into();
                out["cycle"] = self.cycle_of(key.number).into();
                let ids = self.plan(key)?;
                if ids.len() > MOST_IDS {
                    let why = format!(
                        "it would list {} record ids; index/{} has them",
                        ids.len(),
                        key.number
                    );
                    return Err(crate::Error::NoFace { item: self.name(key), why });
                }
                out["ids"] = ids.into();
            }
        }
        Ok(format!("{out:#}\n"))
    }
}

impl View {
    /// What `schema.json` of the stream with this number says.
    pub fn schema(&self, stream: u16) -> Option<Value> {
        let mut out = self.dataset().stream(stream)?.describe();
        if let Some(stamp) = self.dataset().stamp_of(stream) {
            out["stamp"] = stamp.into();
        }
        if let Some(rows) = self.rows() {
            out["batch"] = json!({
                "dtype": rows.dtype(),
                // What the bits of a token are in the source.
                "bits": rows.tokens().source().dtype(),
                "shape": [rows.rows(), rows.lanes().spec().seq_len],
            });
        }
        Some(out)
    }

    /// What is told of a step of a mixture: the mix, and which source each row is of.
    fn mixed(&self, step: u64) -> Value {
        let Some(rows) = self.rows() else { return Value::Null };
        let (Some(mix), Some(from)) = (rows.tokens().mix(), rows.mixed(step)) else {
            return Value::Null;
        };
        let names: Vec<&str> = mix.names().collect();
        let sources: Vec<&str> = from.iter().map(|row| names[row.source]).collect();
        json!({ "weights": mix.to_string(), "sources": sources })
    }

    /// The `.json` face of a step of tokens: what the bare file is, and for each row the pieces of
    /// documents that it is made of. Reads the step's row groups.
    ///
    /// # Errors
    /// As [`View::layout`]; [`Error::Store`](crate::Error::Store) if the step cannot be read.
    pub(crate) fn describe_tokens(&self, key: Key) -> crate::Result<String> {
        let layout = self.layout(Key { face: Face::Bare, ..key })?;
        let no = |why: String| crate::Error::NoFace { item: self.name(key), why };
        let rows = self.rows().ok_or_else(|| no("it is not of tokens".to_owned()))?;
        let store = |source| crate::Error::Store { item: self.name(key), source };
        let from = rows.provenance(key.number).map_err(store)?;
        if from.document_ids.len() > MOST_IDS {
            let count = from.document_ids.len();
            let number = key.number;
            return Err(no(format!(
                "it would list {count} pieces of documents; {number}.safetensors has them"
            )));
        }
        let lengths = from.cu_seqlens.windows(2).map(|ends| ends[1] - ends[0]);
        let starts = from.document_ids.iter().zip(&from.document_offsets);
        let mut pieces = starts.zip(lengths).map(|((id, offset), len)| json!([id, offset, len]));
        let (stream, lanes) = (self.dataset().stream(0), rows.lanes());
        let mut text = format!(
            "{:#}",
            json!({
                "format": "batchfs-tokens",
                "version": 1,
                "stream": stream.map(|s| &s.name),
                "layout": "dense",
                "file": key.number.to_string(),
                "nbytes": layout.size,
                "arrays": layout.describe(),
                "spec": self.spec().to_string(),
                "step": key.number,
                "epoch": lanes.epoch_of(key.number),
                "mix": self.mixed(key.number),
                "piece": ["document", "offset", "length"],
            })
        );
        // A row to a line: numbers on lines of their own are not for eyes.
        let line = |row: &[i32]| {
            let own: Vec<Value> = pieces.by_ref().take((row[1] - row[0]) as usize).collect();
            format!("    {}", Value::from(own))
        };
        let lines: Vec<String> = from.rows.windows(2).map(line).collect();
        text.truncate(text.trim_end_matches(['\n', '}']).len());
        Ok(format!("{text},\n  \"pieces\": [\n{}\n  ]\n}}\n", lines.join(",\n")))
    }
}

fn layout_name(layout: &batchfs_store::Layout) -> &'static str {
    match layout {
        batchfs_store::Layout::Dense { .. } => "dense",
        batchfs_store::Layout::Ragged { .. } => "ragged",
    }
}
