//! What is shown to people.

use std::io::IsTerminal as _;

use batchfs_store::{Layout, Schema};
use indicatif::{ProgressBar, ProgressStyle};

/// A bar over `total` bytes, on a terminal only.
pub fn bytes(total: u64, what: &'static str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let template = "{msg} {bar:30} {bytes}/{total_bytes} {binary_bytes_per_sec} {eta}";
    let style =
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(total).with_style(style).with_message(what)
}

/// The shape of a record, as in `(3, 224, 224)`.
pub fn shape(schema: &Schema) -> String {
    let Layout::Dense { item_shape } = &schema.layout else {
        let axes = if schema.ndim() == 1 { "axis" } else { "axes" };
        return format!("ragged, {} {axes}", schema.ndim());
    };
    match item_shape.as_slice() {
        [one] => format!("({one},)"),
        all => {
            let all: Vec<String> = all.iter().map(u64::to_string).collect();
            format!("({})", all.join(", "))
        }
    }
}
