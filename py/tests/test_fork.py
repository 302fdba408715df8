"""Children: by fork, spawn and forkserver."""

import multiprocessing
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from batchfs import Allocator, Loader
from batchfs.sampler import Sampler
from batchfs.store import DenseStore, DenseWriter


def in_child(work):
    """Runs `work` in a forked child, and gives its exit code."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    timer = threading.Timer(60, os.kill, (pid, 9))
    timer.start()
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finally:
        timer.cancel()


def test_reads_and_writes_after_fork(tmp_path, data, images):
    # Large enough for threads, so that the parent has some.
    large = np.random.default_rng(0).integers(0, 256, (64, 64 << 10), np.uint8)
    with DenseWriter(tmp_path / "large", "uint8", (64 << 10,), codec="zstd") as w:
        w.append(large)
    store, allocator = DenseStore(tmp_path / "large"), Allocator("cpu")
    view = store.bind(allocator)
    assert np.array_equal(view[:].numpy(), large)
    held = view[:].numpy()

    def child():
        assert np.array_equal(view[::-1].numpy(), large[::-1])
        with DenseWriter(tmp_path / "child", "uint8", (64 << 10,), codec="zstd") as w:
            w.append(large)
        assert np.array_equal(DenseStore(tmp_path / "child").bind(allocator)[:].numpy(), large)
        assert np.array_equal(held, large)
        held[:] = 1

    assert in_child(child) == 0
    assert np.array_equal(held, large), "a child's writes are its own"


def test_what_the_parent_fills_anew_does_not_change_in_the_child(tmp_path, data, images):
    allocator = Allocator("cpu")
    view = DenseStore(data / "images").bind(allocator)
    tensor = view[:]
    ask, answer = os.pipe(), os.pipe()

    pid = os.fork()
    if pid == 0:
        try:
            os.read(ask[0], 1)
            os._exit(0 if np.array_equal(tensor.numpy(), images) else 1)
        except BaseException:
            os._exit(2)
    at = tensor.numpy().ctypes.data
    del tensor
    again = view[::-1].numpy()
    assert again.ctypes.data == at, "the pool gave the same memory"
    os.write(ask[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for fd in (*ask, *answer):
        os.close(fd)


WRITES = """
import os, sys, gc
import numpy as np
from batchfs.store import DenseStore, DenseWriter

one = np.zeros((3, 2), np.int8)
with DenseWriter(sys.argv[1], "int8", (2,), codec="raw") as writer:
    writer.append(one)
    pid = os.fork()
    if pid == 0:
        {end}
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == {code}
    writer.append(one)
print(len(DenseStore(sys.argv[1])))
"""


@pytest.mark.parametrize(
    "end, code",
    [
        ("sys.exit(0)", 0),
        ("raise ValueError", 1),
        ("del writer; gc.collect(); os._exit(0)", 0),
        ("writer.abort(); sys.exit(0)", 0),
    ],
)
def test_a_child_that_ends_leaves_the_writer_to_its_parent(tmp_path, end, code):
    script = WRITES.format(end=end, code=code)
    command = [sys.executable, "-c", script, tmp_path / "deep" / "s"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "6\n", done.stderr


def test_a_child_uses_no_writer_of_its_parent(tmp_path):
    one = np.zeros((3, 2), np.int8)
    writer = DenseWriter(tmp_path / "s", "int8", (2,), codec="zstd")
    writer.append(one)

    def child():
        for use in (lambda: writer.append(one), writer.close, lambda: len(writer)):
            with pytest.raises(RuntimeError, match="fork"):
                use()
        writer.abort()
        # Nor does another writer of that name take the folder for a dead one's.
        with DenseWriter(tmp_path / "s", "int8", (2,), codec="raw") as own:
            own.append(one[:1])
            own.abort()

    assert in_child(child) == 0
    writer.append(one)
    writer.close()
    with DenseStore(tmp_path / "s") as store, Allocator("cpu") as a:
        assert np.array_equal(store.bind(a)[:].numpy(), np.concatenate([one, one]))


def test_a_loader_that_another_thread_was_using_says_so(data, images):
    view = DenseStore(data / "images").bind(Allocator("cpu"))
    inside, go = threading.Event(), threading.Event()

    class Slow:
        calls = 0

        def next(self):
            self.calls += 1
            if self.calls == 2:
                inside.set()
                go.wait(60)
            return np.arange(self.calls, self.calls + 4)

    loader = Loader({"x": [view]}, Slow(), workers=0)
    next(loader)
    got = []
    thread = threading.Thread(target=lambda: got.append(next(loader)))
    thread.start()
    inside.wait(60)

    def child():
        with pytest.raises(RuntimeError, match="fork"):
            next(loader)
        loader.close()

    assert in_child(child) == 0
    go.set()
    thread.join(60)
    assert np.array_equal(got[0][0]["x"].numpy(), images[2:6])
    assert np.array_equal(next(loader)[0]["x"].numpy(), images[3:7])


def test_the_parent_closes_while_children_read(data, images):
    store = DenseStore(data / "images")
    view = store.bind(Allocator("cpu"))
    view[:]
    started, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(started[1], b"x")
            os.read(go[0], 1)
            os._exit(0 if np.array_equal(view[:].numpy(), images) else 1)
        except BaseException:
            os._exit(2)
    os.read(started[0], 1)
    store.close()
    os.write(go[1], b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for fd in (*started, *go):
        os.close(fd)


@pytest.mark.parametrize("workers", [0, 2])
def test_loaders_after_fork(data, images, workers):
    view = DenseStore(data / "images").bind(Allocator("cpu"))
    sampler = Sampler(500, 50)
    loader = Loader({"x": [view]}, sampler, workers=workers)
    next(loader)

    def child():
        if workers:
            for use in (lambda: next(loader), loader.state_dict):
                with pytest.raises(RuntimeError, match="fork"):
                    use()
            loader.close()
        else:
            want = images[sampler.at(1)]
            assert np.array_equal(next(loader)[0]["x"].numpy(), want)
        fresh = Loader({"x": [view]}, Sampler(500, 50), workers=2)
        for step in range(12):
            want = images[Sampler(500, 50).at(step)]
            assert np.array_equal(next(fresh)[0]["x"].numpy(), want)
        fresh.close()

    assert in_child(child) == 0
    assert np.array_equal(next(loader)[0]["x"].numpy(), images[Sampler(500, 50).at(1)])
    loader.close()


def test_forks_while_threads_read(data, images):
    view = DenseStore(data / "images").bind(Allocator("cpu"))
    stop = threading.Event()

    def read():
        while not stop.is_set():
            view[np.random.default_rng().integers(0, 500, 100)]

    threads = [threading.Thread(target=read) for _ in range(3)]
    [t.start() for t in threads]
    try:
        for _ in range(60):

            def child():
                for i in range(5):
                    assert np.array_equal(view[i : i + 100].numpy(), images[i : i + 100])

            assert in_child(child) == 0
    finally:
        stop.set()
        [t.join() for t in threads]


@pytest.mark.full
@pytest.mark.timeout(1200)
def test_many_short_lived_children(data, images):
    view = DenseStore(data / "images").bind(Allocator("cpu"))
    view[:]
    for i in range(3000):

        def child(i=i):
            assert np.array_equal(view[i % 500].numpy(), images[i % 500])

        assert in_child(child) == 0


def total(job):
    view, ids = job
    return int(view[ids].numpy().astype(np.int64).sum())


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_views_go_to_workers(views, images, method):
    jobs = [(views["images"], np.arange(i, i + 50)) for i in range(0, 450, 50)]
    with multiprocessing.get_context(method).Pool(2) as pool:
        got = pool.map(total, jobs)
    assert got == [int(images[ids].astype(np.int64).sum()) for _, ids in jobs]
