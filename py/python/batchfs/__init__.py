"""Training data as files, stores and tensors.

Two doors lead to the same batches:

* a mount, where every batch is a file: :func:`open`, or :func:`mount` to make one;
  :mod:`batchfs.dmabuf` hands out the same batches as descriptors;
* in this process: :mod:`batchfs.store`, :class:`Allocator`, :class:`batchfs.sampler.Sampler`,
  :class:`Loader`.

:mod:`batchfs.torch` has Datasets for PyTorch over either. What is read is a ``DLTensor``, which
NumPy, PyTorch, JAX and others take without a copy through DLPack.
"""

from __future__ import annotations

import importlib
from typing import Any

from ._native import __version__

_HOME = {
    "Allocation": "._native",
    "Allocator": "._native",
    "Dataset": ".mounted",
    "Loader": ".loader",
    "StoreError": "._errors",
    "mount": ".daemon",
    "open": ".mounted",
}
_MODULES = ("converter", "dmabuf", "dtypes", "sampler", "store", "torch")

__all__ = [*_HOME, *_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    # On first use, so that the command line starts without NumPy.
    if name in _HOME:
        value = getattr(importlib.import_module(_HOME[name], __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
