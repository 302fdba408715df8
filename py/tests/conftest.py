"""Fixtures: small stores of known content, and counts of what a process holds."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import numpy as np
import pytest
from batchfs import Allocator, dtypes
from batchfs.store import DenseStore, DenseWriter, RaggedBatch, RaggedStore, RaggedWriter
from full_option import pytest_addoption, pytest_collection_modifyitems  # noqa: F401
from fuse import need_fuse
from token_files import SPEC, Expected, dataset

RECORDS = 500


def values_of(dtype, shape, seed=0):
    """Values of any dtype: all their bits are random, but for bools."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(np.bool_)
    count = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return random.integers(0, 256, count, np.uint8).view(dtype).reshape(shape)


def bits(array):
    """What is compared where NaNs are about."""
    return np.ascontiguousarray(array).view(np.uint8)


@pytest.fixture(scope="session")
def images():
    return np.random.default_rng(1).integers(0, 256, (RECORDS, 3, 8, 8), np.uint8)


@pytest.fixture(scope="session")
def labels():
    return np.random.default_rng(2).integers(-(2**40), 2**40, RECORDS, np.int64)


@pytest.fixture(scope="session")
def tokens():
    """Ragged records, some of them empty."""
    random = np.random.default_rng(3)
    lengths = random.integers(0, 40, RECORDS)
    return [random.integers(0, 50_000, n).astype(np.int32) for n in lengths]


@pytest.fixture(scope="session")
def boxes():
    """Ragged records of two axes."""
    random = np.random.default_rng(4)
    return [random.random((n, 4)).astype(np.float32) for n in random.integers(1, 6, RECORDS)]


@pytest.fixture(scope="session")
def data(tmp_path_factory, images, labels, tokens, boxes) -> Path:
    """A folder of four aligned stores. Tests only read it."""
    root = tmp_path_factory.mktemp("data") / "train"
    with DenseWriter(root / "images", images.dtype, images.shape[1:], codec="raw") as w:
        w.append(images)
    with DenseWriter(root / "labels", labels.dtype, (), codec="zstd", data_shards=3) as w:
        w.append(labels)
    with RaggedWriter(root / "tokens", dtypes.int32, 1, codec="raw") as w:
        w.append(RaggedBatch.from_records(tokens))
    with RaggedWriter(root / "boxes", dtypes.float32, 2, codec="zstd") as w:
        w.append(RaggedBatch.from_records(boxes))
    return root


@pytest.fixture
def views(data):
    with Allocator("cpu") as allocator:
        stores = {
            "images": DenseStore(data / "images"),
            "labels": DenseStore(data / "labels"),
            "tokens": RaggedStore(data / "tokens"),
            "boxes": RaggedStore(data / "boxes"),
        }
        yield {name: store.bind(allocator) for name, store in stores.items()}
        for store in stores.values():
            store.close()


class Holdings:
    """What this process holds: bytes in memory, descriptors, mappings, threads."""

    def __init__(self):
        gc.collect()
        with open("/proc/self/statm") as f:
            self.memory = int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        self.descriptors = len(os.listdir("/proc/self/fd"))
        with open("/proc/self/maps") as f:
            self.maps = sum(1 for _ in f)
        self.threads = len(os.listdir("/proc/self/task"))


@pytest.fixture
def flat():
    """Calls something often, and asserts that nothing grows with it."""

    def check(work, times=10_000, grows=8 << 20):
        for i in range(times // 10):
            work(i)
        before = Holdings()
        for i in range(times):
            work(i)
        after = Holdings()
        assert after.memory - before.memory < grows, (before.__dict__, after.__dict__)
        assert after.descriptors <= before.descriptors, (before.__dict__, after.__dict__)
        assert after.maps <= before.maps + 20, (before.__dict__, after.__dict__)
        assert after.threads <= before.threads, (before.__dict__, after.__dict__)

    return check


@pytest.fixture
def fuse():
    """Skips where nothing can be mounted."""
    need_fuse()


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory):
    """Indices of Parquet files are kept here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("BATCHFS_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where a dataset of tokens is, if `expected` is asked for, too."""
    return tmp_path_factory.mktemp("tokens") / "data"


@pytest.fixture(scope="module")
def expected(folder):
    """The rows of the dataset, which is made for it."""
    return Expected(SPEC, dataset(folder))
