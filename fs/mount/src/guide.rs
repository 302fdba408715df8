//! The texts that the mount writes about itself.

use std::fmt::Write as _;

use batchfs_batch::{Face, Item, Key, TokenRows, View};
use serde_json::json;

use crate::session::Delivery;
use crate::tree::Tree;

/// `README.txt`: what this is and how to use it, with this dataset's own names.
pub(crate) fn readme(view: &View) -> String {
    if let Some(rows) = view.rows() {
        return token_readme(view, rows);
    }
    let data = view.dataset();
    let (batch, steps, len) = (view.local_batch(), view.steps_per_cycle(), data.len());
    let first = data.streams().first().map_or("", |s| &s.name);
    let mut out = String::new();
    let mut say = |line: &str| {
        out.push_str(line);
        out.push('\n');
    };
    say("This folder is a dataset, mounted by batchfs. Every training batch is a file.");
    say("");
    say(&format!("  source   {}", data.origin().display()));
    say(&format!("  records  {len} in each stream"));
    say(&format!("  spec     {}", view.spec()));
    say(&format!("  batch    {batch} records; {steps} steps make a cycle"));
    say("");
    say("The streams, and what a batch of each is:");
    say("");
    for stream in data.streams() {
        let schema = stream.stream.schema();
        let what = match &schema.layout {
            batchfs_store::Layout::Dense { item_shape } => {
                let shape = std::iter::once(batch).chain(item_shape.iter().copied());
                let shape: Vec<String> = shape.map(|d| d.to_string()).collect();
                // As Python says it.
                format!("({}{})", shape.join(", "), if shape.len() == 1 { "," } else { "" })
            }
            batchfs_store::Layout::Ragged { ndim } => format!(
                "ragged: values, cu_seqlens int32 ({},), shapes uint64 ({batch}, {ndim})",
                batch + 1
            ),
        };
        say(&format!("  {:<16} {} {what}", stream.name, schema.dtype));
    }
    say("");
    say("What is where:");
    say("");
    for stream in data.streams() {
        let name = &stream.name;
        say(&format!(
            "  {name}/batch/17          the batch of step 17: its bytes, C order, little-endian"
        ));
        let npy = |i| Key { view: view.number(), item: Item::Batch(i), face: Face::Npy, number: 0 };
        if data.number_of(name).is_some_and(|i| view.size(npy(i)).is_ok()) {
            say(&format!(
                "  {name}/batch/17.npy      the same for numpy.load(..., mmap_mode=\"r\")"
            ));
        }
        say(&format!("  {name}/batch/17.json     its dtype, shape, offsets and record ids"));
        say(&format!("  {name}/batch/17.txt      a look at its values; .sha256 is their hash"));
        say(&format!("  {name}/record/5          one record, in the order of the source"));
        say(&format!("  {name}/schema.json       what a record is"));
        say("");
    }
    say(
        "  all/batch/17.safetensors the batches of all streams as named tensors (also <stream>/batch/17.safetensors; .arrow, too)",
    );
    say("  index/17[.npy|.txt]      the record ids of step 17, uint64, the same for all streams");
    say("  view/<spec>/             the same under another spec, such as view/batch=64,seed=7");
    say("  .batchfs/config.json     how this was mounted");
    say("  .batchfs/metrics         counters and gauges, Prometheus text");
    say("  .batchfs/errors          why an open or a read failed; the newest is last");
    say("");
    say("Any step from 0 to 18446744073709551615 can be opened; a listing shows one cycle.");
    say("The same spec and step name the same bytes for ever: to resume a run, open the next");
    say("step. Files never change, so nothing has to be watched or refreshed.");
    say("");
    say("In Python, with nothing but NumPy:");
    say("");
    say("  import numpy as np");
    say(&format!("  x = np.load(\"{first}/batch/0.npy\", mmap_mode=\"r\")"));
    say("");
    say("In a shell:");
    say("");
    say(&format!("  od -A d -t u1 {first}/record/0 | head"));
    say(&format!("  cat {first}/batch/0.txt"));
    out
}

/// `README.txt` of a mount of tokens.
fn token_readme(view: &View, rows: &TokenRows) -> String {
    let spec = rows.lanes().spec();
    let (count, steps, len) = (rows.rows(), rows.steps_per_epoch(), spec.seq_len);
    let (dtype, total) = (rows.dtype(), rows.lanes().epoch_tokens());
    let mix = rows.tokens().mix().map_or(String::new(), |mix| {
        let (block, shares) = mix.shares();
        let shares: Vec<String> =
            mix.names().zip(shares).map(|(name, share)| format!("{share} of {name}")).collect();
        format!("\n  mix      of each {block} rows in order {}", shares.join(", "))
    });
    format!(
        "\
This folder is a dataset of tokens, mounted by batchfs. Every training batch is a file.

  source   {source}
  tokens   {total} in {documents} documents, column of Parquet files
  spec     {spec}{mix}
  batch    {dtype} ({count}, {len}): full rows, no token dropped, none padded
  epoch    {steps} steps

What is where:

  tokens/batch/17              the batch of step 17: its bytes, C order, little-endian
  tokens/batch/17.npy          the same for numpy.load(..., mmap_mode=\"r\")
  tokens/batch/17.safetensors  tokens, cu_seqlens, document_ids, document_offsets, pieces
  tokens/batch/17.arrow        the same as an Arrow table: a row, and lists of its pieces of documents
  tokens/batch/17.json         dtype, shape, epoch, and the pieces of documents for eyes
  tokens/batch/17.txt          a look at its values; .sha256 is their hash
  tokens/record/5              one document, in the order of the source
  tokens/schema.json           what a document is
  view/<spec>/                 the same under another spec, such as view/lanes=64,seed=7
  .batchfs/config.json         how this was mounted
  .batchfs/metrics             counters and gauges, Prometheus text
  .batchfs/errors              why an open or a read failed; the newest is last

Any step from 0 to 18446744073709551615 can be opened; a listing shows the first epoch.
The same spec and step name the same bytes for ever: to resume a run, open the next step.

In Python, with nothing but NumPy:

  import numpy as np
  x = np.load(\"tokens/batch/0.npy\", mmap_mode=\"r\")
",
        source = view.dataset().origin().display(),
        documents = view.dataset().len(),
    )
}

/// `.batchfs/config.json`.
pub(crate) fn config(tree: &Tree) -> String {
    let view = tree.main();
    let arena = tree.engine.arena();
    let streams: Vec<&str> = view.dataset().streams().iter().map(|s| s.name.as_str()).collect();
    let (delivery, why) = match tree.delivery.get() {
        Some(Delivery::Passthrough) => ("passthrough", None),
        Some(Delivery::Cached { why }) => ("cached", Some(why.as_str())),
        None => ("none", Some("not mounted")),
    };
    let tokens = view.dataset().tokens();
    // What only a mount has.
    let mounted = tree.delivery.get().is_some();
    let out = json!({
        "format": "batchfs-mount",
        "version": 1,
        "batchfs": env!("CARGO_PKG_VERSION"),
        "source": view.dataset().origin().to_string_lossy(),
        "streams": streams,
        "records": view.dataset().len(),
        "spec": view.spec().to_string(),
        "mix": tokens.and_then(|tokens| tokens.mix()).map(|mix| mix.to_string()),
        "sources": tokens.filter(|tokens| tokens.mix().is_some()).map(|tokens| tokens.origins()),
        "local_batch": view.local_batch(),
        "steps_per_cycle": view.steps_per_cycle(),
        "epoch_tokens": view.rows().map(|rows| rows.lanes().epoch_tokens()),
        "delivery": delivery,
        "delivery_reason": why,
        "memory_limit": mounted.then(|| arena.limit()),
        "memory_backing": mounted.then(|| arena.backing().name()),
        "pid": mounted.then(std::process::id),
    });
    format!("{out:#}\n")
}

/// `.batchfs/metrics`, in the Prometheus text format.
pub(crate) fn metrics(tree: &Tree) -> String {
    let engine = &tree.engine;
    // What readers have let go counts as theirs until it was looked at.
    engine.arena().sweep();
    let stats = engine.arena().stats();
    let mut out = String::new();
    let mut put = |name: &str, kind: &str, help: &str, value: u64| {
        // Writing to a String cannot fail.
        let _ = writeln!(out, "# HELP batchfs_{name} {help}");
        let _ = writeln!(out, "# TYPE batchfs_{name} {kind}");
        let _ = writeln!(out, "batchfs_{name} {value}");
    };
    for (name, help, value) in engine.metrics().all() {
        let name = if name.ends_with("_bytes") {
            format!("{}_bytes_total", name.trim_end_matches("_bytes"))
        } else {
            format!("{name}_total")
        };
        put(&name, "counter", help, value);
    }
    if let Some(tokens) = tree.main().dataset().tokens() {
        let figures = tokens.figures();
        for (name, kind, help, value) in [
            ("row_groups_decoded_total", "counter", "Row groups decoded", figures.decoded),
            (
                "row_group_hits_total",
                "counter",
                "Row groups that were in memory when a step needed them",
                figures.hits,
            ),
            (
                "source_received_bytes_total",
                "counter",
                "Bytes received from the source, for its index, too",
                figures.received,
            ),
            (
                "budget_limit_bytes",
                "gauge",
                "The byte budget for decoded row groups",
                figures.budget,
            ),
            ("budget_used_bytes", "gauge", "Decoded row groups", figures.used),
        ] {
            put(name, kind, help, value);
        }
    }
    let gauges = [
        (
            "open_handles",
            "Batches, records and indices that readers have open",
            engine.open_handles() as u64,
        ),
        ("memory_limit_bytes", "The byte budget", stats.limit),
        ("memory_used_bytes", "All regions together", stats.used),
        (
            "memory_live_bytes",
            "Regions open, being filled, filled ahead or just closed",
            stats.live,
        ),
        ("memory_outside_bytes", "Regions closed, and still mapped by readers", stats.outside),
        ("memory_idle_bytes", "Regions kept for reuse", stats.idle),
        ("memory_regions", "Number of regions", stats.regions),
    ];
    for (name, help, value) in gauges {
        put(name, "gauge", help, value);
    }
    out
}
