//! The compiled half of the Python package `batchfs`; see python/batchfs.

mod allocator;
mod draw;
mod dtypes;
mod errors;
mod feed;
mod gather;
mod gpu;
mod index;
mod input;
mod local;
mod mapped;
mod numbers;
mod pack;
mod pipeline;
mod reader;
mod room;
mod sampler;
mod service;
mod shards;
mod store;
mod sys;
mod tensor;
mod tokens;
mod view;
mod writer;

use std::ffi::OsString;
use std::process::ExitCode;

use pyo3::prelude::*;

/// Runs the command line `args`; `program` starts it again, for a mount in the background. Returns
/// the exit code.
#[pyfunction]
fn command_line(py: Python<'_>, program: Vec<OsString>, args: Vec<OsString>) -> u8 {
    let code = py.detach(|| batchfs_tools::run(Some(program), args));
    // There is no other way to its number.
    (0..=u8::MAX).find(|n| ExitCode::from(*n) == code).unwrap_or(1)
}

#[pymodule(name = "_native", gil_used = false)]
mod native {
    #[pymodule_export]
    use super::allocator::{Allocation, Allocator};
    #[pymodule_export]
    use super::command_line;
    #[pymodule_export]
    use super::input::{as_tensor, split};
    #[pymodule_export]
    use super::local::Local;
    #[pymodule_export]
    use super::mapped::{map_dense, map_parts, map_ragged};
    #[pymodule_export]
    use super::pack::pack;
    #[pymodule_export]
    use super::pipeline::Pipeline;
    #[pymodule_export]
    use super::sampler::{Steps, parse_lanes, parse_spec};
    #[pymodule_export]
    use super::service::{Export, Service};
    #[pymodule_export]
    use super::store::{Store, train_dict};
    #[pymodule_export]
    use super::tensor::DLTensor;
    #[pymodule_export]
    use super::tokens::{TokenBatch, TokenSource, merge};
    #[pymodule_export]
    use super::view::{DenseView, RaggedFields, RaggedView, Walk};
    #[pymodule_export]
    use super::writer::{DatasetWriter, Writer};

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::sys::watch_forks()?;
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
