//! The structures of DLPack's C interface, versions 0.x and 1.x, and its codes for dtypes.

use std::ffi::c_void;

use batchfs_store::DType;

/// Where a tensor is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its kind.
    pub kind: i32,
    /// Which one of that kind.
    pub id: i32,
}

impl Device {
    /// The memory of the processor.
    pub const CPU: Device = Device { kind: 1, id: 0 };
    /// The kind of AMD's GPUs.
    pub const ROCM: i32 = 10;

    /// A GPU of AMD's.
    pub const fn rocm(id: i32) -> Device {
        Device { kind: Device::ROCM, id }
    }

    /// Whether the processor can read what is there: its own memory, and what CUDA and ROCm have
    /// pinned of it.
    pub(super) fn is_host(self) -> bool {
        matches!(self.kind, 1 | 3 | 11)
    }
}

#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DataType {
    pub code: u8,
    pub bits: u8,
    pub lanes: u16,
}

#[repr(C)]
pub(super) struct RawTensor {
    pub data: *mut c_void,
    pub device: Device,
    pub ndim: i32,
    pub dtype: DataType,
    pub shape: *mut i64,
    /// In elements; null means C order.
    pub strides: *mut i64,
    pub byte_offset: u64,
}

#[repr(C)]
pub(super) struct Managed {
    pub tensor: RawTensor,
    pub context: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut Managed)>,
}

#[repr(C)]
pub(super) struct Version {
    pub major: u32,
    pub minor: u32,
}

#[repr(C)]
pub(super) struct ManagedVersioned {
    pub version: Version,
    pub context: *mut c_void,
    pub deleter: Option<unsafe extern "C" fn(*mut ManagedVersioned)>,
    pub flags: u64,
    pub tensor: RawTensor,
}

pub(super) const READ_ONLY: u64 = 1;
pub(super) const IS_COPIED: u64 = 2;

/// Code and bits that DLPack has for a dtype.
pub fn code_of(dtype: DType) -> (u8, u8) {
    let code = match dtype {
        DType::Int8 | DType::Int16 | DType::Int32 | DType::Int64 => 0,
        DType::UInt8 | DType::UInt16 | DType::UInt32 | DType::UInt64 => 1,
        DType::Float16 | DType::Float32 | DType::Float64 => 2,
        DType::BFloat16 => 4,
        DType::Complex64 | DType::Complex128 => 5,
        DType::Bool => 6,
        DType::Float8E4M3FN => 10,
        DType::Float8E4M3FNUZ => 11,
        DType::Float8E5M2 => 12,
        DType::Float8E5M2FNUZ => 13,
        DType::Float8E8M0FNU => 14,
    };
    (code, 8 * dtype.size() as u8)
}

/// The dtype that has this code, if there is one.
pub fn dtype_of(code: u8, bits: u8) -> Option<DType> {
    DType::ALL.iter().copied().find(|d| code_of(*d) == (code, bits))
}
