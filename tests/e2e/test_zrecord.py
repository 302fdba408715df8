"""Containers of loaderx are read in place, and loaderx reads what is exported."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from harness import REPO
from safetensors.numpy import load_file

GOLDEN = REPO / "fs/source/tests/golden"
CODECS = ["raw", "zstd", "zstd_dict"]


class Peer:
    """loaderx, in its own environment."""

    def __init__(self, python: str, box):
        self.python, self.box = python, box

    def __call__(self, *args) -> None:
        script = REPO / "tests/e2e/loaderx_peer.py"
        self.box.tool(self.python, script, *args)

    def write(self, dest, codec: str, shards: int, *arrays: np.ndarray) -> Path:
        files = [self.box.npy(f"in/{i}", a) for i, a in enumerate(arrays)]
        more = ["--dict", dictionary(self.box)] if codec == "zstd_dict" else []
        self("write", dest, codec, shards, arrays[0].dtype.name, *files, *more)
        return Path(dest)

    def read(self, source) -> list[np.ndarray]:
        self("read", source, self.box.path / "read")
        names = ["read.npy", "read.values.npy", "read.shapes.npy"]
        paths = [self.box.path / name for name in names]
        return [np.load(path) for path in paths if path.exists()]


@pytest.fixture
def loaderx(box) -> Peer:
    python = os.environ.get("BATCHFS_LOADERX_PYTHON")
    if not python:
        pytest.skip(
            "needs loaderx: BATCHFS_LOADERX_PYTHON, a Python with what is in tests/loaderx.txt"
        )
    return Peer(python, box)


def dictionary(box) -> Path:
    """One that is always the same."""
    path = box.path / "numbers.dict"
    if not path.exists():
        box.npy("sample", np.arange(60_000, dtype=np.int32).reshape(-1, 12) // 7)
        box.run("train-dict", box.path / "sample.npy", "-o", path, "--size", "2KiB")
    return path


def dense() -> np.ndarray:
    return (np.arange(101 * 12).reshape(101, 3, 4) ** 2 % 1013).astype(np.int32)


def ragged(ndim: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, offsets, shapes."""
    axes = np.arange(90 * ndim).reshape(90, ndim)
    shapes = (1 + axes * 5 % 11).astype(np.uint64)
    offsets = np.concatenate([[0], np.cumsum(shapes.prod(1))]).astype(np.int64)
    return (np.arange(offsets[-1]) % 37).astype(np.float32), offsets, shapes


def same_files(a: Path, b: Path) -> bool:
    names = sorted(os.listdir(a))
    return names == sorted(os.listdir(b)) and all(
        (a / name).read_bytes() == (b / name).read_bytes() for name in names
    )


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("codec", CODECS)
def test_dense_containers(box, loaderx, codec, shards):
    array = dense()
    source = loaderx.write(box.path / "x", codec, shards, array)
    [told] = json.loads(box.run("info", source, "--json").stdout)["streams"]
    assert (told["kind"], told["codec"], told["shards"]) == ("zrecord", codec, shards)
    assert "all can be read" in box.run("verify", source).stdout
    with box.mount(source, spec="batch=16,seed=3") as m:
        for step in (0, 1, 5, 2**40):
            batch = np.load(m / f"x/batch/{step}.npy")
            np.testing.assert_array_equal(batch, array[m.ids(step)])
        np.testing.assert_array_equal(np.load(m / "x/record/100.npy"), array[100])

    # And back again.
    box.run("create", "store", "--from", source, "--codec", "zstd")
    more = ["--dict", dictionary(box)] if codec == "zstd_dict" else []
    args = ["--format", "zrecord", "--codec", codec, "--shards", str(shards), *more]
    box.run("export", "store", "back", *args)
    [found] = loaderx.read(box.path / "back")
    np.testing.assert_array_equal(found, array)
    assert same_files(source, box.path / "back")


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("ndim", [1, 2])
def test_ragged_containers(box, loaderx, codec, shards, ndim):
    values, offsets, shapes = ragged(ndim)
    source = loaderx.write(box.path / "x", codec, shards, values, offsets, shapes)
    box.run("verify", source)
    with box.mount(source, spec="batch=16,seed=3") as m:
        for step in (0, 1, 5, 2**40):
            ids = m.ids(step)
            found = load_file(m / f"x/batch/{step}.safetensors")
            wanted = [values[offsets[i] : offsets[i + 1]] for i in ids]
            np.testing.assert_array_equal(found["values"], np.concatenate(wanted))
            np.testing.assert_array_equal(found["shapes"], shapes[ids])
            lengths = np.cumsum([len(w) for w in wanted])
            np.testing.assert_array_equal(found["cu_seqlens"], [0, *lengths])
        record = np.load(m / "x/record/7.npy")
        np.testing.assert_array_equal(record.ravel(), values[offsets[7] : offsets[8]])
        assert record.shape == tuple(shapes[7])

    box.run("create", "store", "--from", source)
    more = ["--dict", dictionary(box)] if codec == "zstd_dict" else []
    args = ["--format", "zrecord", "--codec", codec, "--shards", str(shards), *more]
    box.run("export", "store", "back", *args)
    found_values, found_shapes = loaderx.read(box.path / "back")
    np.testing.assert_array_equal(found_values, values)
    np.testing.assert_array_equal(found_shapes, shapes)
    assert same_files(source, box.path / "back")


def test_every_dtype_is_stored_alike(box, loaderx):
    bits = (np.arange(10 * 64) % 3 % 2).astype(np.uint8).reshape(10, 64)
    theirs = box.folder("theirs")
    loaderx("dtypes", theirs, box.npy("bits", bits))
    names = sorted(os.listdir(theirs))
    assert len(names) == 20
    with box.mount(theirs, spec="batch=10,mode=sequential") as m:
        for name in names:
            size = json.loads(m.read(f"{name}/schema.json"))["item_bytes"]
            assert m.read(f"{name}/batch/0") == bits[:, :size].tobytes(), name
    box.run("export", theirs, "ours", "--format", "zrecord", "--shards", "2")
    for name in names:
        assert same_files(theirs / name, box.path / "ours" / name), name


def test_a_folder_of_containers(box, loaderx):
    """As loaderx's converter makes it: one folder for each column."""
    (box.path / "set").mkdir()
    values, offsets, shapes = ragged(1)
    loaderx.write(box.path / "set/tokens", "zstd", 4, values, offsets, shapes)
    labels = np.arange(90, dtype=np.int64)
    loaderx.write(box.path / "set/label", "raw", 1, labels)
    with box.mount(box.path / "set", spec="batch=9,seed=2") as m:
        found = load_file(m / "all/batch/3.safetensors")
        np.testing.assert_array_equal(found["label"], m.ids(3))
        wanted = [values[offsets[i] : offsets[i + 1]] for i in m.ids(3)]
        np.testing.assert_array_equal(found["tokens.values"], np.concatenate(wanted))
    box.run("create", "ours", "--from", box.path / "set", "--codec", "zstd")
    box.run("verify", "ours")
    box.run("export", "ours", "back", "--format", "zrecord")
    assert sorted(os.listdir(box.path / "back")) == ["label", "tokens"]
    np.testing.assert_array_equal(loaderx.read(box.path / "back/label")[0], labels)


def test_a_writer_that_was_killed(box, loaderx):
    path = box.npy("x", dense())
    loaderx("die", box.path / "dead", path)
    for args in (
        ["info", "dead"],
        ["mount", "dead", box.folder()],
        ["create", "s", "--from", "dead"],
    ):
        box.fails(*args, names=["dead", "never closed", "101 in the index"])
    assert not (box.path / "s").exists()


def test_golden_containers_are_those_of_loaderx(box, loaderx):
    numbers = np.arange(66)
    arrays = {"dense": ["int16", (numbers * 37 % 101 - 50).astype(np.int16).reshape(11, 2, 3)]}
    shapes = np.array([[1 + r % 3, 1 + r * 5 % 7] for r in range(9)], np.uint64)
    offsets = np.concatenate([[0], np.cumsum(shapes.prod(1))]).astype(np.int64)
    values = (np.arange(offsets[-1]) * 3 % 17).astype(np.float32)
    arrays["ragged"] = ["float32", values, offsets, shapes]
    for kind, (dtype, *parts) in arrays.items():
        files = [box.npy(f"{kind}{i}", part) for i, part in enumerate(parts)]
        for codec in CODECS:
            golden = GOLDEN / f"{kind}-{codec}"
            more = ["--dict", golden / "dict.zr"] if codec == "zstd_dict" else []
            dest = box.path / golden.name
            loaderx("write", dest, codec, 3 if kind == "dense" else 2, dtype, *files, *more)
            assert same_files(dest, golden), golden.name


def test_damage_is_named_and_the_rest_can_be_read(box):
    """Without loaderx: a container of the repository, with a frame that is none any more."""
    source = box.path / "data/x"
    shutil.copytree(GOLDEN / "dense-zstd", source)
    data = bytearray((source / "data_1.zr").read_bytes())
    data[:4] = b"none"
    (source / "data_1.zr").write_bytes(data)
    done = box.run("verify", source, check=False)
    assert done.returncode == 1 and "shard 1, record 1: cannot be decompressed" in done.stdout
    with box.mount(source.parent, spec="batch=1,mode=sequential") as m:
        with pytest.raises(OSError, match="Input/output error"):
            m.read("x/batch/1")
        assert f"{source}: shard 1, record 1: cannot be decompressed" in m.errors()
        values = (np.arange(66) * 37 % 101 - 50).astype(np.int16)
        assert m.read("x/batch/4") == values.reshape(11, 6)[4].tobytes()
    box.fails("create", "s", "--from", source, names=["record 1"])
    assert not (box.path / "s").exists()
    os.truncate(source / "data_2.zr", 50)
    box.fails("mount", source, box.folder("elsewhere"), names=["data_2.zr", "50 bytes"])


def test_an_empty_container(box):
    source = box.path / "x"
    box.npy("none", np.zeros((0, 4), np.float32))
    box.run("export", "none.npy", source, "--format", "zrecord")
    assert "0 records" in (said := box.run("info", source).stdout) and "empty" in said
    box.run("verify", source)
    box.fails("mount", source, box.folder(), names=["0 records"])


def test_train_dict_on_a_container(box):
    path = box.npy("x", np.arange(60_000, dtype=np.int32).reshape(-1, 12) // 7)
    box.run("export", path, "c", "--format", "zrecord", "--codec", "zstd")
    box.run("train-dict", path, "-o", "a.dict", "--size", "2KiB")
    box.run("train-dict", "c", "-o", "b.dict", "--size", "2KiB")
    assert (box.path / "a.dict").read_bytes() == (box.path / "b.dict").read_bytes()
    args = ["--format", "zrecord", "--codec", "zstd_dict", "--dict", "b.dict"]
    box.run("export", path, "d", *args)
    assert (box.path / "d/dict.zr").read_bytes() == (box.path / "b.dict").read_bytes()
    box.run("verify", "d")
