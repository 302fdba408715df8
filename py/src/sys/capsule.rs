//! DLPack capsules, both ways.

use std::ffi::{CStr, c_void};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use batchfs_dmabuf::hip::DeviceBytes;
use batchfs_store::DType;
use pyo3::exceptions::{PyBufferError, PyTypeError, PyValueError};
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use super::dlpack::{
    DataType, Device, IS_COPIED, Managed, ManagedVersioned, READ_ONLY, RawTensor, Version, code_of,
    dtype_of,
};
use super::memory::{Memory, of_device};
use crate::tensor::{Tensor, elements};

const LEGACY: &CStr = c"dltensor";
const LEGACY_USED: &CStr = c"used_dltensor";
const VERSIONED: &CStr = c"dltensor_versioned";
const VERSIONED_USED: &CStr = c"used_dltensor_versioned";

/// What a capsule owns until its consumer calls the deleter: the structure, its arrays, the memory.
struct Exported<T> {
    managed: T,
    shape: Box<[i64]>,
    strides: Box<[i64]>,
    memory: Memory,
}

trait Structure: Sized {
    fn tensor(&mut self) -> &mut RawTensor;
    fn set_context(&mut self, context: *mut c_void);
}

impl Structure for Managed {
    fn tensor(&mut self) -> &mut RawTensor {
        &mut self.tensor
    }
    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }
}

impl Structure for ManagedVersioned {
    fn tensor(&mut self) -> &mut RawTensor {
        &mut self.tensor
    }
    fn set_context(&mut self, context: *mut c_void) {
        self.context = context;
    }
}

/// Frees an export. On any thread, with or without the interpreter: there is no Python object in it.
unsafe extern "C" fn free(managed: *mut Managed) {
    // SAFETY: the context is the box that `owned` leaked, and a deleter is called once.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Exported<Managed>>()) });
}

unsafe extern "C" fn free_versioned(managed: *mut ManagedVersioned) {
    // SAFETY: as above.
    drop(unsafe { Box::from_raw((*managed).context.cast::<Exported<ManagedVersioned>>()) });
}

/// Frees what nobody has consumed; a consumer renames the capsule.
unsafe extern "C" fn dropped(capsule: *mut ffi::PyObject) {
    // SAFETY: called by Python with the capsule; its name is compared before the pointer is taken.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule, LEGACY.as_ptr()) == 1 {
            free(ffi::PyCapsule_GetPointer(capsule, LEGACY.as_ptr()).cast());
        } else if ffi::PyCapsule_IsValid(capsule, VERSIONED.as_ptr()) == 1 {
            free_versioned(ffi::PyCapsule_GetPointer(capsule, VERSIONED.as_ptr()).cast());
        }
    }
}

/// Leaks the structure with all that it points to.
fn owned<T: Structure>(managed: T, tensor: &Tensor) -> *mut T {
    let mut exported = Box::new(Exported {
        managed,
        shape: tensor.shape.clone(),
        strides: tensor.strides(),
        memory: tensor.memory.clone(),
    });
    let Exported { managed, shape, strides, memory } = &mut *exported;
    *managed.tensor() = RawTensor {
        data: memory.device_at().cast(),
        device: memory.device(),
        ndim: shape.len() as i32,
        dtype: data_type(tensor.dtype),
        shape: shape.as_mut_ptr(),
        strides: strides.as_mut_ptr(),
        byte_offset: 0,
    };
    let at = Box::into_raw(exported);
    // SAFETY: leaked just now; the structure is a field of it and neither moves.
    unsafe {
        (*at).managed.set_context(at.cast());
        &raw mut (*at).managed
    }
}

fn data_type(dtype: DType) -> DataType {
    let (code, bits) = code_of(dtype);
    DataType { code, bits, lanes: 1 }
}

fn nothing() -> RawTensor {
    RawTensor {
        data: ptr::null_mut(),
        device: Device::CPU,
        ndim: 0,
        dtype: DataType { code: 0, bits: 0, lanes: 0 },
        shape: ptr::null_mut(),
        strides: ptr::null_mut(),
        byte_offset: 0,
    }
}

/// A capsule with the tensor: of DLPack 1.x with that minor version, or of 0.x.
///
/// # Errors
/// If Python has no memory.
pub fn export<'py>(
    py: Python<'py>,
    tensor: &Tensor,
    minor: Option<u32>,
    copied: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (at, name): (*mut c_void, _) = match minor {
        None => {
            let managed =
                Managed { tensor: nothing(), context: ptr::null_mut(), deleter: Some(free) };
            (owned(managed, tensor).cast(), LEGACY)
        }
        Some(minor) => {
            let flags = if tensor.readonly { READ_ONLY } else { 0 };
            let managed = ManagedVersioned {
                version: Version { major: 1, minor },
                context: ptr::null_mut(),
                deleter: Some(free_versioned),
                flags: flags | if copied { IS_COPIED } else { 0 },
                tensor: nothing(),
            };
            (owned(managed, tensor).cast(), VERSIONED)
        }
    };
    // SAFETY: the name is static, the pointer not null; `dropped` frees it if nobody takes it. When
    // there is no capsule, an exception is set and the structure is leaked, in want of memory.
    unsafe {
        let capsule = ffi::PyCapsule_New(at, name.as_ptr(), Some(dropped));
        Bound::from_owned_ptr_or_err(py, capsule)
    }
}

/// A foreign structure, given back to its maker when dropped.
enum Foreign {
    Legacy(NonNull<Managed>),
    Versioned(NonNull<ManagedVersioned>),
}

// SAFETY: DLPack has deleters be callable from any thread.
unsafe impl Send for Foreign {}
// SAFETY: nothing is done through shared references.
unsafe impl Sync for Foreign {}

impl Drop for Foreign {
    fn drop(&mut self) {
        // SAFETY: taken out of a capsule, which was renamed, so that this is the one call.
        unsafe {
            match self {
                Foreign::Legacy(m) => {
                    if let Some(deleter) = m.as_ref().deleter {
                        deleter(m.as_ptr());
                    }
                }
                Foreign::Versioned(m) => {
                    if let Some(deleter) = m.as_ref().deleter {
                        deleter(m.as_ptr());
                    }
                }
            }
        }
    }
}

/// Takes the tensor that `producer` exports, in C order. One of a GPU of AMD's is mapped for the processor, or
/// copied where that cannot be.
///
/// # Errors
/// `TypeError` if it exports none, `ValueError` for another device, order or dtype; the producer's
/// own (`BufferError` …); `RuntimeError` if the processor cannot read a GPU's memory.
pub fn import(producer: &Bound<'_, PyAny>) -> PyResult<Tensor> {
    let capsule = capsule_of(producer)?;
    let name = |name| capsule.is_valid_checked(Some(name));
    let (foreign, used) = if name(VERSIONED) {
        (Foreign::Versioned(capsule.pointer_checked(Some(VERSIONED))?.cast()), VERSIONED_USED)
    } else if name(LEGACY) {
        (Foreign::Legacy(capsule.pointer_checked(Some(LEGACY))?.cast()), LEGACY_USED)
    } else {
        return Err(PyValueError::new_err(
            "__dlpack__ returned something else than an unused DLPack capsule",
        ));
    };
    // SAFETY: a capsule; the name is static. From here on the structure is ours to delete.
    if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
        std::mem::forget(foreign);
        return Err(PyErr::fetch(producer.py()));
    }
    // SAFETY: a structure of this kind, by the capsule's name; alive until `foreign` is dropped.
    let (raw, readonly) = unsafe {
        match &foreign {
            Foreign::Legacy(m) => (&m.as_ref().tensor, false),
            Foreign::Versioned(m) => {
                let m = m.as_ref();
                if m.version.major != 1 {
                    let major = m.version.major;
                    let why =
                        format!("DLPack version {major}.x is not known here, 0.x and 1.x are");
                    return Err(PyBufferError::new_err(why));
                }
                (&m.tensor, m.flags & READ_ONLY != 0)
            }
        }
    };
    if !raw.device.is_host() && raw.device.kind != Device::ROCM {
        return Err(PyValueError::new_err(format!(
            "the tensor is on DLPack device ({}, {}), whose memory cannot be read here; move it to the CPU first, with .cpu()",
            raw.device.kind, raw.device.id
        )));
    }
    let dtype = (raw.dtype.lanes == 1)
        .then(|| dtype_of(raw.dtype.code, raw.dtype.bits))
        .flatten()
        .ok_or_else(|| {
            PyTypeError::new_err(format!(
                "DLPack dtype (code={}, bits={}, lanes={}) is none of batchfs.dtypes",
                raw.dtype.code, raw.dtype.bits, raw.dtype.lanes
            ))
        })?;
    let ndim = raw.ndim.max(0) as usize;
    let shape: Box<[i64]> = match ndim {
        0 => Box::default(),
        // SAFETY: DLPack has `ndim` numbers there; with none the pointers may be null.
        _ => unsafe { std::slice::from_raw_parts(raw.shape, ndim) }.into(),
    };
    if ndim > 0 && !raw.strides.is_null() {
        // SAFETY: as above.
        let strides = unsafe { std::slice::from_raw_parts(raw.strides, ndim) };
        if !is_c_order(&shape, strides) {
            return Err(PyValueError::new_err("the tensor is not C-contiguous"));
        }
    }
    let bytes = elements(&shape)
        .and_then(|n| n.checked_mul(dtype.size()))
        .ok_or_else(|| PyValueError::new_err("the tensor has an impossible shape"))?;
    let at = match NonNull::new(raw.data.cast::<u8>()) {
        // SAFETY: DLPack has the first element at that offset.
        Some(at) => unsafe { at.add(raw.byte_offset as usize) },
        None if bytes == 0 => NonNull::dangling(),
        None => return Err(PyValueError::new_err("the tensor has no memory")),
    };
    if raw.device.kind == Device::ROCM {
        let py = producer.py();
        let device = crate::gpu::device(py, raw.device.id)?;
        // SAFETY: so many bytes lie there on the device until the structure is deleted, which is
        // after what is made here.
        let there = unsafe { DeviceBytes::new(at.as_ptr() as usize, bytes) };
        let read = py.detach(|| device.read(&there));
        let read = read.map_err(|e| crate::errors::gpu(&e.into()))?;
        let memory = of_device(read, bytes, foreign);
        return Ok(Tensor { memory, dtype, shape, readonly: true });
    }
    // SAFETY: so many bytes lie there, in C order, until the structure is deleted.
    let memory = unsafe { Memory::new(at, bytes, Arc::new(foreign)) };
    Ok(Tensor { memory, dtype, shape, readonly })
}

/// Axes of one element may have any stride.
fn is_c_order(shape: &[i64], strides: &[i64]) -> bool {
    let mut want = 1;
    shape.contains(&0)
        || shape.iter().zip(strides).rev().all(|(n, stride)| {
            let fits = *n == 1 || *stride == want;
            want *= n;
            fits
        })
}

/// Asks for the newest version that is known here; older producers take fewer arguments, or none.
///
/// A producer on a GPU is told to make the legacy default stream wait for its work, as we wait for the
/// whole device.
fn capsule_of<'py>(producer: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyCapsule>> {
    let py = producer.py();
    let kwargs = PyDict::new(py);
    if device_kind(producer)? == Some(Device::ROCM) {
        kwargs.set_item(intern!(py, "stream"), 0)?;
    }
    let method = producer.getattr(intern!(py, "__dlpack__"))?;
    let plain = kwargs.copy()?;
    kwargs.set_item(intern!(py, "max_version"), (1, 1))?;
    let refused = |e: &PyErr| e.is_instance_of::<PyTypeError>(py);
    let made = method.call((), Some(&kwargs));
    let made = match made {
        Err(e) if refused(&e) => method.call((), Some(&plain)),
        made => made,
    };
    let made = match made {
        Err(e) if refused(&e) && !plain.is_empty() => method.call0()?,
        made => made?,
    };
    Ok(made.cast_into::<PyCapsule>()?)
}

fn device_kind(producer: &Bound<'_, PyAny>) -> PyResult<Option<i32>> {
    let py = producer.py();
    let Some(method) = producer.getattr_opt(intern!(py, "__dlpack_device__"))? else {
        return Ok(None);
    };
    // The kind may be an enumeration's member.
    let device = method.call0()?;
    Ok(device.get_item(0)?.call_method0(intern!(py, "__index__"))?.extract().ok())
}
