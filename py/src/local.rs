//! Records of a mount that this process reads by itself.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use batchfs_batch::stamp;
use batchfs_region::Pool;
use batchfs_sampler::{Sampler, Spec};
use batchfs_store::{DType, OpenOptions, Stream, Verify};
use pyo3::prelude::*;

use crate::gather::{Part, gather};
use crate::room::Room;
use crate::view::object;

/// Larger batches are the daemon's to make: it has done so when they are asked for. What is smaller
/// takes less time to be copied than to be handed over from one process to another.
const MOST: u64 = 1 << 20;

/// What is kept of memory that comes back, in batches.
const KEEP: u64 = 16;

/// One stream of a mount, in its order, read where the mount reads it.
#[pyclass(frozen, module = "batchfs._native")]
pub struct Local {
    stream: Box<dyn Stream>,
    order: Sampler,
    room: Room,
    mount: PathBuf,
    device: u64,
}

impl Local {
    fn open(
        mount: PathBuf,
        path: &Path,
        told: &str,
        dtype: &str,
        records: u64,
        spec: &str,
    ) -> Option<Local> {
        let device = mount.metadata().ok()?.dev();
        let spec: Spec = spec.parse().ok()?;
        if stamp(path)? != told {
            return None;
        }
        let dtype: DType = dtype.parse().ok()?;
        let options = OpenOptions::verify(Verify::First);
        let stream = batchfs_source::open_path_as(path, &options, Some(dtype)).ok()?;
        // What was opened is what was looked at before.
        if stamp(path)? != told || stream.len() != records || stream.decodes() {
            return None;
        }
        let order = Sampler::new(spec, records).ok()?;
        let each = stream.payload_bytes() / records.max(1);
        let batch = each.saturating_mul(order.local_batch());
        if !(1..=MOST).contains(&batch) {
            return None;
        }
        let room = Room::Host(Pool::new(KEEP * batch));
        Some(Local { stream, order, room, mount, device })
    }
}

#[pymethods]
impl Local {
    /// The stream at `path`, if it is the one that the mount tells of, its batches are small and its
    /// records lie there as they are; `None` otherwise.
    #[staticmethod]
    fn of(
        py: Python<'_>,
        mount: PathBuf,
        path: PathBuf,
        stamp: &str,
        dtype: &str,
        records: u64,
        spec: &str,
    ) -> Option<Local> {
        py.detach(|| Local::open(mount, &path, stamp, dtype, records, spec))
    }

    /// The batch of a step, in memory of its own; `None` if it cannot be read, or the mount is not there
    /// any more, which is the mount's to explain.
    fn batch(&self, py: Python<'_>, step: u64, write: bool) -> PyResult<Option<Py<PyAny>>> {
        let made = py.detach(|| {
            if self.mount.metadata().ok()?.dev() != self.device {
                return None;
            }
            let mut ids = vec![0; self.order.local_batch() as usize];
            self.order.ids(step, &mut ids);
            gather(&*self.stream, &ids, &self.room, false).ok()
        });
        let Some(mut part) = made else { return Ok(None) };
        match &mut part {
            Part::Dense(one) => one.readonly = !write,
            Part::Ragged(three) => three.iter_mut().for_each(|t| t.readonly = !write),
        }
        object(py, part).map(Some)
    }
}
