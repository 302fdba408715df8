//! Integers that are given, within their range: what `_numbers.py` has for Python code.

use pyo3::exceptions::{PyOverflowError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyBool;

/// A number from 0 to `most`.
///
/// # Errors
/// `TypeError` for what is no integer, `ValueError` with name and range for others.
pub fn integer(value: &Bound<'_, PyAny>, name: &str, most: u64) -> PyResult<u64> {
    if value.is_instance_of::<PyBool>() {
        return Err(PyTypeError::new_err(format!("{name} is an integer, not {value}")));
    }
    match value.extract::<u64>() {
        Ok(number) if number <= most => return Ok(number),
        Ok(_) => {}
        Err(e) if e.is_instance_of::<PyOverflowError>(value.py()) => {}
        Err(_) => {
            let kind = value.get_type();
            return Err(PyTypeError::new_err(format!("{name} is an integer, not a {kind}")));
        }
    }
    // Python spells no integers of thousands of digits.
    let shown = value.str().map_or_else(|_| "(more)".to_owned(), |text| text.to_string());
    let most = if most == u64::MAX { "2^64 - 1".to_owned() } else { most.to_string() };
    Err(PyValueError::new_err(format!("{name}={shown} is not valid; it is 0 to {most}")))
}
