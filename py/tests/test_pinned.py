"""Copies from pinned pages, with a stand-in for the GPU's runtime and a device of meta tensors."""

import ctypes

import numpy as np
import pytest
from batchfs import _pinned
from standin import build

__all__ = ["build"]


class Tensor:
    """What is used of a tensor of PyTorch's."""

    def __init__(self, array):
        self.array, self.log = array, []

    data_ptr = property(lambda self: lambda: self.array.ctypes.data)
    numel = property(lambda self: lambda: self.array.size)
    element_size = property(lambda self: lambda: self.array.itemsize)

    def to(self, device, non_blocking):
        return device, non_blocking, self.array.copy()


class Runtime:
    """The stand-in's functions under the names that PyTorch has for them."""

    def __init__(self, library):
        self._library = library

    def cudaHostRegister(self, start, size, flags):
        assert start % _pinned.PAGE == size % _pinned.PAGE == 0
        return self._library.hipHostRegister(ctypes.c_void_p(start), ctypes.c_size_t(size), flags)

    def cudaHostUnregister(self, start):
        return self._library.hipHostUnregister(ctypes.c_void_p(start))

    @property
    def registered(self):
        counts = (ctypes.c_long * 5)()
        self._library.standin_counts(counts)
        return counts[3]


@pytest.fixture
def made(build):
    runtime = Runtime(ctypes.CDLL(str(build("pinned.so"))))
    waited, forgot = [], []

    class Event:
        def synchronize(self):
            waited.append(runtime.registered)

    pins = _pinned.Pins(runtime, 8)
    return (
        runtime,
        pins,
        _pinned.Copier("gpu", pins, Event, lambda: forgot.append(1)),
        waited,
        forgot,
    )


def batch(size=1 << 20):
    large = Tensor(np.arange(size, dtype=np.uint8))
    return {"images": large, "tokens": {"values": Tensor(np.ones(size, np.int32))}}


def test_pages_are_pinned_until_the_copy_is_done(made):
    runtime, pins, copier, waited, _ = made
    for i in range(6):
        copied = copier.copy(batch())
        device, non_blocking, array = copied["images"]
        assert (device, non_blocking) == ("gpu", True) and array[77] == 77
        assert runtime.registered <= 2 * (_pinned.UNDER_WAY)
        assert len(waited) == max(0, i + 1 - _pinned.UNDER_WAY)
    copier.close()
    assert runtime.registered == 0 and len(waited) == 6 and pins.refused is None


def test_small_tensors_are_not_pinned(made):
    runtime, _, copier, waited, _ = made
    copied = copier.copy(batch(100))
    assert copied["images"][1] is False and runtime.registered == 0
    copier.close()
    assert waited == []


def test_a_runtime_that_refuses_is_asked_once(made, monkeypatch):
    runtime, pins, copier, waited, forgot = made
    monkeypatch.setenv("STANDIN_HIP_NO_REGISTER", "1")
    for _ in range(3):
        copied = copier.copy(batch())
        assert copied["images"][1] is False and copied["images"][2][9] == 9
    assert pins.refused == 1 and len(forgot) == 1 and runtime.registered == 0 and not waited


def test_a_copy_that_fails_leaves_nothing_pinned(made):
    runtime, _, copier, _, _ = made
    bad = batch()
    bad["images"].to = lambda device, non_blocking: 1 / 0
    with pytest.raises(ZeroDivisionError):
        copier.copy(bad)
    assert runtime.registered == 0


def test_pages_that_tensors_share_are_pinned_once():
    whole = np.zeros(4 << 20, np.uint8)
    parts = [Tensor(whole[a:b]) for a, b in ((0, 1 << 20), ((1 << 20) + 64, 2 << 20))]
    parts.append(Tensor(whole[3 << 20 :]))
    spans = _pinned.ranges([*parts, Tensor(whole[:10])])
    assert len(spans) == 2 and all(a % _pinned.PAGE == b % _pinned.PAGE == 0 for a, b in spans)
    start = whole.ctypes.data
    assert spans[0][0] <= start and spans[0][1] >= start + (2 << 20)
    assert spans[1][1] >= start + (4 << 20)


def test_on_the_processor_batches_come_as_they_are(data, views):
    torch = pytest.importorskip("torch")
    from batchfs.torch import Batches, on_device

    source = list(Batches({"images": views["images"]}, "batch=50,seed=3"))
    moved = list(on_device(iter(source), "cpu"))
    assert all(a is b for a, b in zip(source, moved, strict=True))
    meta = next(iter(on_device(iter(source), torch.device("meta"))))
    assert meta["images"].device.type == "meta" and meta["images"].shape == (50, 3, 8, 8)
