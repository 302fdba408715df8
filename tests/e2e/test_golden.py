"""The stores in the repository, read by the formula of docs/format.md and nothing else."""

import json
from pathlib import Path

import numpy as np
import pytest
from harness import REPO

GOLDEN = REPO / "fs/store/tests/golden"


def read_store(folder: Path) -> np.ndarray:
    """What docs/format.md tells those who have NumPy only."""
    header = json.loads((folder / "batchfs.json").read_text())
    shards, stripe = header["shards"], header["stripe"]
    data = [np.load(folder / f"data-{k:03}.npy", mmap_mode="r") for k in range(shards)]

    def record(i: int) -> np.ndarray:
        return data[i // stripe % shards][i // stripe // shards * stripe + i % stripe]

    return np.stack([record(i) for i in range(header["records"])])


def wanted(name: str) -> np.ndarray:
    if name == "v1-int16":
        numbers = np.arange(23 * 6, dtype=np.int64) * 257 - 999
        return numbers.astype(np.int16).reshape(23, 2, 3)
    upper = np.arange(9, dtype=np.float32).view(np.uint32) >> 16
    return np.append(upper, 0x7FC5).astype(np.uint16)


@pytest.mark.parametrize("name", ["v1-int16", "v1-bfloat16"])
def test_numpy_reads_the_golden_stores(name):
    found = read_store(GOLDEN / name)
    assert found.tobytes() == wanted(name).tobytes()


@pytest.mark.parametrize("name", ["v1-int16", "v1-bfloat16"])
def test_the_mount_shows_the_golden_stores(box, name):
    array = wanted(name)
    spec = "batch=5,seed=3"
    with box.mount(GOLDEN / name, spec=spec) as m:
        for step in (0, 3, 999):
            assert m.read(f"{name}/batch/{step}") == array[m.ids(step)].tobytes()
    assert "whole" in box.run("verify", GOLDEN / name).stdout


@pytest.mark.parametrize("shards", [1, 3, 255])
def test_numpy_reads_what_create_writes(box, shards):
    array = np.random.default_rng(6).standard_normal((5000, 31)).astype(np.float32)
    store = box.store("x", array, "--shards", str(shards))
    assert np.array_equal(read_store(store), array)


def test_types_that_numpy_lacks_have_no_npy(box):
    with box.mount(GOLDEN / "v1-bfloat16", spec="batch=5") as m:
        assert not (m / "v1-bfloat16/batch/0.npy").exists()
        assert (m / "v1-bfloat16/batch/0").stat().st_size == 10
        assert "v1-bfloat16/batch/0.npy" in m.errors() and "bfloat16" in m.errors()
