//! Arrays for eyes: nested brackets, abridged in the middle, as NumPy prints them.

use std::fmt::Write as _;

use batchfs_store::DType;

use super::value::show;
use crate::layout::{Array, Fill};
use crate::{Item, Key, Layout, View};

/// Arrays of more elements are abridged.
const WHOLE: u64 = 1000;

/// Elements at both ends of an axis that an abridged array shows.
const EDGE: u64 = 3;

/// Most elements that are shown, however many axes there are.
const MOST: u64 = 20_000;

const LINE: usize = 75;

pub(super) fn render(
    view: &View,
    key: Key,
    layout: &Layout,
    bytes: &[u8],
) -> Result<String, String> {
    let name = view.name(Key { face: crate::Face::Bare, ..key });
    let mut out = format!("{name}\n");
    let part = |a: &Array| {
        bytes.get(a.offset as usize..(a.offset + a.nbytes) as usize).ok_or("the bare file is short")
    };
    match &layout.arrays[..] {
        [table] if table.fill == Fill::PieceTable => {
            let _ = writeln!(out, "spec {}, step {}", view.spec(), key.number);
            let _ = writeln!(out, "row document offset length");
            let seq_len = view.rows().map_or(1, |rows| rows.lanes().spec().seq_len as i64);
            let mut at = 0;
            for piece in part(table)?.chunks_exact(24) {
                let number = |i: usize| {
                    let mut number = [0; 8];
                    number.copy_from_slice(&piece[8 * i..8 * i + 8]);
                    i64::from_le_bytes(number)
                };
                let (document, offset, len) = (number(0), number(1), number(2));
                if document < 0 {
                    break;
                }
                let _ = writeln!(out, "{} {document} {offset} {len}", at / seq_len);
                at += len;
            }
        }
        [one] => {
            let _ = writeln!(out, "{} {}, {} bytes", one.dtype, tuple(&one.shape), one.nbytes);
            if !matches!(key.item, Item::Record(_)) {
                let _ = writeln!(out, "spec {}, step {}", view.spec(), key.number);
            }
            out.push('\n');
            print(&mut out, one.dtype, &one.shape, part(one)?, WHOLE);
        }
        [values, offsets, shapes] if matches!(values.fill, Fill::Records(_)) => {
            let (count, total) = (shapes.shape[0], values.shape[0]);
            let _ = writeln!(out, "{}, ragged: {count} records, {total} values", values.dtype);
            let _ = writeln!(out, "spec {}, step {}", view.spec(), key.number);
            let ids = view.plan(key).map_err(|e| e.to_string())?;
            let axes = shapes.shape[1] as usize;
            let numbers = part(shapes)?.chunks_exact(8).map(|b| {
                let mut number = [0; 8];
                number.copy_from_slice(b);
                u64::from_le_bytes(number)
            });
            let shapes: Vec<u64> = numbers.collect();
            let starts = part(offsets)?.chunks_exact(4).map(|b| {
                let mut number = [0; 4];
                number.copy_from_slice(b);
                i32::from_le_bytes(number) as usize
            });
            let starts: Vec<usize> = starts.collect();
            let (values, size) = (part(values)?, dtype_size(layout));
            let whole = if total > WHOLE { 0 } else { WHOLE };
            for at in shown(count, EDGE, total > WHOLE) {
                let Some(i) = at.map(|i| i as usize) else {
                    out.push_str("\n...\n");
                    continue;
                };
                let shape = &shapes[i * axes..(i + 1) * axes];
                let _ = writeln!(out, "\nrecord {} {}", ids[i], tuple(shape));
                let bytes = &values[starts[i] * size..starts[i + 1] * size];
                print(&mut out, layout.arrays[0].dtype, shape, bytes, whole);
            }
        }
        _ => return Err("it has no text".to_owned()),
    }
    Ok(out)
}

fn dtype_size(layout: &Layout) -> usize {
    layout.arrays.first().map_or(1, |a| a.dtype.size())
}

fn tuple(shape: &[u64]) -> String {
    match shape {
        [one] => format!("({one},)"),
        many => {
            let all: Vec<String> = many.iter().map(u64::to_string).collect();
            format!("({})", all.join(", "))
        }
    }
}

/// Which places of an axis are shown; `None` stands for those left out.
fn shown(len: u64, edge: u64, abridged: bool) -> Vec<Option<u64>> {
    if abridged && len > 2 * edge {
        (0..edge).map(Some).chain([None]).chain((len - edge..len).map(Some)).collect()
    } else {
        (0..len).map(Some).collect()
    }
}

/// Prints one array; one of more than `whole` elements is abridged.
fn print(out: &mut String, dtype: DType, shape: &[u64], bytes: &[u8], whole: u64) {
    let total = bytes.len() as u64 / dtype.size() as u64;
    let abridged = total > whole;
    let count = |edge: u64| {
        let each = |d: &u64| if abridged { (*d).min(2 * edge) } else { *d };
        shape.iter().map(each).fold(1u64, u64::saturating_mul)
    };
    let Some(edge) = (1..=EDGE).rev().find(|edge| count(*edge) <= MOST) else {
        let _ = writeln!(out, "too many axes to show; as one axis:");
        return print(out, dtype, &[total], bytes, whole);
    };
    let mut printer = Printer { dtype, shape, bytes, edge, abridged, width: 0, out };
    printer.measure(0, 0);
    printer.write(0, 0);
    printer.out.push('\n');
}

struct Printer<'a> {
    dtype: DType,
    shape: &'a [u64],
    bytes: &'a [u8],
    edge: u64,
    abridged: bool,
    width: usize,
    out: &'a mut String,
}

impl Printer<'_> {
    fn element(&self, at: u64) -> String {
        let size = self.dtype.size();
        let from = at as usize * size;
        show(self.dtype, &self.bytes[from..from + size])
    }

    /// The widest element that will be shown.
    fn measure(&mut self, axis: usize, at: u64) {
        match self.shape.get(axis) {
            None => self.width = self.width.max(self.element(at).len()),
            Some(len) => {
                for i in shown(*len, self.edge, self.abridged).into_iter().flatten() {
                    self.measure(axis + 1, at * len + i);
                }
            }
        }
    }

    /// `at` is the place among the arrays of the axes before `axis`.
    fn write(&mut self, axis: usize, at: u64) {
        let Some(&len) = self.shape.get(axis) else {
            let text = self.element(at);
            self.out.push_str(&text);
            return;
        };
        let places = shown(len, self.edge, self.abridged);
        self.out.push('[');
        if axis + 1 == self.shape.len() {
            let mut column = axis + 1;
            for (i, place) in places.into_iter().enumerate() {
                let word = match place {
                    Some(place) => {
                        format!("{:>width$}", self.element(at * len + place), width = self.width)
                    }
                    None => "...".to_owned(),
                };
                if i > 0 && column + 1 + word.len() >= LINE {
                    let _ = write!(self.out, "\n{:indent$}", "", indent = axis + 1);
                    column = axis + 1;
                } else if i > 0 {
                    self.out.push(' ');
                    column += 1;
                }
                column += word.len();
                self.out.push_str(&word);
            }
        } else {
            for (i, place) in places.into_iter().enumerate() {
                if i > 0 {
                    self.out.extend(std::iter::repeat_n('\n', self.shape.len() - axis - 1));
                    let _ = write!(self.out, "{:indent$}", "", indent = axis + 1);
                }
                match place {
                    Some(place) => self.write(axis + 1, at * len + place),
                    None => self.out.push_str("..."),
                }
            }
        }
        self.out.push(']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(shape: &[u64], values: impl IntoIterator<Item = i32>) -> String {
        let bytes: Vec<u8> = values.into_iter().flat_map(i32::to_le_bytes).collect();
        let mut out = String::new();
        print(&mut out, DType::Int32, shape, &bytes, WHOLE);
        out
    }

    #[test]
    fn small_arrays_are_shown_whole() {
        assert_eq!(printed(&[], [-7]), "-7\n");
        assert_eq!(printed(&[0], []), "[]\n");
        assert_eq!(printed(&[2, 0], []), "[[]\n []]\n");
        assert_eq!(printed(&[2, 3], 8..14), "[[ 8  9 10]\n [11 12 13]]\n");
        assert_eq!(printed(&[2, 1, 2], 0..4), "[[[0 1]]\n\n [[2 3]]]\n");
    }

    #[test]
    fn large_arrays_are_abridged_on_each_axis() {
        assert_eq!(printed(&[1001], 0..1001), "[   0    1    2 ...  998  999 1000]\n");
        let text = printed(&[7, 200], 0..1400);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "[[   0    1    2 ...  197  198  199]");
        assert_eq!(lines[3], " ...");
        assert_eq!(lines[6], " [1200 1201 1202 ... 1397 1398 1399]]");
        assert_eq!(lines.len(), 7);
    }

    #[test]
    fn long_lines_are_broken_and_many_axes_are_bounded() {
        let text = printed(&[100], 1000..1100);
        assert!(text.lines().all(|l| l.len() <= LINE) && text.lines().count() == 8, "{text}");
        let many = printed(&[2; 15], 0..1 << 15);
        assert!(many.starts_with("too many axes"), "{many}");
        assert!(many.ends_with("[    0     1     2 ... 32765 32766 32767]\n"), "{many}");
    }
}
