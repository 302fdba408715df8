"""Batches as descriptors, and what `batchfs.open` makes of them in cached mode."""

import gc
import json
import mmap
import os
import pickle
import subprocess
import sys
import threading
import time
from pathlib import Path

import batchfs
import batchfs.dmabuf
import numpy as np
import pytest
from batchfs.sampler import Sampler
from test_fork import in_child

pytestmark = pytest.mark.usefixtures("fuse")
SPEC = "mode=cyclic,batch=32,seed=7"


@pytest.fixture
def ids():
    sampler = Sampler(500, 32, Sampler.Mode.CYCLIC, seed=7)
    return lambda step: sampler.at(step)


@pytest.fixture(params=[False, True], ids=["best", "cached"])
def mounted(request, data):
    with batchfs.mount(data, spec=SPEC, cached=request.param) as ds:
        yield ds


def metrics(ds) -> dict[str, int]:
    lines = (ds.path / ".batchfs/metrics").read_text().splitlines()
    pairs = (line.split() for line in lines if not line.startswith("#"))
    return {name.removeprefix("batchfs_"): int(value) for name, value in pairs}


def settles(ds, name: str, value: int = 0) -> None:
    end = time.monotonic() + 30
    while metrics(ds)[name] != value:
        assert time.monotonic() < end, metrics(ds)
        time.sleep(0.01)


def test_exports_are_the_batches(mounted, ids, images, labels):
    with batchfs.dmabuf.connect(mounted.path) as client:
        assert client.about["streams"] == list(mounted) and "memfd" in client.about["kinds"]
        for step in (0, 1, 2, 2**64 - 1):
            with client.export("images", step) as batch:
                assert batch.kind == "memfd" and batch.shared and list(batch) == ["data"]
                assert batch.size == images[ids(step)].nbytes and len(batch) == 1
                with mmap.mmap(batch.fileno(), 0, prot=mmap.PROT_READ) as mapped:
                    assert mapped[:] == images[ids(step)].tobytes()
                array = batch["data"].numpy()
            assert np.array_equal(array, images[ids(step)])
            with pytest.raises(ValueError, match="released"):
                batch.fileno()
            array[:] = 0
            assert np.array_equal(client.export("images", step)["data"].numpy(), images[ids(step)])
        view = client.export("labels", 3, view="batch=4,mode=sequential")
        assert np.array_equal(view["data"].numpy(), labels[12:16])
        tensor = view.tensor("data", writable=False)
        assert tensor.readonly
        ragged = client.export("tokens", 1)
        assert list(ragged) == ["values", "cu_seqlens", "shapes"]
        assert ragged["cu_seqlens"].numpy()[-1] == len(ragged["values"])
        with pytest.raises(KeyError):
            ragged["data"]
        del array, view, tensor, ragged
        gc.collect()
        assert client.stats()["client"] == {"bytes": 0, "in_flight": 0, "leases": 0}
    settles(mounted, "service_clients")


def test_refusals_are_the_errors_of_the_files(mounted):
    client = batchfs.dmabuf.connect(mounted.path)
    with pytest.raises(FileNotFoundError, match="there is no stream 'nope'|no stream \"nope\""):
        client.export("nope", 0)
    with pytest.raises(FileNotFoundError, match="view/batch=501"):
        client.export("images", 0, view="batch=501")
    for step in (-1, 2**64):
        with pytest.raises(IndexError):
            client.export("images", step)
    with pytest.raises(TypeError):
        client.export("images", 1.5)
    client.close()
    with pytest.raises(OSError, match="closed"):
        client.export("images", 0)


STARVED = """
import errno, os, resource, sys
import batchfs, batchfs.dmabuf

path = sys.argv[1]
with batchfs.dmabuf.connect(path) as client:
    client.export("images", 0).release()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    held = []
    try:
        while True:
            held.append(os.open("/dev/null", os.O_RDONLY))
    except OSError as e:
        assert e.errno == errno.EMFILE
    for step in range(5):
        try:
            client.export("images", step)
            raise SystemExit("it had no descriptor to take")
        except OSError as e:
            assert e.errno == errno.EMFILE and "ulimit -n" in str(e), e
    for fd in held:
        os.close(fd)
    assert client.stats()["client"] == {"bytes": 0, "in_flight": 0, "leases": 0}, client.stats()
    with client.export("images", 3) as batch:
        print(batch.size)
"""


def test_a_process_without_descriptors_says_so_and_keeps_nothing(mounted, ids, images):
    done = subprocess.run(
        [sys.executable, "-c", STARVED, str(mounted.path)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert int(done.stdout) == images[ids(3)].nbytes
    settles(mounted, "service_leases")


def test_where_no_service_is(tmp_path):
    with pytest.raises(FileNotFoundError, match="no batchfs mount"):
        batchfs.dmabuf.connect(tmp_path)


def test_open_uses_it_in_cached_mode_and_gives_back(data, ids, images, tokens):
    with batchfs.mount(data, spec=SPEC, cached=True, local=False) as ds:
        kept = [ds["images"].batch[step] for step in range(5)]
        assert metrics(ds)["service_leases"] == 5
        part = kept[3][7:9]
        del kept
        settles(ds, "service_leases", 1)
        assert np.array_equal(part.numpy(), images[ids(3)][7:9])
        batch = ds["tokens"].batch[4]
        for got, i in zip(batch.to_tensors(), ids(4), strict=True):
            assert np.array_equal(got.numpy(), tokens[i])
        assert np.array_equal(ds.batch(9).ids, ids(9))
        view = ds.view(batch=8, mode="sequential")
        assert np.array_equal(view["images"].batch[1].numpy(), images[8:16])
        assert metrics(ds)["service_exports_total"] == 8
        again = pickle.loads(pickle.dumps(ds))
        assert np.array_equal(again["images"].batch[1].numpy(), images[ids(1)])
        del part, batch, view, again, got
        gc.collect()
        settles(ds, "service_leases")


def test_what_is_held_never_changes(data, ids, images):
    with batchfs.mount(data, spec=SPEC, cached=True, memory="8MiB") as ds:
        stream = ds["images"].batch
        held = {step: stream[step].numpy() for step in range(0, 300, 30)}
        for step in range(300):
            assert np.array_equal(stream[step].numpy(), images[ids(step)])
        for step, array in held.items():
            assert np.array_equal(array, images[ids(step)])
    for step, array in held.items():
        assert np.array_equal(array, images[ids(step)]), "after the end of the mount"


def test_without_the_service_files_do(data, ids, images, capfd):
    with batchfs.mount(data, spec=SPEC, cached=True, local=False) as ds:
        socket = Path(
            json.loads((ds.path / ".batchfs/config.json").read_bytes())["service"]["socket"]
        )
        socket.unlink()
        assert np.array_equal(ds["images"].batch[3].numpy(), images[ids(3)])
        assert metrics(ds)["service_exports_total"] == 0
    said = capfd.readouterr()
    assert said.out == said.err == ""


def test_more_than_a_client_may_have_is_read_from_files(data, ids, images):
    with batchfs.mount(data, spec=SPEC, cached=True, memory="1MiB") as ds:
        held = [ds["images"].batch[step].numpy() for step in range(100)]
        for step, array in enumerate(held):
            assert np.array_equal(array, images[ids(step)])
        assert metrics(ds)["service_exports_total"] < 100


def test_forks(data, ids, images):
    with batchfs.mount(data, spec=SPEC, cached=True, local=False) as ds:
        mine = ds["images"].batch[0]

        def child():
            assert np.array_equal(mine.numpy(), images[ids(0)])
            assert np.array_equal(ds["images"].batch[1].numpy(), images[ids(1)])

        for _ in range(5):
            assert in_child(child) == 0
        # Children gave nothing back that is the parent's.
        settles(ds, "service_leases", 1)
        for step in range(2, 40):
            assert np.array_equal(ds["images"].batch[step].numpy(), images[ids(step)])
        assert np.array_equal(mine.numpy(), images[ids(0)])


def test_threads(data, ids, images):
    failed = []
    with batchfs.mount(data, spec=SPEC, cached=True, local=False) as ds:

        def work(first: int) -> None:
            for step in range(first, 200, 8):
                if not np.array_equal(ds["images"].batch[step].numpy(), images[ids(step)]):
                    failed.append(step)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        gc.collect()
        settles(ds, "service_leases")
        assert metrics(ds)["service_clients"] <= 8


def test_nothing_grows(data):
    with batchfs.mount(data, spec=SPEC, cached=True, local=False) as ds:
        stream = ds["labels"].batch

        def held() -> tuple[int, int]:
            return len(os.listdir("/proc/self/fd")), len(Path("/proc/self/maps").read_bytes())

        for step in range(100):
            stream[step]
        before = held()
        for step in range(3000):
            stream[step % 900]
        after = held()
        assert after[0] <= before[0] + 1 and after[1] <= before[1] + 4096
