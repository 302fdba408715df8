//! Which records an index means.

use std::path::Path;

use numpy::{PyArray1, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyIndexError, PyTypeError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyInt, PyList, PySlice, PyTuple};

use crate::sys::indices;

/// Whether it stands for one integer: NumPy's scalars do, and arrays of any library without axes.
fn is_scalar(index: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = index.py();
    if index.is_instance_of::<PyTuple>() || index.is_instance_of::<PyList>() {
        return Ok(false);
    }
    let kind = index.get_type().name()?;
    if kind == "bool" || kind == "bool_" {
        // NumPy's own, which its old versions take for integers.
        return Err(PyTypeError::new_err("a bool is no record index"));
    }
    if !index.hasattr(intern!(py, "__index__"))? {
        return Ok(false);
    }
    match index.getattr_opt(intern!(py, "ndim"))? {
        Some(axes) => axes.eq(0),
        None => Ok(!index.hasattr(intern!(py, "__len__"))?),
    }
}

/// What is indexed: how many records there are, and where, for messages.
#[derive(Clone, Copy)]
pub struct Records<'a> {
    pub path: &'a Path,
    pub len: u64,
}

/// The records of an index.
pub enum Wanted {
    One(u64),
    Many(Vec<u64>),
}

impl Records<'_> {
    /// An integer is one record; slices, sequences and arrays of integers and boolean masks are
    /// several. Negative integers count from the end.
    ///
    /// # Errors
    /// `IndexError` out of range, for a mask of another length and for more than one axis;
    /// `TypeError` for what is no index.
    pub fn of(self, index: &Bound<'_, PyAny>) -> PyResult<Wanted> {
        if index.is_exact_instance_of::<PyInt>() {
            return self.one(index).map(Wanted::One);
        }
        if index.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err("a bool is no record index"));
        }
        if let Ok(array) = index.cast::<PyUntypedArray>() {
            return if array.ndim() == 0 && array.dtype().kind() != b'b' {
                self.one(index).map(Wanted::One)
            } else {
                self.array(array).map(Wanted::Many)
            };
        }
        if let Ok(slice) = index.cast::<PySlice>() {
            return self.slice(slice).map(Wanted::Many);
        }
        if is_scalar(index)? {
            self.one(index).map(Wanted::One)
        } else {
            self.many(index).map(Wanted::Many)
        }
    }

    /// As [`of`](Self::of), for what is never a single record.
    ///
    /// # Errors
    /// As there.
    pub fn many(self, index: &Bound<'_, PyAny>) -> PyResult<Vec<u64>> {
        if let Ok(array) = index.cast::<PyUntypedArray>() {
            return self.array(array);
        }
        if let Some(ids) = self.plain(index)? {
            return Ok(ids);
        }
        if let Ok(slice) = index.cast::<PySlice>() {
            return self.slice(slice);
        }
        let py = index.py();
        let made =
            py.import(intern!(py, "numpy"))?.call_method1(intern!(py, "asarray"), (index,))?;
        let array = made.cast_into::<PyUntypedArray>()?;
        if array.is_empty() && array.dtype().kind() == b'f' {
            // What NumPy makes of an empty list.
            return Ok(Vec::new());
        }
        self.array(&array)
    }

    fn one(self, index: &Bound<'_, PyAny>) -> PyResult<u64> {
        match index.extract::<i64>() {
            Ok(i) => self.check(i),
            Err(e) if e.is_instance_of::<pyo3::exceptions::PyOverflowError>(index.py()) => {
                Err(self.outside(index))
            }
            Err(e) => Err(e),
        }
    }

    #[inline]
    fn check(self, i: i64) -> PyResult<u64> {
        let at = if i < 0 { i128::from(i) + i128::from(self.len) } else { i128::from(i) };
        match u64::try_from(at) {
            Ok(at) if at < self.len => Ok(at),
            _ => Err(self.outside(i)),
        }
    }

    fn outside(self, i: impl std::fmt::Display) -> PyErr {
        PyIndexError::new_err(format!(
            "{}: record index {i} is out of range; there are {} records",
            self.path.display(),
            self.len
        ))
    }

    fn slice(self, slice: &Bound<'_, PySlice>) -> PyResult<Vec<u64>> {
        let cut = slice.indices(self.len as isize)?;
        let at = |k: usize| (cut.start + k as isize * cut.step) as u64;
        Ok((0..cut.slicelength).map(at).collect())
    }

    /// A list or tuple of nothing but plain integers, the usual case.
    fn plain(self, index: &Bound<'_, PyAny>) -> PyResult<Option<Vec<u64>>> {
        let ids = if let Ok(tuple) = index.cast::<PyTuple>() {
            self.each(tuple.iter(), tuple.len())
        } else if let Ok(list) = index.cast::<PyList>() {
            self.each(list.iter(), list.len())
        } else {
            return Ok(None);
        };
        ids.transpose()
    }

    fn each<'py>(
        self,
        items: impl Iterator<Item = Bound<'py, PyAny>>,
        count: usize,
    ) -> Option<PyResult<Vec<u64>>> {
        let mut ids = Vec::with_capacity(count);
        for item in items {
            if !item.is_exact_instance_of::<PyInt>() {
                return None;
            }
            match self.one(&item) {
                Ok(id) => ids.push(id),
                Err(e) => return Some(Err(e)),
            }
        }
        Some(Ok(ids))
    }

    fn array(self, array: &Bound<'_, PyUntypedArray>) -> PyResult<Vec<u64>> {
        let kind = array.dtype().kind();
        if !matches!(kind, b'i' | b'u' | b'b') {
            return Err(PyTypeError::new_err(format!(
                "record indices are integers or a mask of bools, not {}",
                array.dtype()
            )));
        }
        if array.ndim() != 1 {
            return Err(PyIndexError::new_err(format!(
                "record indices have one axis, not {}",
                array.ndim()
            )));
        }
        if let Ok(ids) = array.cast::<PyArray1<u64>>() {
            let ids = indices(ids);
            return match ids.iter().find(|id| **id >= self.len) {
                Some(id) => Err(self.outside(id)),
                None => Ok(ids),
            };
        }
        if let Ok(ids) = array.cast::<PyArray1<i64>>() {
            return indices(ids).into_iter().map(|i| self.check(i)).collect();
        }
        if kind == b'b' {
            return self.mask(array);
        }
        let wide = if kind == b'i' { "int64" } else { "uint64" };
        let wide = array.call_method1(intern!(array.py(), "astype"), (wide,))?;
        self.array(wide.cast::<PyUntypedArray>()?)
    }

    fn mask(self, array: &Bound<'_, PyUntypedArray>) -> PyResult<Vec<u64>> {
        if array.len() as u64 != self.len {
            return Err(PyIndexError::new_err(format!(
                "{}: a mask has one bool per record, {}, not {}",
                self.path.display(),
                self.len,
                array.len()
            )));
        }
        let mask = indices(array.cast::<PyArray1<bool>>()?);
        Ok(mask.iter().zip(0..).filter_map(|(on, id)| on.then_some(id)).collect())
    }
}
