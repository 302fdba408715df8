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
    /// `.safetensors`.
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
                if self.rows().is_some() {
                    out["format"] = "batchfs-tokens".into();
                    out["layout"] = "dense".into();
                    out["epoch"] = out["cycle"].take();
                    out["mix"] = self.mixed(key.number);
                    return Ok(format!("{out:#}\n"));
                }
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
}

fn layout_name(layout: &batchfs_store::Layout) -> &'static str {
    match layout {
        batchfs_store::Layout::Dense { .. } => "dense",
        batchfs_store::Layout::Ragged { .. } => "ragged",
    }
}
