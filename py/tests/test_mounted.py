"""The door through a mount."""

import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import batchfs
import numpy as np
import pytest
from batchfs.sampler import Sampler
from batchfs.store import DenseWriter
from test_fork import in_child

pytestmark = pytest.mark.usefixtures("fuse")
SPEC = "mode=cyclic,batch=32,seed=7"


@pytest.fixture(scope="module", params=["local", "service", "files", "cached"])
def mounted(request, data):
    """A mount, and one of the ways that its batches come by."""
    way = request.param
    with batchfs.mount(data, spec=SPEC, cached=way == "cached", local=way == "local") as ds:
        assert ds._service is not None
        if way == "files":
            ds._service = None
        yield ds


@pytest.fixture
def ids():
    sampler = Sampler(500, 32, Sampler.Mode.CYCLIC, seed=7)
    return lambda step: sampler.at(step)


def test_batches_are_those_of_the_spec(mounted, ids, images, labels, tokens, boxes):
    assert list(mounted) == ["boxes", "images", "labels", "tokens"] and len(mounted) == 500
    assert mounted.spec == SPEC and mounted.local_batch == 32 and mounted.steps_per_cycle == 15
    for step in (0, 3, 14, 15, 2**63):
        batch = mounted.batch(step)
        assert batch.step == step and np.array_equal(batch.ids, ids(step))
        assert np.array_equal(mounted.index(step), ids(step)) and len(batch) == 4
        assert np.array_equal(batch["images"].numpy(), images[ids(step)])
        assert np.array_equal(mounted["labels"].batch[step].numpy(), labels[ids(step)])
        for name, records in (("tokens", tokens), ("boxes", boxes)):
            parts = batch[name].to_tensors()
            assert len(parts) == 32
            for part, record in zip(parts, (records[i] for i in ids(step)), strict=True):
                assert np.array_equal(part.numpy(), record)
    steps = [b.step for b in mounted.batches(5, 9)]
    assert steps == [5, 6, 7, 8]


def test_small_raw_batches_are_read_here(mounted, images, ids):
    local = {name: mounted[name]._local is not None for name in mounted}
    if not mounted.local:
        assert not any(local.values())
        return
    # Those that have to be decoded, and larger ones, are the daemon's to make.
    assert local == {"images": True, "tokens": True, "boxes": False, "labels": False}
    assert mounted.view(batch=32, seed=7)["images"]._local is not None
    assert mounted.view(batch=8192, mode="iid")["images"]._local is None
    assert mounted.view(batch=2**60, mode="iid")["images"]._local is None
    before = reads(mounted)
    for step in range(20):
        assert np.array_equal(mounted["images"].batch[step].numpy(), images[ids(step)])
    assert reads(mounted) == before


def reads(ds):
    """Opens of batches that the daemon has counted."""
    lines = (ds.path / ".batchfs/metrics").read_text().splitlines()
    return next(line for line in lines if line.startswith("batchfs_opens_total"))


def test_other_records_in_their_place_are_not_taken_for_them(tmp_path, images):
    with DenseWriter(tmp_path / "x", np.uint8, (3, 8, 8), codec="raw") as w:
        w.append(images)
    with batchfs.mount(tmp_path / "x", batch=32, seed=7) as ds:
        want = ds["x"].batch[3].numpy().copy()
        assert ds["x"]._local is not None
        os.rename(tmp_path / "x", tmp_path / "old")
        with DenseWriter(tmp_path / "x", np.uint8, (3, 8, 8), codec="raw") as w:
            w.append(255 - images)
        again = batchfs.open(ds.path)
        assert again["x"]._local is None and np.array_equal(again["x"].batch[3].numpy(), want)
        # What is open already stays what it is.
        assert np.array_equal(ds["x"].batch[3].numpy(), want)
    with batchfs.mount(tmp_path / "old", batch=32, seed=7, verify="always") as ds:
        assert ds["old"]._local is None and np.array_equal(ds["old"].batch[3].numpy(), want)


def test_a_path_that_is_no_mount_any_more(data, tmp_path, images):
    folder = tmp_path / "mnt"
    folder.mkdir()
    with batchfs.mount(data, folder, spec=SPEC) as ds:
        held = ds["images"].batch[0].numpy()
        other = batchfs.open(folder)
        assert other["images"]._local is not None
    with pytest.raises(OSError):
        other["images"].batch[0]
    assert held.shape == (32, 3, 8, 8)


def test_records(mounted, images, tokens, boxes):
    for i in (0, 7, 499):
        assert np.array_equal(mounted["images"].record[i].numpy(), images[i])
        assert np.array_equal(mounted["tokens"].record[i].numpy(), tokens[i])
        assert np.array_equal(mounted["boxes"].record[i].numpy(), boxes[i])
    empty = next(i for i, t in enumerate(tokens) if len(t) == 0)
    assert mounted["tokens"].record[empty].shape == (0,)
    stream = mounted["boxes"]
    assert (stream.dtype, stream.ragged, stream.ndim) == (np.float32, True, 2)
    assert mounted["images"].item_shape == (3, 8, 8) and stream.item_shape is None


def test_writing_into_a_tensor_disturbs_nobody(mounted, ids, images):
    first = mounted["images"].batch[1].numpy()
    first[:] = 0
    assert np.array_equal(mounted["images"].batch[1].numpy(), images[ids(1)])
    assert np.array_equal(np.load(mounted.path / "images/batch/1.npy"), images[ids(1)])


def test_read_only_tensors_say_so(mounted, ids, images):
    tensor = batchfs.open(mounted.path, writable=False)["images"].batch[1]
    assert tensor.readonly and tensor[0].readonly
    with pytest.raises(BufferError, match="read-only"):
        tensor.__dlpack__()
    assert not tensor.numpy().flags.writeable
    assert np.array_equal(tensor.numpy(), images[ids(1)])

    class Copied:
        def __dlpack__(self, **_):
            return tensor.__dlpack__(copy=True)

        def __dlpack_device__(self):
            return tensor.__dlpack_device__()

    assert np.array_equal(np.from_dlpack(Copied()), images[ids(1)])


def test_what_there_is_not(mounted, tmp_path):
    with pytest.raises(KeyError, match="boxes, images"):
        mounted["image"]
    for step in (-1, 2**64):
        with pytest.raises(IndexError):
            mounted["images"].batch[step]
    for record in (500, -1):
        with pytest.raises(IndexError):
            mounted["images"].record[record]
    with pytest.raises(TypeError):
        mounted["images"].batch[1.5]
    with pytest.raises(FileNotFoundError, match="no batchfs mount"):
        batchfs.open(tmp_path)
    with pytest.raises(ValueError, match="batch=0"):
        mounted.view(batch=0)


def test_views_of_other_specs(mounted, images):
    if not (mounted.path / "view").is_dir():
        pytest.skip("this batchfs has no view/ folder")
    view = mounted.view(batch=64, rank=3, world=8)
    want = Sampler(500, 64, seed=0, rank=3, world=8).at(5)
    assert np.array_equal(view["images"].batch[5].numpy(), images[want])
    assert np.array_equal(view.index(5), want) and view.steps_per_cycle == 7


def test_it_pickles_and_forks(mounted, ids, images):
    again = pickle.loads(pickle.dumps(mounted))
    assert np.array_equal(again["images"].batch[2].numpy(), images[ids(2)])
    held = mounted["images"].batch[3]

    def child():
        assert np.array_equal(held.numpy(), images[ids(3)])
        assert np.array_equal(mounted["images"].batch[4].numpy(), images[ids(4)])

    assert in_child(child) == 0


def test_nothing_of_ours_runs_or_grows(mounted, flat):
    mounted["images"].batch[0]
    flat(lambda i: mounted["images"].batch[i % 15].numpy(), times=1000)
    flat(lambda i: mounted["tokens"].batch[i % 15].to_tensors(), times=500)


def test_data_outlives_the_mount(data, images, ids):
    with batchfs.mount(data, batch=32, seed=7) as ds:
        array = np.from_dlpack(ds["images"].batch[0])
        folder = ds.path
    assert not folder.exists()
    gc.collect()
    assert np.array_equal(array, images[ids(0)])
    with pytest.raises(OSError):
        ds["images"].batch[1]


def test_a_folder_of_the_users(data, tmp_path):
    place = tmp_path / "mnt"
    place.mkdir()
    with batchfs.mount(data, place, batch=10, memory=64 << 20, threads=1, verify="always") as ds:
        assert ds.path == place and ds.config["memory_limit"] == 64 << 20
        assert batchfs.open(place)["images"].batch[0].shape == (10, 3, 8, 8)
        pid = ds.config["pid"]
        assert pid != os.getpid()
    assert place.exists() and not os.path.ismount(place)
    wait_for_the_end(pid)


ENDS = """
import os, sys
import batchfs

def main():
    mounted = batchfs.mount(sys.argv[1], batch=10)
    ds = mounted.__enter__()
    # Forgotten, while its dataset is in use.
    del mounted
    print(ds.path, ds.config["pid"], flush=True)
    ds["images"].batch[0].numpy()
    return ds

ds = main()
held = ds["images"].batch[1].numpy()
{end}
"""


@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError"])
def test_the_end_of_the_process_unmounts(data, end):
    command = [sys.executable, "-c", ENDS.format(end=end), data]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == {"": 0, "raise ValueError": 1}.get(end, 3), done.stderr
    folder, pid = done.stdout.split()
    assert not os.path.exists(folder) and "finalizer" not in done.stderr
    wait_for_the_end(pid)


def wait_for_the_end(pid):
    gone = time.monotonic() + 30
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() < gone, "the daemon has not ended"
        time.sleep(0.02)


CHILD = """
import os, sys
import batchfs

with batchfs.mount(sys.argv[1], batch=10) as ds:
    pid = os.fork()
    if pid == 0:
        {end}
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) in (0, 1)
    assert ds["images"].batch[7].shape == (10, 3, 8, 8)
print(os.path.exists(ds.path))
"""


@pytest.mark.parametrize("end", ["sys.exit(0)", "raise ValueError"])
def test_a_child_that_ends_leaves_the_mount(data, end):
    command = [sys.executable, "-c", CHILD.format(end=end), data]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_ctrl_c_while_mounting_leaves_nothing(data, tmp_path):
    code = """
import sys
import batchfs
print("now", flush=True)
with batchfs.mount(sys.argv[1], batch=10) as ds:
    pass
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    for delay in (0, 0.1, 0.2, 0.4):
        child = subprocess.Popen(
            [sys.executable, "-c", code, data],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        child.stdout.readline()
        time.sleep(delay)
        child.send_signal(signal.SIGINT)
        said = child.communicate(timeout=60)[1]
        assert child.returncode in (0, -signal.SIGINT, 1), said
        assert not list(tmp_path.glob("batchfs-*/.batchfs")), said


def test_a_mount_does_not_pickle(data):
    with pytest.raises(TypeError, match="Dataset does"):
        pickle.dumps(batchfs.mount(data))


def test_it_ends_with_an_exception(data):
    with pytest.raises(ZeroDivisionError):
        with batchfs.mount(data, batch=10) as ds:
            raise ZeroDivisionError
    assert not ds.path.exists()


def test_refusals_say_what_the_daemon_says(data, tmp_path):
    with pytest.raises(OSError, match="No such"):
        with batchfs.mount(tmp_path / "none"):
            pass
    with pytest.raises(OSError, match="batch=600"):
        with batchfs.mount(data, batch=600):
            pass
    with pytest.raises(OSError, match="unknown key"):
        with batchfs.mount(data, batsh=6):
            pass
    with pytest.raises(TypeError):
        batchfs.mount(data, spec="batch=1", batch=2)


def test_errors_come_with_the_mounts_reason(tmp_path, images):
    with DenseWriter(tmp_path / "d" / "x", "uint8", (3, 8, 8), codec="raw", data_shards=1) as w:
        w.append(images)
    with open(tmp_path / "d" / "x" / "data-000.npy", "r+b") as f:
        f.seek(4096 + 192 * 7)
        f.write(b"damaged!")
    with batchfs.mount(tmp_path / "d", spec="mode=sequential,batch=10") as ds:
        with pytest.raises(OSError, match="record 7") as e:
            ds["x"].batch[0]
        assert e.value.filename == str(ds.path / "x" / "batch" / "0")
        assert np.array_equal(ds["x"].batch[1].numpy(), images[10:20])


@pytest.mark.parametrize("cached", [False, True], ids=["best", "cached"])
def test_a_dead_daemon_is_an_error_and_mapped_data_stays(data, tmp_path, images, ids, cached):
    place = tmp_path / "mnt"
    place.mkdir()
    with batchfs.mount(data, place, batch=32, seed=7, cached=cached, local=False) as ds:
        # In cached mode the pages come from the service, and do not go with the daemon.
        assert ds.config["delivery"] == "passthrough" or ds.config["service"]
        held = ds["images"].batch[0].numpy()
        os.kill(ds.config["pid"], signal.SIGKILL)
        gone = time.monotonic() + 30
        while True:
            try:
                ds["images"].batch[4]
            except OSError as e:
                if "gone" in str(e):
                    break
            assert time.monotonic() < gone, "no error of a dead daemon"
            time.sleep(0.02)
        assert np.array_equal(held, images[ids(0)])


def command(*args, **more):
    command = [sys.executable, "-m", "batchfs", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, **more)


def test_the_command_line(data, tmp_path):
    assert command("--version").stdout.startswith("batchfs ")
    assert command("nonsense").returncode == 2 and command().returncode == 2
    assert command("--help").returncode == 0
    done = command("info", data)
    assert done.returncode == 0 and "images" in done.stdout
    done = command("info", tmp_path / "none")
    assert done.returncode == 1 and done.stderr.startswith("batchfs: ")
    (tmp_path / "m").mkdir()
    # From a folder where other modules would be found.
    (tmp_path / "numpy.py").write_text("raise ImportError('not this one')")
    mounted = command("mount", data, "m", "--spec", "batch=8", cwd=tmp_path)
    assert mounted.returncode == 0, mounted.stderr
    assert np.load(tmp_path / "m/images/batch/0.npy").shape == (8, 3, 8, 8)
    assert command("umount", tmp_path / "m").returncode == 0


def test_the_demo_of_the_wheel(tmp_path):
    done = command("demo", env={**os.environ, "TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert "every byte is that of the source" in done.stdout and not list(tmp_path.iterdir())


def test_ctrl_c_ends_a_mount_in_front(data, tmp_path):
    (tmp_path / "m").mkdir()
    child = subprocess.Popen(
        [sys.executable, "-m", "batchfs", "mount", data, tmp_path / "m", "-f"],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert "is mounted" in child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert child.wait(60) == 0 and not os.path.ismount(tmp_path / "m")
    child.stdout.close()
