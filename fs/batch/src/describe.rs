use serde_json::{Value, json};

use crate::{Item, Key, NamedStream, View};

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
    /// The `.json` face of a batch, of one stream or of all, as text: what a client needs to take
    /// the file beside it apart, the bare one or for all streams the `.safetensors`.
    ///
    /// # Errors
    /// As [`View::layout`].
    pub fn describe(&self, key: Key) -> crate::Result<String> {
        let file = Key { face: self.described(key), ..key };
        let layout = self.layout(file)?;
        let ids = self.plan(file)?;
        let stream = match key.item {
            Item::Batch(s) => self.dataset().stream(s),
            _ => None,
        };
        let out = json!({
            "format": "batchfs-batch",
            "version": 1,
            "stream": stream.map(|s| &s.name),
            "spec": self.sampler().spec().to_string(),
            "step": key.number,
            "cycle": self.sampler().cycle_of(key.number),
            "layout": stream.map(|s| layout_name(&s.stream.schema().layout)),
            "file": format!("{}{}", key.number, file.face.suffix()),
            "nbytes": layout.size,
            "arrays": layout.describe(),
            "ids": ids,
        });
        Ok(format!("{out:#}\n"))
    }
}

fn layout_name(layout: &batchfs_store::Layout) -> &'static str {
    match layout {
        batchfs_store::Layout::Dense { .. } => "dense",
        batchfs_store::Layout::Ragged { .. } => "ragged",
    }
}
