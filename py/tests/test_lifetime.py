"""Nothing leaks, and data lives as long as any tensor of it."""

import gc
import subprocess
import sys
import threading
import weakref

import numpy as np
import pytest
from batchfs import Allocator, Loader
from batchfs.sampler import Sampler
from batchfs.store import DenseStore, RaggedBatch, RaggedStore


@pytest.mark.parametrize("version", [None, (1, 0)])
@pytest.mark.parametrize("copy", [None, True])
def test_capsules_that_nobody_takes(views, flat, version, copy):
    tensor = views["images"][:]
    flat(lambda i: tensor.__dlpack__(max_version=version, copy=copy))


def test_consumed_and_dropped_in_any_order(views, images, flat):
    view = views["images"]

    def wrapper_first(i):
        tensor = view[i % 400 : i % 400 + 10]
        array = np.from_dlpack(tensor)
        del tensor
        assert array[3, 0, 0, 0] == images[i % 400 + 3, 0, 0, 0]

    def array_first(i):
        tensor = view[i % 500]
        array = np.from_dlpack(tensor)
        del array
        assert tensor.shape == (3, 8, 8)

    flat(wrapper_first)
    flat(array_first)


def test_reads_of_changing_sizes(views, flat):
    view, ragged = views["images"], views["tokens"]
    flat(lambda i: view[: i % 500])
    flat(lambda i: ragged[i % 300 : i % 300 + i % 100], times=3000)
    flat(lambda i: ragged[i % 500].to_tensors())


def test_opened_and_closed(data, flat):
    def once(i):
        with DenseStore(data / "images") as store, Allocator("cpu") as allocator:
            store.bind(allocator)[i % 500]

    flat(once, times=1000)


def test_errors(views, flat):
    view = views["images"]

    def once(i):
        try:
            view[500 + i]
        except IndexError:
            pass

    flat(once)


def test_packing_and_unpacking(flat):
    records = [np.arange(n) for n in range(20)]
    flat(lambda i: RaggedBatch.from_records(records).to_tensors(), times=3000)


def test_in_cycles(views):
    class Node:
        pass

    gone = []
    for _ in range(100):
        node = Node()
        node.self, node.tensor = node, views["images"][0:10]
        node.array = np.from_dlpack(node.tensor)
        gone.append(weakref.ref(node.tensor))
    del node
    gc.collect()
    assert not any(ref() for ref in gone)


def test_everything_is_closed_and_the_data_stays(data, images, tokens):
    allocator = Allocator("cpu")
    dense, ragged = DenseStore(data / "images"), RaggedStore(data / "tokens")
    array = np.from_dlpack(dense.bind(allocator)[:])
    parts = [np.from_dlpack(t) for t in ragged.bind(allocator)[:].to_tensors()]
    dense.close()
    ragged.close()
    allocator.close()
    del dense, ragged, allocator
    gc.collect()
    # Somebody else's batches would now be put where it was, if it had been let go.
    with DenseStore(data / "images") as store, Allocator("cpu") as other:
        others = [store.bind(other)[:].numpy() for _ in range(3)]
        for one in others:
            one[:] = 0
    assert np.array_equal(array, images)
    assert all(np.array_equal(a, b) for a, b in zip(parts, tokens, strict=True))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_loaders_come_and_go(views, flat, workers):
    def once(i):
        loader = Loader({"x": [views["images"]]}, Sampler(500, 50), workers=workers, prefetch=2)
        next(loader)
        if i % 2:
            loader.close()

    flat(once, times=200 if workers else 2000)


def test_a_loader_runs_long(views, flat):
    streams = {name: [view] for name, view in views.items()}
    with Loader(streams, Sampler(500, 50), workers=2, prefetch=2) as loader:
        flat(lambda i: next(loader), times=2000)


def test_a_forgotten_loader_ends_its_threads(views):
    loader = Loader({"x": [views["images"]]}, Sampler(500, 50), workers=3)
    next(loader)
    threads = loader.threads
    assert all(t.is_alive() for t in threads)
    del loader
    gc.collect()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("end", ["", "sys.exit(3)", "raise ValueError", "os._exit(3)"])
def test_the_interpreter_ends_with_everything_open(data, workers, end):
    code = f"""
import os, sys, numpy as np
from batchfs import Allocator, Loader
from batchfs.sampler import Sampler
from batchfs.store import DenseStore
view = DenseStore({str(data / "images")!r}).bind(Allocator("cpu"))
kept = np.from_dlpack(view[:])
loader = Loader({{"x": [view]}}, Sampler(500, 50), workers={workers}, transform=lambda s: s)
held = next(loader)
capsule = view[0].__dlpack__()
print("so far", flush=True)
{end}
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    want = {"": 0, "raise ValueError": 1}.get(end, 3)
    assert (done.returncode, done.stdout) == (want, "so far\n"), done.stderr
    assert "panic" not in done.stderr and "Fatal" not in done.stderr


def test_the_end_does_not_wait_for_a_transform_for_ever(data):
    code = f"""
import sys, threading
from batchfs import Allocator, Loader
from batchfs.sampler import Sampler
from batchfs.store import DenseStore
view = DenseStore({str(data / "images")!r}).bind(Allocator("cpu"))
inside = threading.Event()
def transform(shards):
    inside.set()
    threading.Event().wait()
loader = Loader({{"x": [view]}}, Sampler(500, 50), workers=2, transform=transform)
inside.wait()
print("so far", flush=True)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, "so far\n"), done.stderr


def test_many_threads_read_one_view(views, images, tokens):
    wrong = []

    def read(seed):
        random = np.random.default_rng(seed)
        for _ in range(200):
            ids = random.integers(0, 500, 20)
            if not np.array_equal(views["images"][ids].numpy(), images[ids]):
                wrong.append(ids)
            batch = views["tokens"][ids]
            want = np.concatenate([tokens[i] for i in ids])
            if not np.array_equal(batch.values.numpy(), want):
                wrong.append(ids)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not wrong
