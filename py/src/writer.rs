//! Stores and datasets that are being written.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use batchfs_store::{
    Codec, DType, DatasetWriter as Dataset, Layout, Schema, StoreWriter, WriteOptions,
};
use pyo3::exceptions::{PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::input::{check_offsets, input, numbers};
use crate::sys::{self, pool};
use crate::{dtypes, errors};

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
