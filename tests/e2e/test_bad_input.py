"""Bad input is refused in one line that names what is wrong, and leaves nothing behind."""

import errno
import json
import os
import shutil
import socket
import stat
from pathlib import Path

import numpy as np
import pytest
from harness import REPO, errno_of, needs_root

DIGITS = REPO / "tools/data/digits-images.npy"
STORE_FILES = ["batchfs.json", "index.bin", "seal", "data-000.npy", "data-002.npy"]


@pytest.fixture(scope="session")
def whole(session_box) -> tuple[Path, np.ndarray]:
    """A store of 2000 records of 480 bytes, in three shards, to be copied and damaged."""
    array = np.random.default_rng(4).integers(0, 2**32, (2000, 120), np.uint32)
    return session_box.store("whole/x", array, "--shards", "3"), array


@pytest.fixture
def store(box, whole) -> Path:
    return Path(shutil.copytree(whole[0], box.path / "data/x", copy_function=shutil.copy2))


def flip(path: Path, at: int) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0x10]))


def refused_everywhere(box, store: Path, *names) -> None:
    """By every command that opens a store, alone and as part of a dataset."""
    for path in (store, store.parent):
        for command in (["info", path], ["ids", path, "--step", "0"], ["verify", path]):
            box.fails(*command, names=names)
        box.fails("mount", path, box.folder(), "--spec", "batch=8", names=names)


@pytest.mark.parametrize("name", STORE_FILES)
def test_a_file_of_a_store_is_missing(box, store, name):
    (store / name).unlink()
    refused_everywhere(box, store, store, name)


@pytest.mark.parametrize("name", STORE_FILES)
@pytest.mark.parametrize("change", ["shorter", "longer", "empty"])
def test_a_file_of_a_store_has_another_length(box, store, name, change):
    path = store / name
    size = path.stat().st_size
    os.truncate(path, {"shorter": size - 1, "longer": size + 1, "empty": 0}[change])
    box.fails("info", store, names=[store])
    box.fails("mount", store.parent, box.folder(), names=[store])


@pytest.mark.parametrize("name", ["batchfs.json", "seal", "data-001.npy", "index.bin"])
def test_a_bit_of_the_frame_is_flipped(box, store, name):
    """Wherever open looks: header, seal, the shards' headers, the sums of the index."""
    path = store / name
    size = path.stat().st_size
    span = {"data-001.npy": range(4096), "index.bin": range(size - 8, size)}.get(name, range(size))
    random = np.random.default_rng(5)
    for at in {span[0], span[-1], *random.choice(span, 4)}:
        flip(path, int(at))
        box.fails("info", store, names=[store])
        flip(path, int(at))
    box.run("info", store)


def test_a_version_that_is_not_known(box, store):
    path = store / "batchfs.json"
    path.write_text(path.read_text().replace('"version": 1', '"version": 7'))
    refused_everywhere(box, store, store, "version 7")


def test_another_format(box, store):
    (store / "batchfs.json").write_text('{"format": "something", "version": 1}')
    refused_everywhere(box, store, store, "something")
    (store / "batchfs.json").write_text("no JSON")
    refused_everywhere(box, store, store)


def damage_record(store: Path, record: int) -> int:
    """Flips a bit of a record, by the rule of docs/format.md. Returns the shard."""
    header = json.loads((store / "batchfs.json").read_text())
    shards, stripe = header["shards"], header["stripe"]
    shard = record // stripe % shards
    row = record // stripe // shards * stripe + record % stripe
    flip(store / f"data-{shard:03}.npy", 4096 + row * 480 + 11)
    return shard


def test_a_damaged_record(box, store, whole, mode):
    """EIO for the batches that hold it, with the reason; the others go on."""
    array = whole[1]
    told = (str(store), f"shard {damage_record(store, 777)}", "record 777")
    done = box.run("verify", store, check=False)
    assert done.returncode == 1
    assert all(part in done.stdout for part in told), done.stdout
    with box.mount(store, spec="batch=10,mode=sequential", mode=mode) as m:
        for step in (76, 78, 0):
            assert m.read(f"x/batch/{step}") == array[m.ids(step)].tobytes()
        for _ in range(2):
            for path in ("x/batch/77", "x/batch/77.npy", "x/record/777"):
                assert errno_of((m / path).read_bytes) == "EIO"
        lines = [line for line in m.errors().splitlines() if "x/batch/77:" in line]
        assert lines and all(part in lines[-1] for part in told), m.errors()
        assert m.read("x/record/776") == array[776].tobytes()
        assert m.metrics()["failures_total"] == 6
        # What does not touch the payload still works.
        assert json.loads(m.read("x/batch/77.json"))["ids"] == list(range(770, 780))
    with box.mount(store, "--verify", "never", spec="batch=10,mode=sequential") as m:
        assert m.read("x/batch/77") != array[770:780].tobytes()


def test_a_damaged_index_entry(box, store, whole):
    flip(store / "index.bin", 8 * 123)
    with box.mount(store, spec="batch=10,mode=sequential") as m:
        assert errno_of((m / "x/batch/12").read_bytes) == "EIO"
        assert str(store) in m.errors() and "index" in m.errors()
    assert box.run("verify", store, check=False).returncode == 1


def test_a_source_is_cut_while_mounted(box, mode):
    """A mapped file that becomes shorter is EIO, and no signal in the daemon."""
    array = np.random.default_rng(8).integers(0, 256, (4096, 1024), np.uint8)
    path = box.npy("data/x", array)
    with box.mount(path.parent, spec="batch=16,mode=sequential", mode=mode) as m:
        assert m.read("x/batch/0") == array[:16].tobytes()
        os.truncate(path, 1 << 20)
        assert errno_of((m / "x/batch/200").read_bytes) == "EIO"
        line = m.errors().splitlines()[-1]
        assert all(p in line for p in (str(path), "record 3200", f"ends at {1 << 20}")), line
        assert "shard" not in line
        assert m.read("x/batch/10") == array[160:176].tobytes()
        assert errno_of((m / "x/record/4000").read_bytes) == "EIO"
        assert m.config()["pid"] == m.pid


def test_a_store_is_cut_while_mounted(box, store, whole, mode):
    array = whole[1]
    with box.mount(store, spec="batch=10,mode=sequential", mode=mode) as m:
        assert m.read("x/batch/0") == array[:10].tobytes()
        for shard in store.glob("data-*.npy"):
            os.truncate(shard, 4096 + 4096)
        assert errno_of((m / "x/batch/199").read_bytes) == "EIO"
        assert str(store) in m.errors()
        assert m.config()["pid"] == m.pid


def test_streams_of_different_lengths(box):
    box.npy("data/a", np.zeros(10))
    box.store("data/b", np.zeros(11))
    folder = box.path / "data"
    for command in (["info", folder], ["mount", folder, box.folder()]):
        box.fails(*command, names=["a", "b", "10", "11"])


SPECS = {
    "batch=2001": ["2001", "2000"],
    "batch=2001,mode=sequential": ["2001", "2000"],
    "batch=2001,remainder=carry": ["2001", "2000"],
    "batch=32,world=5": ["32", "5"],
    "batch=32,rank=4,world=4": ["rank", "4"],
    "batch=0": ["batch", "0"],
    "batch=": ["batch"],
    "batch=-1": ["batch", "-1"],
    "batch=1e3": ["batch", "1e3"],
    "batch=010": ["batch", "010"],
    "batch=99999999999999999999": ["batch", "99999999999999999999"],
    "seed=18446744073709551616": ["seed", "18446744073709551616"],
    "bacth=3": ["bacth", "mode", "batch", "seed", "remainder", "rank", "world"],
    "mode=random": ["random", "sequential", "iid", "cyclic"],
    "remainder=keep": ["keep", "drop", "carry"],
    "batch=3,batch=4": ["batch"],
    "batch": ["batch"],
    "mode=iid,remainder=carry": ["remainder"],
}


@pytest.mark.parametrize("spec", SPECS)
def test_a_spec_that_cannot_be(box, whole, spec):
    """The message has what was given, and what would do."""
    path, names = whole[0], SPECS[spec]
    box.fails("ids", path, "--spec", spec, "--step", "0", names=names)
    box.fails("mount", path, box.folder(), "--spec", spec, names=names)


@pytest.mark.parametrize("mode_", ["cyclic", "sequential", "iid"])
@pytest.mark.parametrize(("records", "batch"), [(1, 1), (1, 4), (3, 4), (3, 3)])
def test_tiny_data(box, records, batch, mode_):
    """Case 25: refused with both numbers, or full batches for ever. Never a short one."""
    path = box.npy("data/x", np.arange(records, dtype=np.int16))
    spec = f"batch={batch},mode={mode_}"
    if batch > records and mode_ != "iid":
        names = [batch, records]
        box.fails("mount", path.parent, box.folder(), "--spec", spec, names=names, timeout=30)
        return
    with box.mount(path.parent, spec=spec) as m:
        for step in (0, 1, 2, 1000, 2**64 - 1):
            assert m.ids(step).max() < records
            assert m.read(f"x/batch/{step}") == m.ids(step).astype("<i2").tobytes()
            assert (m / f"x/batch/{step}").stat().st_size == 2 * batch


def test_a_batch_larger_than_the_data_names_the_data(box):
    for count, word in ((3, "batch=4 is larger"), (0, "0 records")):
        path = box.npy(f"data{count}", np.zeros((count, 2)))
        spec = ["--spec", "batch=4"]
        box.fails("mount", path, box.folder(), *spec, names=[path, word])
        box.fails("ids", path, *spec, "--step", "0", names=[path, word])


def test_a_batch_larger_than_the_budget(box, whole):
    path = whole[0]
    said = box.fails(
        "mount",
        path,
        box.folder(),
        "--spec",
        "batch=2000",
        "--memory",
        "64KiB",
        names=["x", "65536"],
    )
    assert "--memory" in said
    for wrong in ("0", "lots", "-1"):
        done = box.run("mount", path, box.folder(), f"--memory={wrong}", check=False)
        assert done.returncode != 0 and done.stderr.startswith(("batchfs: ", "error: "))


NPY = {
    "object": (np.array([{}, None], dtype=object), "object"),
    "structured": (np.zeros(3, dtype=[("a", "<i4"), ("b", "<f4")]), "structured"),
    "text": (np.array(["a", "bc"]), "U"),
    "scalar": (np.float64(3), "axis"),
    "datetime": (np.zeros(3, "M8[s]"), "M8"),
}


@pytest.mark.parametrize("name", NPY)
def test_an_array_that_is_no_stream(box, name):
    array, word = NPY[name]
    path = box.path / "data" / f"{name}.npy"
    path.parent.mkdir()
    np.save(path, array, allow_pickle=True)
    dest = box.path / "out"
    for command in (["info", path], ["create", dest, "--from", path]):
        said = box.fails(*command, names=[path])
        assert word.lower() in said.lower(), said
    assert not dest.exists() and os.listdir(box.path / "data") == [path.name]


def test_files_that_are_no_npy(box):
    good = DIGITS.read_bytes()
    bad = {
        "empty": b"",
        "short": good[:5],
        "header": good[:60],
        "cut": good[:-1],
        "long": good + b"\0",
        "text": b"a,b,c\n1,2,3\n",
    }
    for name, data in bad.items():
        path = box.path / f"{name}.npy"
        path.write_bytes(data)
        box.fails("info", path, names=[path])
        box.fails("create", box.path / "out", "--from", path, names=[path])
        box.fails("mount", path, box.folder("elsewhere/mnt"), names=[path])
    assert not (box.path / "out").exists()


@pytest.mark.parametrize("kind", ["pipe", "socket", "device", "link to a pipe"])
def test_something_else_named_npy(box, kind):
    """A pipe would be waited for, a device might do something."""
    box.npy("data/good", np.zeros(10))
    path = box.path / "data/x.npy"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        listens = socket.socket(socket.AF_UNIX)
        # The path is longer than an address may be.
        os.chdir(path.parent)
        listens.bind("x.npy")
        os.chdir("/")
        listens.close()
    elif kind == "device":
        if os.geteuid() != 0:
            pytest.skip("needs root")
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))
    else:
        os.mkfifo(box.path / "pipe")
        path.symlink_to("../pipe")
    for source in (path, path.parent):
        for command in (["info", source], ["mount", source, box.folder()], ["verify", source]):
            box.fails(*command, names=[path, "not a regular file"], timeout=20)
    box.fails("create", "out", "--from", path, names=[path, "not a regular file"], timeout=20)


@pytest.mark.parametrize("name", ["batchfs.json", "seal", "index.bin", "data-000.npy"])
def test_a_file_of_a_store_is_a_pipe(box, store, name):
    (store / name).unlink()
    os.mkfifo(store / name)
    for command in (["info", store], ["verify", store], ["mount", store.parent, box.folder()]):
        box.fails(*command, names=[store / name], timeout=20)


@pytest.mark.parametrize("name", ["index", "view", "all", "README.txt"])
def test_a_stream_with_a_name_of_the_mount(box, name):
    np.save(box.folder("data") / f"{name}.npy", np.zeros(10))
    box.fails("mount", box.path / "data", box.folder(), names=[name])


def test_create_where_something_is(box):
    for make in (Path.mkdir, Path.touch, lambda p: p.symlink_to("nowhere")):
        dest = box.path / "dest"
        make(dest)
        before = sorted(os.listdir(box.path))
        box.fails("create", dest, "--from", DIGITS, names=[dest])
        assert sorted(os.listdir(box.path)) == before
        dest.rmdir() if dest.is_dir() and not dest.is_symlink() else dest.unlink()


def test_create_from_or_to_nowhere(box):
    missing = box.path / "no.npy"
    box.fails("create", box.path / "out", "--from", missing, names=[missing])
    dest = box.npy("file", np.zeros(3)) / "out"
    box.fails("create", dest, "--from", DIGITS, names=[dest.parent])
    for shards in ("0", "256", "x"):
        done = box.run("create", "out", "--from", DIGITS, "--shards", shards, check=False)
        assert done.returncode == 2 and "--shards" in done.stderr
    assert sorted(os.listdir(box.path)) == ["file.npy", "tmp"]


@needs_root
def test_create_in_a_folder_that_may_not_be_written(box, user):
    data = box.path / "digits.npy"
    shutil.copy(DIGITS, data)
    folder = box.folder("closed")
    folder.chmod(0o555)
    said = box.fails("create", folder / "out", "--from", data, user=user, names=[folder / "out"])
    assert "denied" in said.lower()
    assert os.listdir(folder) == []
    disk = box.folder("disk")
    box.tool("mount", "-t", "tmpfs", "-o", "ro", "none", disk)
    try:
        said = box.fails("create", disk / "out", "--from", data, names=[disk / "out"])
        assert "read-only" in said.lower()
    finally:
        box.tool("umount", disk)


@needs_root
@pytest.mark.parametrize("size", ["64k", "4m", "8m"])
def test_create_on_a_full_disk(box, size):
    """Case 59: the error of the system, and nothing published or left."""
    source = box.npy("big", np.random.default_rng(1).integers(0, 256, (9000, 1024), np.uint8))
    disk = box.folder("disk")
    box.tool("mount", "-t", "tmpfs", "-o", f"size={size}", "none", disk)
    try:
        said = box.fails("create", disk / "out", "--from", source, names=[disk / "out"])
        assert os.strerror(errno.ENOSPC).lower() in said.lower()
        assert os.listdir(disk) == []
        box.tool("mount", "-o", "remount,size=32m", disk)
        box.run("create", disk / "out", "--from", source)
        box.run("verify", disk / "out")
    finally:
        box.tool("umount", disk)
