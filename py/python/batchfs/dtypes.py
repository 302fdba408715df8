"""The dtypes that records may have: NumPy's, and those of ``ml_dtypes``.

``batchfs.dtypes.float32`` and so on are ``numpy.dtype`` objects, to be passed wherever a dtype is
wanted.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

bool = np.dtype(np.bool_)
int8 = np.dtype(np.int8)
int16 = np.dtype(np.int16)
int32 = np.dtype(np.int32)
int64 = np.dtype(np.int64)
uint8 = np.dtype(np.uint8)
uint16 = np.dtype(np.uint16)
uint32 = np.dtype(np.uint32)
uint64 = np.dtype(np.uint64)
float16 = np.dtype(np.float16)
float32 = np.dtype(np.float32)
float64 = np.dtype(np.float64)
bfloat16 = np.dtype(ml_dtypes.bfloat16)
complex64 = np.dtype(np.complex64)
complex128 = np.dtype(np.complex128)
float8_e4m3fn = np.dtype(ml_dtypes.float8_e4m3fn)
float8_e4m3fnuz = np.dtype(ml_dtypes.float8_e4m3fnuz)
float8_e5m2 = np.dtype(ml_dtypes.float8_e5m2)
float8_e5m2fnuz = np.dtype(ml_dtypes.float8_e5m2fnuz)
float8_e8m0fnu = np.dtype(ml_dtypes.float8_e8m0fnu)

supported = (
    bool,
    int8,
    int16,
    int32,
    int64,
    uint8,
    uint16,
    uint32,
    uint64,
    float16,
    float32,
    float64,
    bfloat16,
    complex64,
    complex128,
    float8_e4m3fn,
    float8_e4m3fnuz,
    float8_e5m2,
    float8_e5m2fnuz,
    float8_e8m0fnu,
)
"""All of them."""

_BY_NAME = {dtype.name: dtype for dtype in supported}
_FOREIGN = {dtype for dtype in supported if dtype.type.__module__.startswith("ml_dtypes")}

__all__ = [
    "supported",
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "float16",
    "float32",
    "float64",
    "bfloat16",
    "complex64",
    "complex128",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
]


def _name(value: Any) -> str:
    """The canonical name of what a user passed as a dtype.

    Raises ``TypeError`` for what is none of ours: other byte orders, structures, objects, strings.
    """
    if isinstance(value, str) and value in _BY_NAME:
        return value
    try:
        if value is None:  # which NumPy takes for float64
            raise TypeError
        dtype = np.dtype(value)
    except (TypeError, ValueError):
        raise TypeError(f"{value!r} is no dtype; batchfs.dtypes has those there are") from None
    if not dtype.isnative:
        raise TypeError(f"dtype {dtype} has another byte order than this machine")
    if dtype.metadata is not None or dtype.name not in _BY_NAME or dtype.subdtype is not None:
        raise TypeError(f"dtype {dtype!r} is not supported; batchfs.dtypes has those that are")
    return dtype.name


# From 2.5 on NumPy can be told which DLPack dtypes belong to ml_dtypes.
_register = getattr(np.dtypes, "register_dlpack_dtype", None) if hasattr(np, "dtypes") else None
_CODES = {
    "bfloat16": (4, 16),
    "float8_e4m3fn": (10, 8),
    "float8_e4m3fnuz": (11, 8),
    "float8_e5m2": (12, 8),
    "float8_e5m2fnuz": (13, 8),
    "float8_e8m0fnu": (14, 8),
}
if _register is not None:
    for _known, _code in _CODES.items():
        _register(_code, _BY_NAME[_known])
