//! The GPU runtime of this process.

use std::path::PathBuf;

use batchfs_dmabuf::hip::{Device, DevicePool, Runtime};
use batchfs_dmabuf::render;
use pyo3::intern;
use pyo3::prelude::*;

use crate::errors;

/// Folders of packages that bring a HIP runtime of their own, below a folder of `sys.path`.
const BRING_ONE: [&str; 2] = ["torch/lib", "_rocm_sdk_core/lib"];

fn wheels(py: Python<'_>) -> PyResult<Vec<PathBuf>> {
    let path = py.import(intern!(py, "sys"))?.getattr(intern!(py, "path"))?;
    let mut found = Vec::new();
    for entry in path.try_iter()? {
        let Ok(entry) = entry?.extract::<PathBuf>() else { continue };
        if entry.is_absolute() {
            found.extend(BRING_ONE.iter().map(|name| entry.join(name)).filter(|f| f.is_dir()));
        }
    }
    Ok(found)
}

/// A device of HIP's. The runtime is loaded the first time.
///
/// # Errors
/// `RuntimeError` if there is no runtime, more than one, or no such device.
pub fn device(py: Python<'_>, id: i32) -> PyResult<Device> {
    let wheels = wheels(py)?;
    let made = py.detach(|| Device::new(Runtime::get(&wheels)?, id));
    made.map_err(|e| errors::gpu(&e.into()))
}

/// Memory for a device, of its own render node.
///
/// # Errors
/// `RuntimeError` if there is no such device, or its node cannot be used.
pub fn pool(py: Python<'_>, id: i32, keep: u64) -> PyResult<DevicePool> {
    let device = device(py, id)?;
    let node = py.detach(|| render::open_for(&device)).map_err(|e| errors::gpu(&e))?;
    Ok(DevicePool::new(device, node, keep))
}
