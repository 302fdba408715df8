"""Bytes through the mount are those of the source, whoever reads them and however."""

import hashlib
import json
import subprocess
import sys
import tarfile
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from harness import needs_tool

DTYPES = (
    "bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 "
    "float16 float32 float64 complex64 complex128"
).split()
SHAPES = [(), (5,), (3, 7), (2, 3, 5), (1, 4, 2, 3)]


def compare_step(m, step: int, arrays: dict[str, np.ndarray]) -> None:
    ids = m.ids(step)
    assert np.array_equal(np.load(m / f"index/{step}.npy", mmap_mode="r"), ids)
    for name, source in arrays.items():
        bare = m / f"{name}/batch/{step}"
        wanted = source[ids]
        assert bare.read_bytes() == wanted.tobytes()
        mapped = np.memmap(bare, source.dtype, "r", shape=wanted.shape)
        assert mapped.tobytes() == wanted.tobytes()
        assert np.fromfile(bare, source.dtype).tobytes() == wanted.tobytes()
        loaded = np.load(m / f"{name}/batch/{step}.npy", mmap_mode="r")
        assert (loaded.dtype, loaded.shape) == (source.dtype, wanted.shape)
        assert loaded.tobytes() == wanted.tobytes()
        assert loaded.offset % 4096 == 0
        told = json.loads(m.read(f"{name}/batch/{step}.json"))
        assert told["ids"] == ids.tolist() and told["step"] == step
        [array] = told["arrays"]
        assert array["shape"] == list(wanted.shape)
        assert array["dtype"] == source.dtype.name
        assert (array["offset"], array["nbytes"]) == (0, wanted.nbytes)
        assert told["nbytes"] == wanted.nbytes == bare.stat().st_size


def compare_records(m, arrays: dict[str, np.ndarray]) -> None:
    for name, source in arrays.items():
        count = len(source)
        for i in (0, 1, count // 2, count - 1):
            assert m.read(f"{name}/record/{i}") == source[i].tobytes()
            record = np.load(m / f"{name}/record/{i}.npy", mmap_mode="r")
            assert (record.dtype, record.shape) == (source.dtype, source[i].shape)
            assert record.tobytes() == source[i].tobytes()
        assert not (m / f"{name}/record/{count}").exists()
        schema = json.loads(m.read(f"{name}/schema.json"))
        assert schema["dtype"] == source.dtype.name
        assert schema["item_shape"] == list(source.shape[1:])
        assert schema["records"] == count and schema["stream"] == name


def test_every_face_of_batches_indices_and_records(box, data, arrays, mode):
    with box.mount(data, spec="batch=32,seed=5", mode=mode) as m:
        for step in (0, 1, 7, 30, 31, 10_000):
            compare_step(m, step, arrays)
        compare_records(m, arrays)


def test_every_dtype_and_shape(box, mode):
    random = np.random.default_rng(3)
    arrays = {}
    for dtype in DTYPES:
        for shape in SHAPES:
            full = (64, *shape)
            bytes_ = random.bytes(int(np.prod(full)) * np.dtype(dtype).itemsize)
            array = np.frombuffer(bytes_, dtype=np.dtype(dtype))
            if dtype == "bool":
                array = np.frombuffer(bytes_, np.uint8) > 99
            arrays[f"{dtype}-{len(shape)}d"] = array.reshape(full)
    for name, array in arrays.items():
        box.npy(f"all/{name}", array)
    # A store of some, too, as it takes another way.
    for name in ("bool-1d", "float16-0d", "complex128-4d"):
        (box.path / f"all/{name}.npy").unlink()
        box.store(f"all/{name}", arrays[name], "--shards", "2")
    with box.mount(box.path / "all", spec="batch=9,seed=5", mode=mode) as m:
        for step in (0, 12):
            compare_step(m, step, arrays)
        compare_records(m, arrays)


@pytest.fixture
def big(box) -> tuple[Path, np.ndarray]:
    """Batches of some 4 MiB, of an odd number of bytes."""
    array = np.random.default_rng(9).integers(0, 256, (48, 262_147), np.uint8)
    return box.npy("files/big", array), array


def test_batches_in_huge_pages(box, big, mode, compiled):
    path, array = big
    reader = compiled("reader")
    with box.mount(path, spec="batch=16,mode=sequential", mode=mode) as m:
        compare_step(m, 1, {"big": array})
        for step in range(3):
            expected = box.path / "expected"
            expected.write_bytes(array[m.ids(step)].tobytes())
            done = box.tool(reader, m / f"big/batch/{step}", expected)
            assert done.stdout == f"ok {16 * 262_147}\n"


def test_c_programs(box, data, arrays, mode, compiled):
    reader = compiled("reader")
    with box.mount(data, mode=mode) as m:
        for step, (name, source) in enumerate(arrays.items()):
            expected = box.path / "expected"
            expected.write_bytes(source[m.ids(step)].tobytes())
            done = box.tool(reader, m / f"{name}/batch/{step}", expected)
            assert done.stdout == f"ok {expected.stat().st_size}\n"


def tools(source: Path, out: Path) -> dict[str, list]:
    """Commands that read `source`; those with `out` write a copy of it there."""
    return {
        "cat": ["sh", "-c", f"cat {source} > {out}"],
        "cp": ["cp", source, out],
        "cp --sparse": ["cp", "--sparse=always", source, out],
        "cp --reflink": ["cp", "--reflink=auto", source, out],
        "install": ["install", "-m", "644", source, out],
        **{
            f"dd {bs}": ["dd", f"if={source}", f"of={out}", f"bs={bs}", "status=none"]
            for bs in (7, 513, 4096, 4097, 65_537, 1 << 20)
        },
        "tail -c": ["sh", "-c", f"tail -c +1 {source} > {out}"],
        "head -c": ["sh", "-c", f"head -c 1000000000 {source} > {out}"],
        "rsync": ["rsync", "-a", source, out],
        "busybox cat": ["sh", "-c", f"busybox cat {source} > {out}"],
        "python": [
            sys.executable,
            "-c",
            "import sys; open(sys.argv[2], 'wb').write(open(sys.argv[1], 'rb').read())",
            source,
            out,
        ],
        "sendfile": [
            sys.executable,
            "-c",
            "import os, sys; i = open(sys.argv[1], 'rb'); o = open(sys.argv[2], 'wb', 0)\n"
            "at = 0\n"
            "while n := os.sendfile(o.fileno(), i.fileno(), at, 1 << 20): at += n",
            source,
            out,
        ],
        "copy_file_range": [
            sys.executable,
            "-c",
            "import errno, os, shutil, sys\n"
            "i = open(sys.argv[1], 'rb'); o = open(sys.argv[2], 'wb', 0)\n"
            "try:\n"
            "    while os.copy_file_range(i.fileno(), o.fileno(), 1 << 20): pass\n"
            "except OSError as e:\n"
            "    assert e.errno == errno.EXDEV, e\n"
            "    shutil.copyfileobj(i, o)\n",
            source,
            out,
        ],
    }


@needs_tool("rsync", "busybox", "dd")
def test_each_tool_as_the_first_to_touch_a_step(box, data, arrays, mode):
    """Case 37: whoever comes first sees the whole size and the whole bytes."""
    source = arrays["images"]
    with box.mount(data, spec="batch=100,seed=3", mode=mode) as m:
        out = box.path / "copy"
        # Steps far apart, so that none of them is filled ahead.
        names = list(tools(out, out))
        for i, name in enumerate(names):
            step = 1000 * i + 500
            path = m / f"images/batch/{step}"
            box.tool(*tools(path, out)[name])
            assert out.read_bytes() == source[m.ids(step)].tobytes(), name
            out.unlink()


def test_each_measure_as_the_first_to_touch_a_step(box, data, arrays, mode):
    source = arrays["images"]
    with box.mount(data, spec="batch=100,seed=3", mode=mode) as m:

        def fresh(step: int) -> tuple[Path, bytes]:
            return m / f"images/batch/{step}", source[m.ids(step)].tobytes()

        def say(*command) -> str:
            return box.tool(*command).stdout.split()[0]

        path, wanted = fresh(1000)
        assert say("stat", "-c", "%s", path) == str(len(wanted))
        path, wanted = fresh(2000)
        assert say("wc", "-c", path) == str(len(wanted))
        path, wanted = fresh(3000)
        assert say("sha256sum", path) == hashlib.sha256(wanted).hexdigest()
        path, wanted = fresh(4000)
        tail = subprocess.run(["tail", "-c", "100", path], capture_output=True, check=True).stdout
        assert tail == wanted[-100:]
        path, wanted = fresh(5000)
        head = subprocess.run(["head", "-c", "10", path], capture_output=True, check=True).stdout
        assert head == wanted[:10]
        path, wanted = fresh(6000)
        copy = box.path / "copy"
        copy.write_bytes(wanted)
        box.tool("cmp", path, copy)
        path, wanted = fresh(7000)
        archive = box.path / "a.tar"
        box.tool("tar", "-C", m.dir, "-cf", archive, "images/batch/7000")
        with tarfile.open(archive) as tar:
            assert tar.extractfile("images/batch/7000").read() == wanted


def test_a_web_server_serves_a_step(box, data, arrays, mode):
    with box.mount(data, mode=mode) as m:
        code = (
            "import http.server as h, os, sys\n"
            "os.chdir(sys.argv[1])\n"
            "server = h.ThreadingHTTPServer(('127.0.0.1', 0), h.SimpleHTTPRequestHandler)\n"
            "print('ready', flush=True); print(server.server_port, flush=True)\n"
            "server.serve_forever()\n"
        )
        server = box.python(code, m.dir, stderr=subprocess.DEVNULL)
        port = int(server.stdout.readline())
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/x/batch/77.npy") as reply:
            got = reply.read()
            assert int(reply.headers["Content-Length"]) == len(got)
        server.kill()
        server.wait()
        assert got == m.read("x/batch/77.npy")
        assert got.endswith(arrays["x"][m.ids(77)].tobytes())


def test_what_the_mount_says_of_itself(box, data, mode):
    with box.mount(data, spec="seed=9,batch=50", mode=mode, memory="64MiB") as m:
        config = m.config()
        assert config["source"] == str(data) and config["pid"] == m.pid
        assert config["streams"] == ["images", "labels", "x"] and config["records"] == 1000
        assert config["spec"] == "mode=cyclic,batch=50,seed=9"
        assert (config["local_batch"], config["steps_per_cycle"]) == (50, 20)
        assert config["memory_limit"] == 64 << 20
        assert config["delivery"] == mode
        readme = m.read("README.txt").decode()
        assert str(data) in readme and "images" in readme
        # Shapes as Python says them.
        assert "uint8 (50, 12, 9, 3)\n" in readme and "int64 (50,)\n" in readme
        assert m.errors() == ""
        assert set(m.metrics()) >= {"opens_total", "open_handles", "memory_live_bytes"}
        names = sorted(p.name for p in m.dir.iterdir())
        own = [".batchfs", "README.txt", "all", "index", "view"]
        assert names == sorted([*own, "images", "labels", "x"])
        steps = [p.name for p in (m / "images/batch").iterdir()]
        assert sorted(steps, key=int) == [str(i) for i in range(20)] == steps
        assert [p.name for p in (m / "x/record").iterdir()] == [str(i) for i in range(1000)]
