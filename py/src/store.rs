//! An open stream, and writers.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwapOption;
use batchfs_source::{Kind, Zrecord};
use batchfs_store::{
    Codec, DType, DatasetWriter as Dataset, Layout, OpenOptions, Schema, Store as RecordStore,
    StoreWriter, Stream, Verify, WriteOptions,
};
use numpy::PyUntypedArray;
use pyo3::exceptions::{PyBufferError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyMemoryView};

use crate::allocator::Allocator;
use crate::sys::{self, pool};
use crate::tensor::{DLTensor, Tensor};
use crate::view::{Bind, DenseView, RaggedView};
use crate::{dtypes, errors};

/// A stream that views read, until its store is closed.
pub struct Opened {
    pub path: PathBuf,
    pub schema: Schema,
    pub len: u64,
    /// Bytes of all records.
    pub payload: u64,
    pub codec: &'static str,
    pub shards: u32,
    pub verify: String,
    stream: ArcSwapOption<Box<dyn Stream>>,
}

impl Opened {
    /// The records.
    ///
    /// # Errors
    /// `RuntimeError` after the store was closed.
    pub fn stream(&self) -> PyResult<Arc<Box<dyn Stream>>> {
        self.stream.load_full().ok_or_else(|| {
            PyRuntimeError::new_err(format!("{}: the store is closed", self.path.display()))
        })
    }

    /// The shape of a dense record, or the axes of ragged ones.
    pub fn geometry<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        match &self.schema.layout {
            Layout::Dense { item_shape } => {
                Ok(pyo3::types::PyTuple::new(py, item_shape)?.into_any())
            }
            Layout::Ragged { ndim } => Ok(ndim.into_pyobject(py)?.into_any()),
        }
    }
}

/// Opens what is at `path`: a store, or another source that is read as it is.
///
/// # Errors
/// Those of the store; `ValueError` if its records are not of the layout that is asked for.
fn open(path: &Path, verify: &str) -> Result<(Box<dyn Stream>, &'static str, u32), Failed> {
    let verify = match verify {
        "first" => Verify::First,
        "always" => Verify::Always,
        "never" => Verify::Never,
        other => {
            let why = format!("verify={other:?} is not valid; it is first, always or never");
            return Err(Failed::Value(why));
        }
    };
    let options = OpenOptions::verify(verify);
    match Kind::of(path)? {
        Kind::Store | Kind::Folder => {
            let store = RecordStore::open(path, options)?;
            let (codec, shards) = (store.codec().name(), store.shards());
            Ok((Box::new(store), codec, shards))
        }
        Kind::Zrecord => {
            let container = Zrecord::open(path)?;
            let (codec, shards) = (container.codec().name(), container.shards());
            Ok((Box::new(container), codec, shards))
        }
        _ => Ok((batchfs_source::open_path(path, &options)?, "raw", 1)),
    }
}

enum Failed {
    Store(batchfs_store::Error),
    Value(String),
}

impl From<batchfs_store::Error> for Failed {
    fn from(e: batchfs_store::Error) -> Failed {
        Failed::Store(e)
    }
}

/// An open store, for `DenseStore` and `RaggedStore`.
#[pyclass(frozen, module = "batchfs._native")]
pub struct Store(Arc<Opened>);

#[pymethods]
impl Store {
    #[new]
    fn new(py: Python<'_>, path: PathBuf, dense: bool, verify: String) -> PyResult<Store> {
        let opened = py.detach(|| open(&path, &verify));
        let (stream, codec, shards) = opened.map_err(|e| match e {
            Failed::Store(e) => errors::store(py, &e),
            Failed::Value(why) => PyValueError::new_err(why),
        })?;
        let schema = stream.schema().clone();
        if dense != matches!(schema.layout, Layout::Dense { .. }) {
            let (is, other) = if dense { ("ragged", "Ragged") } else { ("dense", "Dense") };
            return Err(PyValueError::new_err(format!(
                "{}: its records are {is}; open it with {other}Store",
                path.display()
            )));
        }
        let (len, payload) = (stream.len(), stream.payload_bytes());
        let stream = ArcSwapOption::from_pointee(stream);
        Ok(Store(Arc::new(Opened { path, schema, len, payload, codec, shards, verify, stream })))
    }

    #[getter]
    fn dtype<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        dtypes::object(py, self.0.schema.dtype)
    }

    #[getter]
    fn geometry<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.0.geometry(py)
    }

    #[getter]
    fn codec(&self) -> &'static str {
        self.0.codec
    }

    #[getter]
    fn data_shards(&self) -> u32 {
        self.0.shards
    }

    #[getter]
    fn closed(&self) -> bool {
        self.0.stream.load().is_none()
    }

    fn __len__(&self) -> usize {
        self.0.len as usize
    }

    fn bind(&self, py: Python<'_>, allocator: &Bound<'_, Allocator>) -> PyResult<Py<PyAny>> {
        self.0.stream()?;
        let bind = Bind::new(self.0.clone(), allocator.clone().unbind());
        match self.0.schema.layout {
            Layout::Dense { .. } => Ok(Py::new(py, DenseView(bind))?.into_any()),
            Layout::Ragged { .. } => Ok(Py::new(py, RaggedView(bind))?.into_any()),
        }
    }

    fn close(&self, py: Python<'_>) {
        let closed = self.0.stream.swap(None);
        py.detach(|| drop(closed));
    }
}

/// The memory of an append's input.
///
/// DLPack, also of a GPU of AMD's, or an array, or a buffer that is read-only.
fn input(value: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    if let Ok(tensor) = value.cast::<DLTensor>() {
        return tensor.get().0.on_host(value.py());
    }
    if let Ok(array) = value.cast::<PyUntypedArray>() {
        return sys::of_array(array);
    }
    let py = value.py();
    let buffer = || -> PyResult<Tensor> {
        let view = PyMemoryView::from(value)?;
        if !view.getattr(intern!(py, "readonly"))?.is_truthy()? {
            return Err(PyTypeError::new_err(
                "a writable buffer is no input; pass a DLPack tensor, such as numpy.frombuffer(…)",
            ));
        }
        let array = py.import(intern!(py, "numpy"))?.call_method1("asarray", (view,))?;
        sys::of_array(array.cast::<PyUntypedArray>()?)
    };
    if value.hasattr(intern!(py, "__dlpack__"))? {
        return match sys::import(value) {
            Err(e) if e.is_instance_of::<PyBufferError>(py) => buffer().map_err(|_| e),
            made => made,
        };
    }
    buffer().map_err(|e| {
        if e.value(py).to_string().contains("writable") {
            return e;
        }
        PyTypeError::new_err(format!(
            "{} is no input: it has neither DLPack nor a read-only buffer",
            value.get_type()
        ))
    })
}

/// A store that is being written, for `DenseWriter` and `RaggedWriter`.
#[pyclass(frozen, module = "batchfs._native")]
pub struct Writer {
    writer: Mutex<Option<StoreWriter>>,
    schema: Schema,
    path: PathBuf,
    born: u64,
}

/// In a child made by `fork` a writer is the parent's, and its lock may be held for ever.
fn check_fork(born: u64, path: &Path) -> PyResult<()> {
    if born == sys::generation() {
        return Ok(());
    }
    Err(PyRuntimeError::new_err(format!(
        "{}: this writer was made before a fork and is the parent process's; make one in this process",
        path.display()
    )))
}

impl Writer {
    fn lock(&self) -> MutexGuard<'_, Option<StoreWriter>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut StoreWriter) -> batchfs_store::Result<T> + Send,
    ) -> PyResult<T> {
        check_fork(self.born, &self.path)?;
        let done = py.detach(|| -> Result<_, Option<std::io::Error>> {
            let mut writer = self.lock();
            let writer = writer.as_mut().ok_or(None)?;
            Ok(pool().map_err(Some)?.install(|| work(writer)))
        });
        match done {
            Ok(done) => done.map_err(|e| errors::store(py, &e)),
            Err(Some(e)) => Err(errors::os(&self.path, "cannot start threads", &e)),
            Err(None) => Err(PyRuntimeError::new_err(format!(
                "{}: the writer is closed",
                self.path.display()
            ))),
        }
    }

    fn invalid(&self, why: impl std::fmt::Display) -> PyErr {
        PyValueError::new_err(format!("{}: {why}", self.path.display()))
    }
}

#[pymethods]
impl Writer {
    #[new]
    #[pyo3(signature = (path, dtype, *, item_shape, ndim, codec, level, dictionary, shards))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        py: Python<'_>,
        path: PathBuf,
        dtype: &str,
        item_shape: Option<Vec<u64>>,
        ndim: u32,
        codec: &str,
        level: i32,
        dictionary: Option<Vec<u8>>,
        shards: u32,
    ) -> PyResult<Writer> {
        let (schema, codec) = (schema(dtype, item_shape, ndim)?, self::codec(codec)?);
        let options = WriteOptions { shards, codec, level, dictionary, ..WriteOptions::default() };
        let made = py.detach(|| StoreWriter::create(&path, schema.clone(), options));
        let writer = made.map_err(|e| errors::store(py, &e))?;
        Ok(Writer { writer: Mutex::new(Some(writer)), schema, path, born: sys::generation() })
    }

    fn append(&self, py: Python<'_>, batch: &Bound<'_, PyAny>) -> PyResult<()> {
        let source = input(batch)?;
        let Layout::Dense { item_shape } = &self.schema.layout else {
            return Err(PyTypeError::new_err("ragged records are appended as a RaggedBatch"));
        };
        if source.dtype != self.schema.dtype {
            return Err(self.invalid(format_args!(
                "the batch is {}, the store {}",
                source.dtype, self.schema.dtype
            )));
        }
        let fits = source.shape.len() == item_shape.len() + 1
            && source.shape[1..].iter().zip(item_shape).all(|(a, b)| *a as u64 == *b);
        if !fits {
            return Err(self.invalid(format_args!(
                "a batch of shape {:?} is not (records, *{item_shape:?})",
                source.shape
            )));
        }
        if source.shape[0] == 0 {
            return Err(self.invalid("a batch has at least one record"));
        }
        self.with(py, |writer| writer.append(source.memory.bytes()))
    }

    fn append_ragged(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        cu_seqlens: &Bound<'_, PyAny>,
        shapes: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let (values, cu, shapes) = (input(values)?, input(cu_seqlens)?, input(shapes)?);
        let ndim = self.schema.ndim();
        if values.dtype != self.schema.dtype || values.shape.len() != 1 {
            return Err(self.invalid(format_args!(
                "values are one-dimensional and {}, not {} {:?}",
                self.schema.dtype, values.dtype, values.shape
            )));
        }
        let cu = numbers(&cu, "cu_seqlens", DType::Int32).map_err(|e| self.invalid(e))?;
        let rows = shapes.shape.first().copied().unwrap_or(0);
        if shapes.shape.len() != 2 || shapes.shape[1] != ndim as i64 {
            return Err(
                self.invalid(format_args!("shapes are (records, {ndim}), not {:?}", shapes.shape))
            );
        }
        let shapes = numbers(&shapes, "shapes", DType::UInt64).map_err(|e| self.invalid(e))?;
        if rows == 0 {
            return Err(self.invalid("a batch has at least one record"));
        }
        check_offsets(&cu, &shapes, rows as usize, ndim, values.shape[0])
            .map_err(|e| self.invalid(e))?;
        self.with(py, |writer| writer.append_ragged(values.memory.bytes(), &shapes))
    }

    fn records(&self, py: Python<'_>) -> PyResult<u64> {
        check_fork(self.born, &self.path)?;
        py.detach(|| self.lock().as_ref().map(StoreWriter::records)).ok_or_else(|| {
            PyRuntimeError::new_err(format!("{}: the writer is closed", self.path.display()))
        })
    }

    /// Publishes the store; a second time does nothing.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        check_fork(self.born, &self.path)?;
        let done = py.detach(|| {
            let Some(writer) = self.lock().take() else { return Ok(Ok(())) };
            pool().map(|pool| pool.install(|| writer.finish()))
        });
        let done = done.map_err(|e| errors::os(&self.path, "cannot start threads", &e))?;
        done.map_err(|e| errors::store(py, &e))
    }

    /// Ends it without a store, but in a child, where it is the parent's. Whether it was ended.
    fn abort(&self, py: Python<'_>) -> bool {
        if self.born != sys::generation() {
            return false;
        }
        py.detach(|| drop(self.lock().take()));
        true
    }
}

/// Numbers of a C-ordered tensor of 4 or 8 bytes each, as u64.
fn numbers(tensor: &Tensor, name: &str, want: DType) -> Result<Vec<u64>, String> {
    // Shapes of 32 bits are what loaderx 2.8.19 gives.
    let fits = tensor.dtype == want || want == DType::UInt64 && tensor.dtype == DType::UInt32;
    if !fits {
        return Err(format!("{name} are {want}, not {}", tensor.dtype));
    }
    let bytes = tensor.memory.bytes();
    Ok(match tensor.dtype.size() {
        4 => bytes
            .chunks_exact(4)
            .map(|b| i64::from(i32::from_le_bytes([b[0], b[1], b[2], b[3]])) as u64)
            .map(|n| if tensor.dtype == DType::UInt32 { n & 0xffff_ffff } else { n })
            .collect(),
        _ => bytes
            .chunks_exact(8)
            .map(|b| u64::from_le_bytes([b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7]]))
            .collect(),
    })
}

/// Whether the offsets begin at 0, span all values and agree with each record's shape.
fn check_offsets(
    cu: &[u64],
    shapes: &[u64],
    rows: usize,
    ndim: usize,
    values: i64,
) -> Result<(), String> {
    if cu.len() != rows + 1 {
        return Err(format!("{rows} records have {} cu_seqlens, not {}", rows + 1, cu.len()));
    }
    if cu[0] != 0 {
        return Err(format!("cu_seqlens begin with 0, not {}", cu[0] as i64));
    }
    for (i, (ends, shape)) in cu.windows(2).zip(shapes.chunks_exact(ndim)).enumerate() {
        let len = shape.iter().try_fold(1u64, |n, d| n.checked_mul(*d));
        if ends[1] as i64 >= ends[0] as i64 && len == Some(ends[1] - ends[0]) {
            continue;
        }
        return Err(format!(
            "record {i} goes from {} to {}, which is not its shape {shape:?}",
            ends[0] as i64, ends[1] as i64
        ));
    }
    if cu[rows] as i64 != values {
        return Err(format!(
            "cu_seqlens end at {}, but there are {values} values",
            cu[rows] as i64
        ));
    }
    Ok(())
}

/// A dataset that is being written: stores in one folder that are published together.
#[pyclass(frozen, module = "batchfs._native")]
pub struct DatasetWriter {
    writer: Mutex<Option<Dataset>>,
    path: PathBuf,
    born: u64,
}

impl DatasetWriter {
    fn lock(&self) -> MutexGuard<'_, Option<Dataset>> {
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed(&self) -> PyErr {
        PyRuntimeError::new_err(format!("{}: the writer is closed", self.path.display()))
    }
}

#[pymethods]
impl DatasetWriter {
    #[new]
    fn new(py: Python<'_>, path: PathBuf) -> PyResult<DatasetWriter> {
        let made = Dataset::create(&path).map_err(|e| errors::store(py, &e))?;
        Ok(DatasetWriter { writer: Mutex::new(Some(made)), path, born: sys::generation() })
    }

    /// A writer for one stream of it.
    fn stream(
        &self,
        py: Python<'_>,
        name: &str,
        dtype: &str,
        item_shape: Option<Vec<u64>>,
        ndim: u32,
        codec: &str,
    ) -> PyResult<Writer> {
        check_fork(self.born, &self.path)?;
        let schema = schema(dtype, item_shape, ndim)?;
        let options = WriteOptions { codec: self::codec(codec)?, ..WriteOptions::default() };
        let mut dataset = self.lock();
        let dataset = dataset.as_mut().ok_or_else(|| self.closed())?;
        let made = dataset.stream(name, schema.clone(), options);
        let writer = made.map_err(|e| errors::store(py, &e))?;
        let path = self.path.join(name);
        Ok(Writer { writer: Mutex::new(Some(writer)), schema, path, born: self.born })
    }

    /// Gives the folder its name; all its streams have been finished.
    fn publish(&self, py: Python<'_>) -> PyResult<()> {
        check_fork(self.born, &self.path)?;
        let dataset = self.lock().take().ok_or_else(|| self.closed())?;
        py.detach(|| dataset.publish()).map_err(|e| errors::store(py, &e))
    }

    /// Ends it without a dataset, but in a child, where it is the parent's.
    fn abort(&self, py: Python<'_>) {
        if self.born != sys::generation() {
            return;
        }
        py.detach(|| drop(self.lock().take()));
    }
}

fn schema(dtype: &str, item_shape: Option<Vec<u64>>, ndim: u32) -> PyResult<Schema> {
    let dtype = dtypes::named(dtype)?;
    Ok(match item_shape {
        Some(shape) => Schema::dense(dtype, shape),
        None => Schema::ragged(dtype, ndim),
    })
}

fn codec(name: &str) -> PyResult<Codec> {
    name.parse().map_err(|e: batchfs_store::UnknownCodec| PyValueError::new_err(e.to_string()))
}

/// A tensor of any maker, in C order, as a `DLTensor` for the processor: it shares the memory, but where
/// a GPU's has to be copied.
#[pyfunction]
pub fn as_tensor(value: &Bound<'_, PyAny>) -> PyResult<DLTensor> {
    input(value).map(DLTensor)
}

/// The records of a ragged batch, each in its shape.
#[pyfunction]
pub fn split(
    values: &Bound<'_, PyAny>,
    cu_seqlens: &Bound<'_, PyAny>,
    shapes: &Bound<'_, PyAny>,
) -> PyResult<Vec<DLTensor>> {
    let (cu, shapes) = (input(cu_seqlens)?, input(shapes)?);
    // Tensors of ours stay where they are; only offsets and shapes are read.
    let ours = values.cast::<DLTensor>().ok();
    let other = if ours.is_none() { Some(input(values)?) } else { None };
    let Some(values) = ours.map(|t| &t.get().0).or(other.as_ref()) else {
        return Err(PyTypeError::new_err("values are a tensor"));
    };
    let wrong = |why: String| PyValueError::new_err(why);
    let (rows, ndim) = match &*shapes.shape {
        [rows, ndim] if *ndim > 0 => (*rows as usize, *ndim as usize),
        other => return Err(wrong(format!("shapes are (records, axes), not {other:?}"))),
    };
    let cu = numbers(&cu, "cu_seqlens", DType::Int32).map_err(wrong)?;
    let shapes = numbers(&shapes, "shapes", DType::UInt64).map_err(wrong)?;
    check_offsets(&cu, &shapes, rows, ndim, values.shape.first().copied().unwrap_or(0))
        .map_err(wrong)?;
    let each = cu.iter().zip(shapes.chunks_exact(ndim)).map(|(from, shape)| {
        let shape = shape.iter().map(|n| *n as i64).collect();
        values.part(*from as usize, shape).map(DLTensor)
    });
    each.collect::<Option<_>>().ok_or_else(|| wrong("the records do not lie within values".into()))
}

/// Trains a dictionary on a view: its bytes, and why it does not pay if so.
#[pyfunction]
pub fn train_dict<'py>(
    view: &Bound<'py, PyAny>,
    size: usize,
) -> PyResult<(Bound<'py, PyBytes>, Option<String>)> {
    let py = view.py();
    let bind = crate::view::bind_of(view)
        .ok_or_else(|| PyTypeError::new_err("train_dict takes a DenseView or RaggedView"))?;
    let stream = bind.store.stream()?;
    let trained = py.detach(|| batchfs_store::train_dict(&**stream, size));
    let trained = trained.map_err(|e| errors::store(py, &e))?;
    let warning = trained.warning();
    Ok((PyBytes::new(py, &trained.bytes), warning))
}
