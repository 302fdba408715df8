"""Mappings and reads at any place (cases 38 and 39)."""

import mmap
import os
import threading
from pathlib import Path

import numpy as np
import pytest
from harness import errno_of


@pytest.fixture
def odd(box) -> tuple[Path, np.ndarray]:
    """A batch of 5 MiB and some bytes more."""
    array = np.random.default_rng(2).integers(0, 256, (20, 524_291), np.uint8)
    return box.npy("files/odd", array), array


SMALL = ["images/batch/3", "labels/batch/3", "x/batch/4.npy", "index/1", "labels/record/5"]


def test_table_of_mappings(box, data, odd, mode, compiled):
    reader = compiled("reader")
    expected = box.path / "expected"
    with (
        box.mount(data, mode=mode) as m,
        box.mount(odd[0], spec="batch=10,seed=1", mode=mode, at="odd") as large,
    ):
        paths = [m / name for name in SMALL] + [large / "odd/batch/1", large / "odd/batch/2.npy"]
        for path in paths:
            expected.write_bytes(path.read_bytes())
            done = box.tool(reader, path, expected, "table", check=False)
            assert done.returncode == 0, f"{path}: {done.stdout}"


def numpy_modes(path: Path, source: np.ndarray) -> None:
    for how in ("r", "c"):
        array = np.memmap(path, source.dtype, how, shape=source.shape)
        assert np.array_equal(array, source)
        if how == "c":
            array[0] += 1
            assert not np.array_equal(array, source)
    with pytest.raises(OSError):
        np.memmap(path, source.dtype, "r+", shape=source.shape)
    assert np.array_equal(np.fromfile(path, source.dtype).reshape(source.shape), source)


def test_numpy_memmap_modes(box, data, arrays, mode):
    with box.mount(data, mode=mode) as m:
        numpy_modes(m / "x/batch/9", arrays["x"][m.ids(9)])
        with pytest.raises(OSError):
            np.load(m / "x/batch/9.npy", mmap_mode="r+")


def test_a_mapping_outlives_the_mount_and_the_daemon(box, data, mode, compiled):
    reader = compiled("reader")
    expected = box.path / "expected"
    with box.mount(data, mode=mode) as m:
        path = m / "images/batch/1"
        expected.write_bytes(path.read_bytes())

        def holder():
            child = box.start(reader, path, expected, "hold")
            assert child.stdout.readline() == "ready\n"
            return child

        def check(child) -> str:
            child.stdin.write("?\n")
            child.stdin.flush()
            return child.stdout.readline()

        child = holder()
        assert check(child) == "same\n"
        m.unmount("--lazy")
        assert not os.path.ismount(m.dir)
        assert check(child) == "same\n"
        os.kill(m.pid, 9)
        m.gone()
        assert check(child) == "same\n"
        child.stdin.close()
        assert child.wait(30) == 0


def check_reads(path: Path, wanted: bytes, seed: int, errors: list) -> None:
    random = np.random.default_rng(seed)
    fd = os.open(path, os.O_RDONLY)
    try:
        for _ in range(125):
            at = int(random.integers(0, len(wanted) + (10 << 20)))
            count = int(random.choice([0, 1, 4096, random.integers(0, 3 << 20)]))
            got = os.pread(fd, count, at)
            if got != wanted[at : at + count]:
                errors.append((at, count, len(got)))
    except OSError as e:
        errors.append(e)
    finally:
        os.close(fd)


def test_any_offset_and_length_by_16_threads(box, odd, mode):
    path, array = odd
    with box.mount(path, spec="batch=10,seed=1", mode=mode) as m:
        for name in ("odd/batch/0", "odd/batch/1.npy"):
            file = m / name
            wanted = file.read_bytes()
            assert wanted.endswith(array[m.ids(int(name[10]))].tobytes())
            errors: list = []
            threads = [
                threading.Thread(target=check_reads, args=(file, wanted, seed, errors))
                for seed in range(16)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert not errors


def edges(path: Path, size: int) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        for at in (size, size + 1, size + 4096, 2**40, 2**62, 2**63 - 4097):
            assert os.pread(fd, 4096, at) == b"", at
        assert os.pread(fd, 0, 0) == b"" == os.pread(fd, 0, 2**63 - 1)
        assert len(os.pread(fd, 4096, size - 1)) == 1
        parts = [bytearray(3), bytearray(5000), bytearray(1)]
        assert os.preadv(fd, parts, 1) == 5004
        assert b"".join(parts) == path.read_bytes()[1:5005]
        # The kernel's own answer, as for any file.
        assert errno_of(os.pread, fd, 10, -1) == "EINVAL"
        assert os.lseek(fd, 0, os.SEEK_END) == size
        assert os.read(fd, 1) == b""
        assert os.lseek(fd, 0, os.SEEK_HOLE) == size
        assert os.lseek(fd, 0, os.SEEK_DATA) == 0
    finally:
        os.close(fd)


def test_the_edges_of_a_file(box, odd, mode):
    with box.mount(odd[0], spec="batch=10,seed=1", mode=mode) as m:
        edges(m / "odd/batch/0", 10 * 524_291)


def direct(path: Path, wanted: bytes) -> None:
    """O_DIRECT works, or is refused, but never gives other bytes."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        buffer = mmap.mmap(-1, 1 << 20)
        for at in range(0, len(wanted), 1 << 20):
            got = os.preadv(fd, [buffer], at)
            assert buffer[:got] == wanted[at : at + (1 << 20)]
        answers = set()
        for at in (1, 513, 4097):
            view = memoryview(buffer)[3:1003]
            try:
                got = os.preadv(fd, [view], at)
                assert view[:got] == wanted[at : at + 1000]
                answers.add("read")
            except OSError as e:
                answers.add(e.errno)
            view.release()
        assert len(answers) == 1, answers
        buffer.close()
    finally:
        os.close(fd)


def test_direct_reads(box, odd, mode):
    path, array = odd
    with box.mount(path, spec="batch=10,seed=1", mode=mode) as m:
        direct(m / "odd/batch/0", array[m.ids(0)].tobytes())


def test_reads_by_io_uring(box, data, odd, mode, compiled):
    """Case 38: several in flight, at any place, also past the end."""
    program, expected = compiled("uring"), box.path / "expected"
    with (
        box.mount(data, mode=mode) as m,
        box.mount(odd[0], spec="batch=10,seed=1", mode=mode, at="odd") as large,
    ):
        for path in (m / "images/batch/3", m / "labels/batch/2.npy", large / "odd/batch/1"):
            expected.write_bytes(path.read_bytes())
            # Those of a step nobody has touched go to the daemon, in cached mode.
            fresh = path.parent / f"{int(path.name.split('.')[0]) + 31}{path.suffix}"
            for file in (path, fresh):
                expected.write_bytes(file.read_bytes() if file == path else twin(file))
                said = box.tool(program, file, expected, check=False).stdout
                if said.startswith("missing"):
                    pytest.skip(f"needs io_uring: {said.strip()}")
                assert said == f"ok {expected.stat().st_size}\n", f"{file}: {said}"


def twin(path: Path) -> bytes:
    """The bytes of a batch from the records that make it, so that it stays untouched."""
    stream, step = path.parent.parent, path.name.split(".")[0]
    ids = np.frombuffer((stream.parent / f"index/{step}").read_bytes(), "<u8")
    bare = b"".join((stream / f"record/{i}").read_bytes() for i in ids)
    if path.suffix == "":
        return bare
    header = path.with_name(f"0{path.suffix}").read_bytes()[:4096]
    return header + bare
