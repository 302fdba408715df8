use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use batchfs_store::{DType, Error, GuardedFile, Result, Rows, Schema, Stream};

use crate::header;

/// A `.npy` file as a stream, mapped and read in place: record `i` is `a[i]`.
///
/// Such a file has no checksums, so what it holds cannot be held against anything: only its header
/// and its exact length are checked. Convert it to a store where that matters. A file that is cut
/// short while it is open is an error all the same.
pub struct NpyFile {
    schema: Schema,
    rows: Rows,
    path: PathBuf,
    modified: SystemTime,
}

/// A header longer than this is not a header.
const MAX_HEADER: usize = 16 << 20;

/// A `.npy` file of any order, its header read and its length checked.
pub(crate) struct Opened {
    pub(crate) path: PathBuf,
    pub(crate) file: GuardedFile,
    pub(crate) schema: Schema,
    pub(crate) records: u64,
    /// Bytes of a record.
    pub(crate) item: usize,
    /// Where the data starts.
    pub(crate) start: u64,
    /// Column-major, in a way that matters.
    pub(crate) fortran: bool,
    /// Big-endian, in a way that matters.
    pub(crate) swapped: bool,
    pub(crate) modified: SystemTime,
}

impl Opened {
    pub(crate) fn new(path: &Path, given: Option<DType>) -> Result<Self> {
        let bad = |why: String| Error::BadStore { path: path.into(), why };
        let modified =
            path.metadata().and_then(|m| m.modified()).map_err(Error::io(path, "cannot open"))?;
        let file = GuardedFile::open(path)?;

        let mut front = vec![0; file.len().min(12) as usize];
        file.read_at(0, &mut front)?;
        let (at, len) = header::text_of(&front).map_err(bad)?;
        if len > MAX_HEADER || (at + len) as u64 > file.len() {
            return Err(bad("ends within its header".into()));
        }
        let mut text = vec![0; len];
        file.read_at(at as u64, &mut text)?;
        let header = header::parse(&text).map_err(bad)?;
        let (dtype, swapped) = header::dtype(&header.descr, given).map_err(bad)?;

        let Some((&records, item_shape)) = header.shape.split_first() else {
            return Err(bad("holds a single value without an axis; records need one".into()));
        };
        let schema = Schema::dense(dtype, item_shape);
        let start = (at + len) as u64;
        let item = match schema.item_bytes() {
            Some(0) => {
                return Err(bad(format!("has records of shape {item_shape:?}, of no bytes")));
            }
            Some(item) => item,
            None => return Err(bad(format!("cannot have the shape {:?}", header.shape))),
        };
        let want = records.checked_mul(item).and_then(|n| n.checked_add(start));
        if want != Some(file.len()) {
            return Err(bad(format!(
                "has {} bytes, but its header, {dtype} {:?}, makes it {}",
                file.len(),
                header.shape,
                want.map_or("more than a file can have".into(), |n| n.to_string())
            )));
        }
        let item = usize::try_from(item).map_err(|_| bad("has records too large".into()))?;
        // The order of axes says nothing where only one of them is longer than 1.
        let fortran = header.fortran && header.shape.iter().filter(|n| **n > 1).count() > 1;
        let path = path.into();
        Ok(Self { path, file, schema, records, item, start, fortran, swapped, modified })
    }
}

impl NpyFile {
    /// Opens a file of one of the dtypes in [`DType`], in C order and little-endian.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be opened; [`Error::BadStore`] with the reason and the way out if
    /// it is no `.npy` file, longer or shorter than its header says, in Fortran order,
    /// big-endian, structured, pickled, without an axis, with records of no bytes, or of an element
    /// type that the file does not name (then see [`open_as`](Self::open_as)).
    pub fn open(path: impl AsRef<Path>) -> Result<NpyFile> {
        Self::from_opened(Opened::new(path.as_ref(), None)?)
    }

    /// As [`open`](Self::open), for a file whose elements are known to be `dtype`. Types that NumPy
    /// lacks are saved as `<V2`, `|V1` or `<f1`, which does not say which one they were.
    ///
    /// # Errors
    /// Those of [`open`](Self::open), and if the file says that it holds something else.
    pub fn open_as(path: impl AsRef<Path>, dtype: DType) -> Result<NpyFile> {
        Self::from_opened(Opened::new(path.as_ref(), Some(dtype))?)
    }

    pub(crate) fn from_opened(opened: Opened) -> Result<NpyFile> {
        let Opened { path, file, schema, records, item, start, fortran, swapped, modified } =
            opened;
        let what = match (fortran, swapped) {
            (true, true) => "in Fortran (column-major) order and big-endian",
            (true, false) => "in Fortran (column-major) order",
            (false, true) => "big-endian",
            (false, false) => {
                let rows = Rows::single(file, start, records, item)?;
                return Ok(NpyFile { schema, rows, path, modified });
            }
        };
        let why = format!(
            "is {what}, which cannot be read in place; `batchfs create DEST --from {}` makes a store of it",
            path.display()
        );
        Err(Error::BadStore { path, why })
    }
}

impl Stream for NpyFile {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn len(&self) -> u64 {
        self.rows.len()
    }

    fn gather(&self, ids: &[u64], out: &mut [u8]) -> Result<()> {
        self.rows.gather(ids, out)
    }

    fn gather_to_file(&self, ids: &[u64], file: BorrowedFd<'_>, at: u64) -> Result<bool> {
        self.rows.gather_to_file(ids, file, at)
    }

    fn origin(&self) -> &Path {
        &self.path
    }

    /// The file's time of change when it was opened.
    fn modified(&self) -> SystemTime {
        self.modified
    }
}
