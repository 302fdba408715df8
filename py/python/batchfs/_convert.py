"""From a ``DLTensor`` to arrays of libraries that are imported when they are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from . import dtypes
from ._native import DLTensor

_VERSIONED = tuple(int(n) for n in np.__version__.split(".")[:2]) >= (2, 1)


class _Bytes:
    """Tells NumPy where a tensor's bytes are, and keeps them."""

    def __init__(self, tensor: DLTensor) -> None:
        self._tensor = tensor
        self.__array_interface__ = {
            "version": 3,
            "typestr": "|u1",
            "shape": (tensor.nbytes,),
            "data": (tensor._address, tensor.readonly),
        }


def to_numpy(tensor: DLTensor) -> np.ndarray:
    dtype = tensor.dtype
    if _VERSIONED and dtype not in dtypes._FOREIGN and tensor.device == (1, 0):
        return np.from_dlpack(tensor)
    # Older versions lack these dtypes, or take every tensor for read-only. A GPU's tensors are in
    # the processor's memory, too.
    flat = np.asarray(_Bytes(tensor))
    return flat.view(dtype).reshape(tensor.shape)


def to_torch(tensor: DLTensor) -> Any:
    import torch

    dtype = tensor.dtype
    if dtype not in dtypes._FOREIGN and dtype.name not in ("uint16", "uint32", "uint64"):
        return torch.from_dlpack(tensor)
    wanted = getattr(torch, dtype.name, None)
    if wanted is None:
        raise TypeError(f"torch {torch.__version__} has no {dtype.name}")
    signed = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}[dtype.itemsize]
    return torch.from_dlpack(tensor._as(signed)).view(wanted)


def as_torch(value: Any) -> Any:
    """A tensor of any maker as PyTorch's."""
    import torch

    if isinstance(value, DLTensor):
        return to_torch(value)
    return value if isinstance(value, torch.Tensor) else torch.from_dlpack(value)
