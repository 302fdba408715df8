//! The streams of a `Loader`: from record ids to shards.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use batchfs_store::Stream;
use numpy::PyArray1;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::gather::Part;
use crate::index::Records;
use crate::room::Room;
use crate::view::{Bind, bind_of, object};

/// A view of ours, read without the interpreter, or any object with `__getitems__`.
enum Reader {
    Ours(Arc<Bind>),
    Theirs(Py<PyAny>),
}

/// A batch of one stream at one position.
pub enum Piece {
    Part(Part),
    Object(Py<PyAny>),
}

/// A batch of all streams at one position.
pub type Shard = Vec<Piece>;

/// Named streams, each with a view per position.
pub struct Readers {
    streams: Vec<(Py<PyAny>, Vec<Reader>)>,
    shards: usize,
    records: u64,
    record_bytes: u64,
    path: PathBuf,
}

impl Readers {
    /// Checks that the streams go together.
    ///
    /// # Errors
    /// `ValueError` for no streams, lists of different or no length, different numbers of records or
    /// none, and what is no view.
    pub fn new(streams: &Bound<'_, PyDict>) -> PyResult<Readers> {
        let py = streams.py();
        let mut made = Vec::new();
        let mut lengths: Vec<(String, u64)> = Vec::new();
        for (name, views) in streams {
            let views = views.cast_into::<PyList>().ok().filter(|views| !views.is_empty());
            let Some(views) = views else {
                return Err(PyValueError::new_err(format!(
                    "streams map names to lists of views; {name:?} has none"
                )));
            };
            let mut readers = Vec::new();
            for (i, view) in views.iter().enumerate() {
                let at = format!("{name}[{i}]");
                if let Some(bind) = bind_of(&view) {
                    lengths.push((at, bind.store.len));
                    readers.push(Reader::Ours(bind.clone()));
                    continue;
                }
                let is_view = view.hasattr(intern!(py, "__getitems__"))?
                    && view.hasattr(intern!(py, "__len__"))?
                    && !view.hasattr(intern!(py, "bind"))?
                    && !view.hasattr(intern!(py, "append"))?;
                if !is_view {
                    let why = format!(
                        "{at} is {}; streams are views, made by store.bind(allocator)",
                        view.get_type()
                    );
                    return Err(PyValueError::new_err(why));
                }
                lengths.push((at, view.len()? as u64));
                readers.push(Reader::Theirs(view.unbind()));
            }
            made.push((name.unbind(), readers));
        }
        let Some((_, first)) = made.first() else {
            return Err(PyValueError::new_err("there is no stream"));
        };
        let shards = first.len();
        if let Some((name, views)) = made.iter().find(|(_, views)| views.len() != shards) {
            return Err(PyValueError::new_err(format!(
                "streams have as many views as one another; {name} has {}, another one {shards}",
                views.len()
            )));
        }
        let records = lengths[0].1;
        if let Some((name, len)) = lengths.iter().find(|(_, len)| *len != records) {
            return Err(PyValueError::new_err(format!(
                "streams have as many records as one another; {name} has {len}, {} {records}",
                lengths[0].0
            )));
        }
        if records == 0 {
            return Err(PyValueError::new_err("the streams have no records"));
        }
        let path = made.iter().flat_map(|(_, readers)| readers).find_map(|reader| match reader {
            Reader::Ours(bind) => Some(bind.store.path.clone()),
            Reader::Theirs(_) => None,
        });
        let path = path.unwrap_or_else(|| Path::new("streams").to_owned());
        // Of ragged records the mean. All positions have the same records.
        let bytes = made.iter().filter_map(|(_, readers)| match readers.first() {
            Some(Reader::Ours(bind)) => Some(bind.store.payload / bind.store.len.max(1)),
            _ => None,
        });
        let record_bytes = bytes.sum();
        Ok(Readers { streams: made, shards, records, record_bytes, path })
    }

    pub fn shards(&self) -> usize {
        self.shards
    }

    pub fn records(&self) -> u64 {
        self.records
    }

    /// Bytes of a record of all streams.
    pub fn record_bytes(&self) -> u64 {
        self.record_bytes
    }

    pub fn indices(&self) -> Records<'_> {
        Records { path: &self.path, len: self.records }
    }

    /// The records `ids`, cut into one contiguous part per position. Called without the interpreter.
    ///
    /// # Errors
    /// `ValueError` if they do not divide; those of the views.
    pub fn gather(&self, ids: &[u64], split: bool) -> PyResult<Vec<Shard>> {
        if ids.is_empty() || !ids.len().is_multiple_of(self.shards) {
            return Err(PyValueError::new_err(format!(
                "the sampler drew {} records, which do not divide among {} views",
                ids.len(),
                self.shards
            )));
        }
        let each = ids.len() / self.shards;
        ids.chunks(each).enumerate().map(|(i, ids)| self.shard(i, ids, split)).collect()
    }

    fn shard(&self, position: usize, ids: &[u64], split: bool) -> PyResult<Shard> {
        let mut shard = Vec::with_capacity(self.streams.len());
        for (_, readers) in &self.streams {
            shard.push(match &readers[position] {
                Reader::Ours(bind) => {
                    let (stream, pool): (Arc<Box<dyn Stream>>, &Room) = bind.open()?;
                    let part = bind.gather(&**stream, pool, ids, split);
                    Piece::Part(part.map_err(|e| Python::attach(|py| e.raised(py)))?)
                }
                Reader::Theirs(view) => Piece::Object(Python::attach(|py| {
                    let ids = PyArray1::from_slice(py, ids);
                    view.call_method1(py, intern!(py, "__getitems__"), (ids,))
                })?),
            });
        }
        Ok(shard)
    }

    /// The shards as Python has them: `[{name: batch}, …]`.
    ///
    /// # Errors
    /// If Python has no memory.
    pub fn list<'py>(&self, py: Python<'py>, shards: Vec<Shard>) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for shard in shards {
            let dict = PyDict::new(py);
            for ((name, _), piece) in self.streams.iter().zip(shard) {
                let value = match piece {
                    Piece::Part(part) => object(py, part)?,
                    Piece::Object(value) => value,
                };
                dict.set_item(name, value)?;
            }
            list.append(dict)?;
        }
        Ok(list)
    }
}
