"""Fixtures: the program, a folder for each test, a plain user, a data set."""

import contextlib
import fcntl
import json
import os
import pwd
import shutil
import stat
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
import s3
from full_option import pytest_addoption, pytest_collection_modifyitems  # noqa: F401
from harness import REPO, Box, User, mounts_under, passthrough_missing, processes_about


def built() -> Path:
    """The program under test: `BATCHFS_BIN`, else what cargo builds."""
    if given := os.environ.get("BATCHFS_BIN"):
        return Path(given)
    command = "cargo build --workspace --bins --tests --examples --locked --profile ci".split()
    command += ["--message-format=json"]
    out = subprocess.run(command, cwd=REPO, check=True, stdout=subprocess.PIPE, text=True).stdout
    made = (json.loads(line).get("executable") for line in out.splitlines())
    return next(Path(p) for p in made if p and Path(p).name == "batchfs")


@pytest.fixture(scope="session")
def base():
    """The folder that everything happens in. Other users may look into it."""
    path = Path(tempfile.mkdtemp(prefix="batchfs-e2e-"))
    path.chmod(0o755)
    yield path
    left = {"mounts": mounts_under(path), "processes": processes_about(path)}
    shutil.rmtree(path, ignore_errors=True)
    assert not any(left.values()), f"left behind: {left}"


@pytest.fixture(scope="session")
def program(base) -> Path:
    """A copy of the program, where other users can reach it."""
    path = base / "bin" / "batchfs"
    path.parent.mkdir()
    shutil.copy(built(), path)
    path.chmod(0o755)
    return path


@pytest.fixture
def box(base, program):
    """A folder for this test, and an account of what is left there at the end."""
    path = Path(tempfile.mkdtemp(prefix="t-", dir=base))
    path.chmod(0o755)
    box = Box(path, program)
    box.tmp.mkdir()
    box.tmp.chmod(0o1777)
    yield box
    left = box.clean()
    assert not left, f"left behind: {left}"


@pytest.fixture(scope="session")
def session_box(base, program):
    """As `box`, for things that many tests share."""
    path = Path(tempfile.mkdtemp(prefix="shared-", dir=base))
    path.chmod(0o755)
    box = Box(path, program)
    box.tmp.mkdir()
    yield box
    left = box.clean()
    assert not left, f"left behind: {left}"


@pytest.fixture(params=["passthrough", "cached"])
def mode(request) -> str:
    """How the mount delivers bytes."""
    if request.param == "passthrough" and (why := passthrough_missing()):
        pytest.skip(why)
    return request.param


@pytest.fixture(scope="session")
def user():
    """A plain user, made for the tests; /dev/fuse is open to it meanwhile."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become a plain user")
    if shutil.which("useradd") is None or shutil.which("fusermount3") is None:
        pytest.skip("needs useradd and fusermount3")
    # Of this run alone: another one on this machine must not remove it meanwhile.
    name = f"batchfs-test-{os.getpid()}"
    subprocess.run(["useradd", "--system", "--no-create-home", name], check=True)
    entry = pwd.getpwnam(name)
    try:
        with open_fuse():
            yield User(name, entry.pw_uid, entry.pw_gid)
    finally:
        subprocess.run(["userdel", name], check=True, capture_output=True)


@contextlib.contextmanager
def open_fuse():
    """/dev/fuse for everybody, until the last test run on this machine needs it no more."""
    fuse = Path("/dev/fuse")
    if not fuse.exists():
        yield
        return
    with open("/run/lock/batchfs-test-fuse", "a+") as told:
        while True:
            try:
                fcntl.flock(told, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Another run has it open; it is not to be waited for until that one ends.
                fcntl.flock(told, fcntl.LOCK_SH)
                told.seek(0)
                if told.read():
                    break
                fcntl.flock(told, fcntl.LOCK_UN)
                continue
            told.seek(0)
            if not told.read():
                told.write(f"{stat.S_IMODE(fuse.stat().st_mode):o}")
                told.flush()
            fuse.chmod(0o666)
            fcntl.flock(told, fcntl.LOCK_SH)
            break
        yield
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(told, fcntl.LOCK_EX | fcntl.LOCK_NB)
            told.seek(0)
            fuse.chmod(int(told.read(), 8))
            told.truncate(0)


@pytest.fixture(scope="session")
def arrays() -> dict[str, np.ndarray]:
    """What `data` holds: 1000 records in three aligned streams."""
    random = np.random.default_rng(7)
    return {
        "images": random.integers(0, 256, (1000, 12, 9, 3), np.uint8),
        "labels": random.integers(-(2**40), 2**40, 1000, np.int64),
        "x": random.standard_normal((1000, 33)).astype(np.float32),
    }


@pytest.fixture(scope="session")
def data(session_box, arrays) -> Path:
    """A folder of two stores and a .npy file. Tests only read it."""
    session_box.store("data/images", arrays["images"])
    session_box.store("data/labels", arrays["labels"], "--shards", "3")
    session_box.npy("data/x", arrays["x"])
    return session_box.path / "data"


@pytest.fixture(scope="session")
def compiled(base):
    """Compiles a program of tests/c, once, and gives its path."""
    made: dict[str, Path] = {}

    def compile_(name: str) -> Path:
        if shutil.which("gcc") is None:
            pytest.skip("needs gcc")
        if name not in made:
            out = base / "bin" / name
            out.parent.mkdir(exist_ok=True)
            source = REPO / "tests" / "c" / f"{name}.c"
            flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-std=c11", "-pthread"]
            flags += ["-I", REPO / "dmabuf/deliver/include"]
            subprocess.run(["gcc", *flags, "-o", out, source], check=True)
            made[name] = out
        return made[name]

    return compile_


@pytest.fixture(scope="session")
def bucket(session_box):
    """A bucket with a dataset below `data/`, and the port that serves it."""
    # Not every environment that these tests run in has PyArrow.
    from token_data import by_pyarrow, documents

    root = session_box.path / "s3"
    folder = root / "bucket/data"
    for i in range(6):
        by_pyarrow(folder / f"part {i}.parquet", documents(i, 80, first=100 * i))
    by_pyarrow(folder / "lang=zh%2FCN/a+b&c.parquet", documents(9, 80, first=900))
    by_pyarrow(folder / "_temporary/0/x.parquet", documents(9, 80, first=900))
    with s3.server(root) as port:
        yield folder, port


@pytest.fixture
def front(bucket):
    with s3.proxy(bucket[1], bucket[0].parent.parent) as proxy:
        yield proxy
