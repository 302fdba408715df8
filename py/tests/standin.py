"""A stand-in for AMD's HIP runtime: built here, used by programs in processes of their own.

It says nothing about real hardware: see tests/rocm/standin_hip.c for what it does and refuses.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "tests/rocm/standin_hip.c"

PRELUDE = """
import ctypes, gc, os, sys
import numpy as np
from batchfs import Allocator, Loader, dtypes
from batchfs.sampler import Sampler
from batchfs.store import DenseStore, DenseWriter, RaggedBatch, RaggedStore, RaggedWriter

def library():
    hip = ctypes.CDLL(os.environ["BATCHFS_HIP_LIBRARY"])
    hip.standin_result.restype = ctypes.c_uint64
    return hip

def counts():
    out = (ctypes.c_long * 5)()
    library().standin_counts(out)
    return dict(zip(("imports", "mappings", "waits", "registered", "last_error"), out))

class _Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("kind", ctypes.c_int32), ("id", ctypes.c_int32),
                ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8),
                ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64)]

def raw(capsule):
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return _Tensor.from_address(get(capsule, b"dltensor"))

def seen(capsule):
    "A copy, which may be looked at when the capsule is gone."
    return _Tensor.from_buffer_copy(raw(capsule))

def on_device(tensor):
    "What the device reads at the tensor's address."
    assert tensor.__dlpack_device__()[0] == 10
    capsule = tensor.__dlpack__(stream=0)
    at = raw(capsule)
    assert (at.kind, at.id) == tensor.__dlpack_device__()
    out = np.empty(tensor.shape, tensor.dtype)
    where = at.data + at.offset
    assert library().standin_read(ctypes.c_void_p(where), out.ctypes.data_as(ctypes.c_void_p),
                                  ctypes.c_size_t(out.nbytes)) == 0
    return out

class GpuArray:
    "A producer of tensors on the device: what a framework for ROCm is."
    made, freed, streams = 0, 0, []

    def __init__(self, array, device=0, old=False):
        self.array, self.device, self.old = np.ascontiguousarray(array), device, old
        at = ctypes.c_void_p()
        assert library().hipMalloc(ctypes.byref(at), ctypes.c_size_t(max(array.nbytes, 1))) == 0
        self.at = at.value
        source = self.array.ctypes.data_as(ctypes.c_void_p)
        size = ctypes.c_size_t(array.nbytes)
        assert library().standin_write(ctypes.c_void_p(self.at), source, size) == 0

    shape = property(lambda self: self.array.shape)

    def __dlpack_device__(self):
        return 10, self.device

    def __dlpack__(self, *args, **kwargs):
        if self.old and kwargs:
            raise TypeError("no arguments are known")
        GpuArray.streams.append(kwargs.get("stream", "none"))
        capsule = self.array.__dlpack__()
        tensor = raw(capsule)
        tensor.data, tensor.kind, tensor.id = self.at, 10, self.device
        return capsule
"""


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Builds the stand-in: ``build(name, *flags)`` gives its path."""
    gcc = shutil.which("gcc")
    if gcc is None or not SOURCE.exists():
        pytest.skip("needs gcc and the repository, to build the stand-in for HIP")
    root = tmp_path_factory.mktemp("hip")

    def made(name: str, *flags: str) -> Path:
        path = root / name
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            label = f'-DLABEL="{name}"'
            options = ["-O1", "-shared", "-fPIC", "-pthread", label, *flags]
            subprocess.run([gcc, *options, "-o", str(path), str(SOURCE)], check=True)
        return path

    return made


def run(code: str, *args: object, env: dict[str, object] | None = None) -> str:
    """Runs a program in a process of its own; gives what it prints."""
    kept = {k: v for k, v in os.environ.items() if k not in ("ROCM_PATH", "LD_LIBRARY_PATH")}
    given = {k: str(v) for k, v in (env or {}).items()}
    command = [sys.executable, "-c", PRELUDE + textwrap.dedent(code), *map(str, args)]
    done = subprocess.run(command, env={**kept, **given}, capture_output=True, text=True)
    assert done.returncode == 0, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.strip()
