"""What `create` takes and makes of it, and what `export` gives."""

import os
import random
import subprocess
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

ORDERS = ["fortran", "big-endian", "both"]


def reordered(array: np.ndarray, order: str) -> np.ndarray:
    if order != "fortran":
        array = array.astype(array.dtype.newbyteorder(">"))
    return array if order == "big-endian" else np.asfortranarray(array)


@pytest.mark.parametrize("dtype", ["<i2", "<f4", "<f8", "<c8", "<c16"])
@pytest.mark.parametrize("order", ORDERS)
def test_orders_that_are_converted(box, order, dtype):
    real = np.random.default_rng(3).standard_normal((150, 5, 3, 4)) * 1000
    array = (real + 1j * real[::-1]).astype(dtype) if "c" in dtype else real.astype(dtype)
    path = box.npy("x", reordered(array, order))
    for command in (["info", path], ["mount", path, box.folder()]):
        box.fails(*command, names=[path, "batchfs create DEST --from"])
    box.run("create", "s", "--from", path)
    box.run("verify", "s")
    with box.mount(box.path / "s", spec="batch=150,mode=sequential") as m:
        found = np.load(m / "s/batch/0.npy")
        assert found.dtype == np.dtype(dtype) and found.tobytes() == array.tobytes()


def test_memory_is_bounded_when_a_large_array_is_turned(box):
    """160 MB in Fortran order, in less memory."""
    array = np.arange(40_000 * 1000, dtype=np.int32).reshape(40_000, 1000)
    path = box.npy("x", np.asfortranarray(array))
    limited = ["bash", "-c", 'ulimit -d 120000; exec "$@"', "-", box.program]
    box.tool(*limited, "create", "s", "--from", path, "--shards", "1")
    assert np.array_equal(np.load(box.path / "s/data-000.npy", mmap_mode="r"), array)


def folder(box) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(240, dtype=np.float32).reshape(40, 2, 3)
    y = np.arange(40, dtype=np.int64) * 7
    box.npy("in/x", np.asfortranarray(x))
    box.npy("in/y", y.astype(">i8"))
    lengths = np.arange(40) % 5
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    (box.path / "in/words").mkdir()
    box.npy("in/words/values", np.arange(offsets[-1], dtype=np.uint16))
    box.npy("in/words/cu_seqlens", offsets)
    box.store("in/z", y[::-1].copy())
    (box.path / "in/notes.txt").write_text("not data")
    return x, y


def test_a_folder_becomes_a_dataset(box):
    x, y = folder(box)
    done = box.run("create", "out/set", "--from", "in", "--codec", "zstd")
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        f"out/set/{name}" for name in ("words", "x", "y", "z")
    ]
    assert os.listdir(box.path / "out") == ["set"]
    box.run("verify", "out/set")
    with box.mount(box.path / "out/set", spec="batch=40,mode=sequential") as m:
        found = load_file(m / "all/batch/0.safetensors")
        np.testing.assert_array_equal(found["x"], x)
        np.testing.assert_array_equal(found["y"], y)
        np.testing.assert_array_equal(found["z"], y[::-1])
        np.testing.assert_array_equal(np.diff(found["words.cu_seqlens"]), np.arange(40) % 5)

    # Out again as arrays, and in again.
    box.run("export", "out/set", "arrays", "--format", "npy")
    assert sorted(os.listdir(box.path / "arrays")) == ["words", "x.npy", "y.npy", "z.npy"]
    np.testing.assert_array_equal(np.load(box.path / "arrays/x.npy"), x)
    words = box.path / "arrays/words"
    args = ["--from", words / "values.npy", "--offsets", words / "cu_seqlens.npy"]
    box.run("create", "words", *args, "--shapes", words / "shapes.npy")
    box.run("create", "again", "--from", "arrays", "--codec", "zstd")
    for name in ("x", "words"):
        for file in (box.path / "again" / name).iterdir():
            if file.name not in ("batchfs.json", "seal"):
                assert file.read_bytes() == (box.path / "out/set" / name / file.name).read_bytes()
    with box.mount(box.path / "arrays", spec="batch=40,mode=sequential") as m:
        assert m.read("words/batch/0.safetensors")
        np.testing.assert_array_equal(np.load(m / "z/batch/0.npy"), y[::-1])


def test_several_sources_with_names_of_their_own(box):
    x, y = folder(box)
    args = ["--from", "images=in/x.npy", "--from", "in/y.npy", "--from", "w=in/words"]
    box.run("create", "set", *args)
    assert sorted(os.listdir(box.path / "set")) == ["images", "w", "y"]
    # A single one with a name is a dataset of one stream; what is there as a whole is a path.
    box.run("create", "one", "--from", "images=in/x.npy")
    assert os.listdir(box.path / "one") == ["images"]
    box.npy("lr=3/x", x)
    (box.path / "a=b.npy").write_bytes((box.path / "in/x.npy").read_bytes())
    for source in ("lr=3/x.npy", "a=b.npy"):
        box.run("create", "s", "--from", source)
        assert "batchfs.json" in os.listdir(box.path / "s")
        box.tool("rm", "-r", "s")


def test_sources_that_do_not_fit_each_other_leave_nothing(box):
    folder(box)
    box.npy("short", np.zeros(39))
    cases = [
        (["--from", "in/x.npy", "--from", "short.npy"], ["40", "39", "short"]),
        (["--from", "in/x.npy", "--from", "x=in/y.npy"], ["both named", "NAME=PATH"]),
        (["--from", "all=in/x.npy"], ["all"]),
        (["--from", "a/b=in/x.npy"], ["a/b=in/x.npy"]),
        (["--from", "n=in"], ["in", "leave the name out"]),
        (["--from", "in/x.npy", "--from", "in/y.npy", "--offsets", "in/y.npy"], ["--offsets"]),
        (["--from", "in/x.npy", "--from", "nowhere.npy"], ["nowhere.npy"]),
    ]
    for args, names in cases:
        box.fails("create", "out/set", *args, names=names)
        assert not (box.path / "out").exists(), args
    box.npy("in/short", np.zeros(39))
    box.fails("create", "out/set", "--from", "in", names=["short", "39"])
    (box.path / "in/short.npy").write_bytes(b"no array")
    box.fails("create", "out/set", "--from", "in", names=["short.npy"])
    assert not (box.path / "out").exists()
    box.fails("create", "out/set", names=["required"])


def test_what_cannot_be_exported_leaves_nothing(box):
    out = box.folder("out")
    box.npy("v", np.arange(4))
    box.npy("o", np.array([0, 2, 2, 4]))
    box.run("create", "s", "--from", "v.npy", "--offsets", "o.npy")
    args = ["--format", "zrecord"]
    box.fails("export", "s", out / "z", *args, names=["record 1 is empty"])
    box.fails("export", "v.npy", out / "z", *args, "--codec", "zstd_dict", names=["train-dict"])
    more = ["--format", "npy", "--codec", "zstd"]
    box.fails("export", "v.npy", out / "z", *more, names=["not compressed"])
    assert os.listdir(out) == []
    box.run("export", "v.npy", out / "z", *args)
    box.fails("export", "v.npy", out / "z", *args, names=["exists already"])
    box.fails("export", "s", out / "nowhere" / "z", *args, names=["record 1 is empty"])
    assert os.listdir(out) == ["z"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["dataset", "zrecord", "npy"])
def test_killed_at_any_moment(box, what):
    array = np.random.default_rng(5).integers(0, 256, (6000, 1024), np.uint8)
    for name in "ab":
        box.npy(f"in/{name}", array)
    dest = box.folder("out") / "dest"
    command = {
        "dataset": ["create", dest, "--from", "in", "--codec", "zstd"],
        "zrecord": ["export", "in", dest, "--format", "zrecord", "--codec", "zstd"],
        "npy": ["export", "in", dest, "--format", "npy"],
    }[what]
    began = time.monotonic()
    box.run(*command)
    whole = time.monotonic() - began
    box.tool("rm", "-r", dest)
    moments = random.Random(2)
    for _ in range(8):
        writer = box.start(box.program, *command, stderr=subprocess.DEVNULL)
        time.sleep(moments.uniform(0, whole))
        writer.kill()
        writer.wait()
        if dest.exists():
            box.run("verify", dest)
            assert len(os.listdir(dest)) == 2
            box.tool("rm", "-r", dest)
        assert all(name.startswith(".dest.batchfs-tmp-") for name in os.listdir(dest.parent))
    box.run(*command)
    assert os.listdir(dest.parent) == ["dest"]
