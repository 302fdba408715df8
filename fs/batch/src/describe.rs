use serde_json::{Value, json};

use crate::{Face, Item, Key, Layout, NamedStream, View};

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
    /// The `.json` face of a batch, as text: what a client needs to take the bare file apart.
    ///
    /// # Errors
    /// As [`View::layout`].
    pub fn describe(&self, stream: u16, step: u64) -> crate::Result<String> {
        let key =
            Key { view: self.number(), item: Item::Batch(stream), face: Face::Bare, number: step };
        let layout = self.layout(key)?;
        let ids = self.plan(key)?;
        let name = self.dataset().stream(stream).map_or("", |s| &s.name);
        let out = json!({
            "format": "batchfs-batch",
            "version": 1,
            "stream": name,
            "spec": self.sampler().spec().to_string(),
            "step": step,
            "cycle": self.sampler().cycle_of(step),
            "layout": "dense",
            "file": step.to_string(),
            "nbytes": layout.size,
            "arrays": arrays(&layout),
            "ids": ids,
        });
        Ok(format!("{out:#}\n"))
    }
}

fn arrays(layout: &Layout) -> Value {
    let one = |a: &crate::Array| {
        json!({
            "name": a.name,
            "dtype": a.dtype,
            "shape": a.shape,
            "offset": a.offset,
            "nbytes": a.nbytes,
        })
    };
    layout.arrays.iter().map(one).collect()
}
