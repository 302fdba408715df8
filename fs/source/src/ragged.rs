//! Ragged records in `.npy` files: values, offsets, shapes.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use batchfs_store::{
    DType, Layout, Locate, Place, Records, Result, Schema, Stream, Verify, check_ids, check_request,
};

use crate::bad;
use crate::convert::{convert_npy, swap, swap_unit};
use crate::npy::Opened;

/// Names in a folder that is such a stream: what an export gives.
pub(crate) const VALUES: &str = "values.npy";
pub(crate) const OFFSETS: &str = "cu_seqlens.npy";
pub(crate) const SHAPES: &str = "shapes.npy";
/// The largest record.
const MAX_RECORD: u64 = 2 << 30;

/// Ragged records in `.npy` files as a stream: one of values, which is mapped and read in place,
/// and one or two that say where each record lies in it and of which shape it is, which are read to
/// memory: 8 bytes a number.
///
/// As [`NpyFile`](crate::NpyFile) it has no checksums.
pub struct RaggedNpy {
    schema: Schema,
    records: Records<Offsets>,
    /// The shapes of all records, if they have more than one axis or are given.
    shapes: Option<Vec<u64>>,
    swap: Option<usize>,
    modified: SystemTime,
}

impl RaggedNpy {
    /// Opens a folder with `values.npy`, `cu_seqlens.npy` and, for records of more than one axis,
    /// `shapes.npy`.
    ///
    /// # Errors
    /// Those of [`open_parts`](Self::open_parts).
    pub fn open(folder: impl AsRef<Path>, dtype: Option<DType>) -> Result<Self> {
        let folder = folder.as_ref();
        let shapes = Some(folder.join(SHAPES)).filter(|path| path.exists());
        let (values, offsets) = (folder.join(VALUES), folder.join(OFFSETS));
        Self::from_parts(folder, (&values, &offsets, shapes.as_deref()), dtype)
    }

    /// Opens `values`, one-dimensional; `offsets`, where each record starts in it, and the end; and
    /// `shapes`, a row for each record. Without these, records have one axis. `dtype` is for values
    /// whose type the file does not name.
    ///
    /// # Errors
    /// Those of [`NpyFile::open`](crate::NpyFile::open), but for big-endian files; and
    /// [`BadStore`](crate::Error::BadStore) with the first number that does not fit.
    pub fn open_parts(
        values: &Path,
        offsets: &Path,
        shapes: Option<&Path>,
        dtype: Option<DType>,
    ) -> Result<Self> {
        Self::from_parts(values, (values, offsets, shapes), dtype)
    }

    /// The stream itself, if it can be read in place.
    pub(crate) fn in_place(self) -> Result<Self> {
        if self.swap.is_none() {
            return Ok(self);
        }
        let path = self.origin();
        let why = format!(
            "has big-endian values, which cannot be read in place; `batchfs create DEST --from {}` makes a store of it",
            path.display()
        );
        Err(bad(path, why))
    }

    fn from_parts(
        origin: &Path,
        (values, offsets, shapes): (&Path, &Path, Option<&Path>),
        dtype: Option<DType>,
    ) -> Result<Self> {
        let opened = Opened::new(values, dtype)?;
        let dtype = opened.schema.dtype;
        let Layout::Dense { item_shape } = &opened.schema.layout else {
            return Err(bad(values, "is no array".into()));
        };
        if !item_shape.is_empty() {
            let axes = item_shape.len() + 1;
            return Err(bad(
                values,
                format!("the values of ragged records are one-dimensional, these have {axes} axes"),
            ));
        }
        let ends = read_offsets(offsets, opened.records)?;
        let size = dtype.size() as u64;
        for (i, pair) in ends.windows(2).enumerate() {
            if pair[1] - pair[0] > MAX_RECORD / size {
                return Err(bad(offsets, format!("record {i} is larger than 2 GiB")));
            }
        }
        let (ndim, shapes) = match shapes {
            None => (1, None),
            Some(path) => {
                let (numbers, ndim) = read_shapes(path, &ends)?;
                (ndim, Some(numbers))
            }
        };
        let index = Offsets { origin: origin.into(), start: opened.start, size, ends };
        Ok(Self {
            schema: Schema::ragged(dtype, ndim),
            records: Records::new(origin.into(), vec![opened.file], index, None)?,
            shapes,
            swap: opened.swapped.then(|| swap_unit(dtype)),
            modified: opened.modified,
        })
    }
}

fn read_offsets(path: &Path, values: u64) -> Result<Vec<u64>> {
    let (ends, width) = integers(path)?;
    if width != 1 {
        return Err(bad(path, "offsets are one-dimensional".into()));
    }
    if ends.first() != Some(&0) {
        return Err(bad(path, "the first offset must be 0".into()));
    }
    if ends.last() != Some(&values) {
        return Err(bad(path, format!("the last offset must be the number of values, {values}")));
    }
    match ends.windows(2).position(|pair| pair[0] > pair[1]) {
        Some(i) => Err(bad(path, format!("record {i} ends before it starts"))),
        None => Ok(ends),
    }
}

fn read_shapes(path: &Path, ends: &[u64]) -> Result<(Vec<u64>, u32)> {
    let (all, width) = integers(path)?;
    let records = ends.len() - 1;
    if width.checked_mul(records) != Some(all.len()) {
        let why = format!("has {} rows, but there are {records} records", all.len() / width.max(1));
        return Err(bad(path, why));
    }
    let ndim = u32::try_from(width).unwrap_or(u32::MAX);
    if !(1..=Layout::MAX_NDIM).contains(&ndim) {
        let why =
            format!("has shapes of {width} axes, which are not within 1..={}", Layout::MAX_NDIM);
        return Err(bad(path, why));
    }
    for (i, (shape, pair)) in all.chunks_exact(width).zip(ends.windows(2)).enumerate() {
        let length = pair[1] - pair[0];
        if shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d)) != Some(length) {
            return Err(bad(path, format!("record {i} has shape {shape:?}, but {length} values")));
        }
    }
    Ok((all, ndim))
}

/// All numbers of a `.npy` file of integers, and how many there are in a row.
fn integers(path: &Path) -> Result<(Vec<u64>, usize)> {
    let file = convert_npy(path, None)?;
    let schema = file.schema();
    let signed = match schema.dtype {
        DType::Int32 | DType::Int64 => true,
        DType::UInt32 | DType::UInt64 => false,
        other => {
            let why = format!("has {other}, but must be int32, int64, uint32 or uint64");
            return Err(bad(path, why));
        }
    };
    let ids: Vec<u64> = (0..file.len()).collect();
    let width = schema.item_elements().unwrap_or(0) as usize;
    let size = schema.dtype.size();
    let mut bytes = vec![0; ids.len() * width * size];
    file.gather(&ids, &mut bytes)?;
    let mut numbers = Vec::with_capacity(bytes.len() / size);
    for (i, bytes) in bytes.chunks_exact(size).enumerate() {
        if signed && bytes[size - 1] & 0x80 != 0 {
            return Err(bad(path, format!("number {i} is negative")));
        }
        numbers.push(bytes.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)));
    }
    Ok((numbers, width))
}

/// Finds records by where they end.
struct Offsets {
    origin: PathBuf,
    /// Where the values start in their file.
    start: u64,
    /// Bytes of a value.
    size: u64,
    ends: Vec<u64>,
}

impl Offsets {
    fn elements(&self, id: u64) -> u64 {
        self.ends[id as usize + 1] - self.ends[id as usize]
    }
}

impl Locate for Offsets {
    fn len(&self) -> u64 {
        self.ends.len() as u64 - 1
    }

    fn locate(&self, ids: &[u64], out: &mut [Place]) -> Result<()> {
        check_ids(&self.origin, ids, self.len())?;
        for (id, out) in ids.iter().zip(out) {
            let bytes = (self.elements(*id) * self.size) as u32;
            let offset = self.start + self.ends[*id as usize] * self.size;
            *out = Place { offset, stored: bytes, raw: bytes, ..Place::default() };
        }
        Ok(())
    }

    fn file_of(&self, _id: u64) -> u32 {
        0
    }
}

impl Stream for RaggedNpy {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.records.index().len()
    }

    fn payload_bytes(&self) -> u64 {
        let index = self.records.index();
        index.ends.last().map_or(0, |n| n * index.size)
    }

    fn gather(&self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        self.records.gather(ids, out, Verify::Never)?;
        if let Some(unit) = self.swap {
            swap(out, unit);
        }
        Ok(())
    }

    fn elements(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        check_request(self, ids, 1, out.len())?;
        ids.iter().zip(out).for_each(|(id, out)| *out = self.records.index().elements(*id));
        Ok(())
    }

    fn shapes(&self, ids: &[u64], out: &mut [u64]) -> Result<()> {
        let ndim = self.schema.ndim();
        check_request(self, ids, ndim, out.len())?;
        let Some(all) = &self.shapes else { return self.elements(ids, out) };
        for (id, out) in ids.iter().zip(out.chunks_exact_mut(ndim)) {
            let at = *id as usize * ndim;
            out.copy_from_slice(&all[at..at + ndim]);
        }
        Ok(())
    }

    fn origin(&self) -> &Path {
        self.records.origin()
    }

    /// When the values were changed.
    fn modified(&self) -> SystemTime {
        self.modified
    }
}
