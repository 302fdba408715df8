//! Records of different lengths: the paragraphs of the guide.

use std::io::Write;
use std::path::Path;

use anyhow::{Context as _, ensure};
use batchfs_store::{DType, Schema, StoreWriter, WriteOptions};
use serde_json::Value;

const GUIDE: &str = include_str!("../../../docs/guide.md");

pub const SPEC: &str = "batch=6,seed=42";

/// The same data in another order.
const VIEW: &str = "view/mode=sequential,batch=3";

/// A paragraph as long as this is worth showing.
const WORTH: usize = 200;

/// Lines of it that are shown.
const LINES: usize = 4;

fn paragraphs() -> Vec<&'static [u8]> {
    let all = GUIDE.split("\n\n").map(|text| text.trim_matches('\n'));
    // But for the headings.
    all.filter(|text| !text.is_empty() && !text.starts_with('#')).map(str::as_bytes).collect()
}

/// Makes the store, and returns how many records it has.
pub fn build(dest: &Path) -> anyhow::Result<usize> {
    let records = paragraphs();
    let lengths: Vec<u64> = records.iter().map(|text| text.len() as u64).collect();
    let mut writer =
        StoreWriter::create(dest, Schema::ragged(DType::UInt8, 1), WriteOptions::default())?;
    writer.append_ragged(&records.concat(), &lengths)?;
    writer.finish()?;
    Ok(records.len())
}

/// Reads a batch, checks it against the source, and shows what it is made of.
pub fn show(out: &mut impl Write, mount: &Path) -> anyhow::Result<()> {
    let read = |name: &str| {
        let path = mount.join(name);
        std::fs::read(&path).with_context(|| path.display().to_string())
    };
    let batch = read("text/batch/0")?;
    let about: Value = serde_json::from_slice(&read("text/batch/0.json")?)?;
    let part = |name: &str| -> Option<&[u8]> {
        let arrays = about["arrays"].as_array()?;
        let array = arrays.iter().find(|array| array["name"] == name)?;
        let (from, len) = (array["offset"].as_u64()?, array["nbytes"].as_u64()?);
        batch.get(from as usize..(from + len) as usize)
    };
    let lost = |name: &str| format!("{}: text/batch/0.json has no {name}", mount.display());
    let values = part("values").with_context(|| lost("values"))?;
    let offsets = part("cu_seqlens").with_context(|| lost("cu_seqlens"))?;
    let offsets: Vec<usize> = offsets
        .chunks_exact(4)
        .map(|b| i32::from_le_bytes([b[0], b[1], b[2], b[3]]).unsigned_abs() as usize)
        .collect();
    let ids = ids(&read("index/0")?);
    let source = paragraphs();
    let texts: Vec<&[u8]> = offsets.windows(2).filter_map(|w| values.get(w[0]..w[1])).collect();
    let same = ids.iter().map(|id| source[*id]).eq(texts.iter().copied());
    ensure!(same, "{}: not the paragraphs of the source", mount.display());

    writeln!(out, "   text/batch/0 is three arrays, and text/batch/0.json says where; it holds")?;
    writeln!(out, "   paragraphs {}, every byte as it was. cu_seqlens:", list(&ids))?;
    writeln!(out, "   {}", list(&offsets))?;
    let size = |i: &usize| texts[*i].len();
    let shown = (0..texts.len()).filter(|i| size(i) >= WORTH).min_by_key(size).unwrap_or(0);
    writeln!(
        out,
        "   values[{}:{}] is paragraph {}:\n",
        offsets[shown],
        offsets[shown + 1],
        ids[shown]
    )?;
    let text = String::from_utf8_lossy(texts[shown]);
    for line in text.lines().take(LINES) {
        writeln!(out, "      {line}")?;
    }
    if text.lines().count() > LINES {
        writeln!(out, "      …")?;
    }
    let other = self::ids(&read(&format!("{VIEW}/index/0"))?);
    ensure!(other == [0, 1, 2], "{VIEW}: the first batch holds other records");
    writeln!(out, "\n   Any other order is there, too, without another mount:")?;
    writeln!(out, "   {VIEW}/text/batch/0 holds paragraphs {}.", list(&other))?;
    Ok(())
}

fn ids(bytes: &[u8]) -> Vec<usize> {
    let words = bytes.chunks_exact(8);
    words.map(|b| b.iter().rev().fold(0, |n, b| n << 8 | usize::from(*b))).collect()
}

fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_paragraphs_to_show() {
        let all = paragraphs();
        assert!(all.len() >= 20 && all.iter().all(|text| !text.is_empty()));
        assert!(all.iter().filter(|text| text.len() >= WORTH).count() > all.len() / 2);
        assert_eq!(ids(&[1, 2, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]), [513, 7]);
    }
}
