"""The loader: alignment, order, bounds, errors, position."""

import gc
import itertools
import signal
import threading
import time
import weakref

import numpy as np
import pytest
from batchfs import Allocator, Loader, StoreError
from batchfs.sampler import Sampler
from batchfs.store import DenseStore, DenseWriter, RaggedBatch

POLICIES = [(0, 1), (1, 1), (1, 4), (4, 1), (4, 4)]


def until(what, holds):
    end = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.002)


def sampler(seed=42, batch=50):
    return Sampler(500, batch, Sampler.Mode.CYCLIC, seed=seed)


@pytest.mark.parametrize("workers, prefetch", POLICIES)
def test_streams_are_aligned_and_in_order(views, images, labels, tokens, workers, prefetch):
    streams = {name: [view] for name, view in views.items()}
    with Loader(streams, sampler(), workers=workers, prefetch=prefetch) as loader:
        assert iter(loader) is loader and loader.shard_count == 1
        for step in range(25):
            [shard] = next(loader)
            ids = sampler().at(step)
            assert list(shard) == list(views)
            assert np.array_equal(shard["images"].numpy(), images[ids])
            assert np.array_equal(shard["labels"].numpy(), labels[ids])
            assert isinstance(shard["tokens"], RaggedBatch)
            want = np.concatenate([tokens[i] for i in ids])
            assert np.array_equal(shard["tokens"].values.numpy(), want)
        with pytest.raises(TypeError):
            len(loader)
    with pytest.raises(StopIteration):
        next(loader)
    loader.close()


@pytest.mark.parametrize("workers, prefetch", POLICIES)
def test_positions_get_contiguous_parts_of_the_batch(views, images, data, workers, prefetch):
    with Allocator("cpu") as other, DenseStore(data / "images") as store:
        view = store.bind(other)
        streams = {"x": [views["images"], view], "y": [view, view]}
        with Loader(streams, sampler(), workers=workers, prefetch=prefetch) as loader:
            for step in range(5):
                shards = next(loader)
                ids = sampler().at(step)
                assert len(shards) == loader.shard_count == 2
                for shard, part in zip(shards, (ids[:25], ids[25:]), strict=True):
                    assert np.array_equal(shard["x"].numpy(), images[part])
                    assert np.array_equal(shard["y"].numpy(), images[part])


@pytest.mark.parametrize("workers, prefetch", POLICIES)
def test_as_many_batches_are_alive_as_told(views, workers, prefetch):
    alive, most, lock = set(), 0, threading.Lock()

    class Held:
        def __init__(self):
            nonlocal most
            with lock:
                alive.add(id(self))
                most = max(most, len(alive))

        def __del__(self):
            with lock:
                alive.discard(id(self))

    def transform(shards):
        return Held()

    loader = Loader(
        {"x": [views["images"]]}, sampler(), workers=workers, prefetch=prefetch, transform=transform
    )
    bound = workers + prefetch if workers else 0
    until("the loader is full", lambda: len(alive) == bound)
    for _ in range(30):
        held = next(loader)
        del held
    until("it is full again", lambda: len(alive) == bound)
    time.sleep(0.05)
    assert len(alive) == bound
    # One that was just delivered may still be in the consumer's hands.
    assert most <= bound + 1
    loader.close()
    gc.collect()
    assert not alive


def test_unordered_gives_all_batches(views):
    slow = threading.Event()

    def transform(shards):
        first = shards[0]["labels"].numpy()[0]
        if not slow.is_set():
            slow.set()
            time.sleep(0.2)
        return int(first)

    streams = {"labels": [views["labels"]]}
    with Loader(streams, sampler(), workers=4, transform=transform, ordered=False) as loader:
        got = [next(loader) for _ in range(10)]
        with pytest.raises(RuntimeError, match="ordered"):
            loader.state_dict()
    with Loader(streams, sampler(), workers=0, transform=transform) as loader:
        want = [next(loader) for _ in range(10)]
    # The batch that was slow came after others; none is missing before the last few.
    assert got != want and len(set(got)) == 10 and set(got[:6]) <= set(want)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_failed_transform_costs_its_batch_alone(views, labels, workers):
    calls = []

    def transform(shards):
        found = shards[0]["labels"].numpy()
        calls.append(found[0])
        if found[0] == labels[sampler().at(2)[0]]:
            raise KeyError("the third")
        return found

    with Loader(
        {"labels": [views["labels"]]}, sampler(), workers=workers, transform=transform
    ) as loader:
        for step in range(8):
            if step == 2:
                with pytest.raises(KeyError, match="the third"):
                    next(loader)
                assert loader.state_dict()["delivered"] == 3
                continue
            assert np.array_equal(next(loader), labels[sampler().at(step)]), step


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_record_fails_its_batches_alone(tmp_path, images, workers):
    path = tmp_path / "s"
    with DenseWriter(path, "uint8", (3, 8, 8), codec="raw", data_shards=1) as w:
        w.append(images)
    with open(path / "data-000.npy", "r+b") as f:
        f.seek(4096 + 192 * 77)
        f.write(b"damage!!")
    order = Sampler(500, 50, Sampler.Mode.SEQUENTIAL)
    with DenseStore(path) as store, Allocator("cpu") as a:
        with Loader({"x": [store.bind(a)]}, order, workers=workers) as loader:
            for step in range(20):
                if step % 10 == 1:
                    with pytest.raises(StoreError) as e:
                        next(loader)
                    assert e.value.record == 77 and e.value.path == path
                else:
                    next(loader)


@pytest.mark.parametrize("workers, prefetch", POLICIES)
def test_the_position_counts_what_was_delivered(views, labels, workers, prefetch):
    streams = {"labels": [views["labels"]]}

    def of(loader):
        return next(loader)[0]["labels"].numpy()

    with Loader(streams, sampler(), workers=workers, prefetch=prefetch) as loader:
        for _ in range(7):
            next(loader)
        state = loader.state_dict()
        assert (state["delivered"], state["step"], state["seekable"]) == (7, 7, True)
        want = [of(loader) for _ in range(5)]
        loader.load_state_dict(state)
        assert all(np.array_equal(of(loader), w) for w in want), "back in the same loader"
        assert loader.state_dict()["delivered"] == 12
    with Loader(streams, sampler(), workers=workers, prefetch=prefetch) as fresh:
        next(fresh)
        fresh.load_state_dict(state)
        assert all(np.array_equal(of(fresh), w) for w in want), "and in a new one"
        with pytest.raises(ValueError, match="spec"):
            fresh.load_state_dict({**state, "spec": "mode=iid,batch=50,seed=1"})
        for other in (
            *({}, None, [], {"version": 2}, {"version": 1}, {**state, "delivered": None}),
            *({**state, "delivered": -1}, {**state, "step": "7"}, {**state, "step": True}),
            *({**state, "step": 2**64}, {**state, "length": 499}),
            {k: v for k, v in state.items() if k != "spec"},
        ):
            with pytest.raises(ValueError):
                fresh.load_state_dict(other)
        # States of earlier versions do not say how many records there were.
        fresh.load_state_dict({k: v for k, v in state.items() if k != "length"})
        assert np.array_equal(of(fresh), want[0]), "what was refused changed nothing"
    started = sampler()
    started.seek(3)
    with Loader(streams, started, workers=workers, prefetch=prefetch) as loader:
        assert np.array_equal(of(loader), labels[sampler().at(3)])
        assert loader.state_dict()["step"] == 4


def test_positions_are_set_under_load(views, labels):
    with Loader({"labels": [views["labels"]]}, sampler(), workers=4, prefetch=2) as loader:
        state = loader.state_dict()
        random = np.random.default_rng(0)
        for _ in range(200):
            step = int(random.integers(0, 2**40))
            loader.load_state_dict({**state, "delivered": step, "step": step})
            for ahead in range(int(random.integers(0, 4))):
                got = next(loader)[0]["labels"].numpy()
                assert np.array_equal(got, labels[sampler().at(step + ahead)])


class Mine:
    """A sampler of the user's own, as simple as can be."""

    def __init__(self, batches):
        self.batches = iter(batches)

    def next(self):
        return next(self.batches)


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_injected_samplers(views, labels, workers):
    batches = [np.arange(i, i + 4, dtype=np.uint64) for i in range(10)]
    batches[3] = np.array([-1, -2, 5, 5])
    batches[4] = [1, 2, 3]
    streams = {"labels": [views["labels"]]}
    with Loader(streams, Mine(batches), workers=workers, prefetch=2) as loader:
        for want in batches:
            got = next(loader)[0]["labels"].numpy()
            assert np.array_equal(got, labels[np.asarray(want).astype(np.int64)])
        state = loader.state_dict()
        assert (state["delivered"], state["step"], state["seekable"]) == (10, None, False)
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(loader)
        with pytest.raises(RuntimeError, match="seek"):
            loader.load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 2])
def test_what_samplers_may_do_wrong(views, workers):
    bad = [[500], [1.5], [], [0, 1, 2], [0, 1]]
    pair = [views["labels"], views["labels"]]
    with Loader({"x": pair}, Mine(bad), workers=workers) as loader:
        for error in (IndexError, TypeError, ValueError, ValueError):
            with pytest.raises(error):
                next(loader)
        assert len(next(loader)) == 2

    class Broken:
        def next(self):
            raise OSError("no more")

    with Loader({"x": pair}, Broken(), workers=workers) as loader:
        for _ in range(20):
            with pytest.raises(OSError, match="no more"):
                next(loader)
    with pytest.raises(AttributeError):
        Loader({"x": pair}, object())
    with pytest.raises(ValueError, match="501"):
        Loader({"x": pair}, Sampler(501, 2))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_of_the_first_records(views, labels, workers):
    with Loader({"x": [views["labels"]]}, Sampler(400, 50, seed=1), workers=workers) as loader:
        for step in range(10):
            want = labels[Sampler(400, 50, seed=1).at(step)]
            assert np.array_equal(next(loader)[0]["x"].numpy(), want)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_state_of_another_sampler_is_refused(views, workers):
    streams = {"x": [views["labels"]]}

    class Own(Mine):
        def seek(self, step):
            raise AssertionError

    with Loader(streams, Own([[1, 2]] * 9), workers=workers) as loader:
        next(loader)
        own = loader.state_dict()
        assert own["seekable"]
        with Loader(streams, sampler(), workers=workers) as other:
            with pytest.raises(ValueError, match="spec"):
                other.load_state_dict(own)
            with pytest.raises(ValueError, match="spec"):
                loader.load_state_dict(other.state_dict())


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_threads_share_a_loader(views, labels, workers):
    got, lock = [], threading.Lock()
    with Loader({"x": [views["labels"]]}, sampler(), workers=workers, prefetch=2) as loader:

        def take():
            for _ in range(50):
                found = next(loader)[0]["x"].numpy()
                with lock:
                    got.append(found.tobytes())

        threads = [threading.Thread(target=take) for _ in range(4)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        want = sorted(labels[sampler().at(step)].tobytes() for step in range(200))
        assert sorted(got) == want, "each batch once"
        state = loader.state_dict()
        assert (state["delivered"], state["step"]) == (200, 200)
        assert np.array_equal(next(loader)[0]["x"].numpy(), labels[sampler().at(200)])


@pytest.mark.parametrize("workers", [1, 3])
def test_closed_by_another_thread(views, workers):
    inside, go = threading.Event(), threading.Event()

    def transform(shards):
        inside.set()
        go.wait(60)
        return shards

    loader = Loader({"x": [views["images"]]}, sampler(), workers=workers, transform=transform)
    ends = []

    def wait():
        with pytest.raises(StopIteration):
            next(loader)
        ends.append(True)

    threads = [threading.Thread(target=wait) for _ in range(3)]
    [t.start() for t in threads]
    inside.wait(60)
    closer = threading.Thread(target=loader.close)
    closer.start()
    # Those who wait for a batch do not wait for the transform; who closes does.
    [t.join(60) for t in threads]
    assert len(ends) == 3 and closer.is_alive()
    go.set()
    closer.join(60)
    assert not closer.is_alive() and not any(t.is_alive() for t in loader.threads)
    with pytest.raises(StopIteration):
        next(loader)


def test_closed_while_others_take(views):
    for _ in range(50):
        loader = Loader({"x": [views["images"]]}, sampler(), workers=2)

        def take(loader=loader):
            for _ in loader:
                pass

        threads = [threading.Thread(target=take) for _ in range(2)]
        [t.start() for t in threads]
        next(loader)
        loader.close()
        [t.join(60) for t in threads]
        assert not any(t.is_alive() for t in threads)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError])
def test_exceptions_of_all_kinds_reach_the_consumer(views, labels, workers, error):
    def transform(shards):
        found = shards[0]["x"].numpy()
        if found[0] == labels[sampler().at(1)[0]]:
            raise error("from the transform")
        return found

    class Interrupted(Mine):
        def next(self):
            raise error("from the sampler")

    streams = {"x": [views["labels"]]}
    with Loader(streams, sampler(), workers=workers, transform=transform) as loader:
        assert np.array_equal(next(loader), labels[sampler().at(0)])
        for _ in range(2):
            with pytest.raises(error, match="from the transform") as e:
                next(loader)
            assert e.traceback[-1].name == "transform", "it says where it was raised"
            if workers > 0 or error is not KeyboardInterrupt:
                break
            # The consumer was interrupted, and the batch comes again.
            assert loader.state_dict()["delivered"] == 1
        else:
            return
        assert np.array_equal(next(loader), labels[sampler().at(2)])
    with Loader(streams, Interrupted([]), workers=workers) as loader:
        with pytest.raises(error, match="from the sampler"):
            next(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_transform_of_whoever_has_the_loader_keeps_nothing_alive(views, workers):
    class Trainer:
        def __init__(self):
            streams = {"x": [views["images"]]}
            self.loader = Loader(streams, sampler(), workers=workers, transform=self.collate)

        def collate(self, shards):
            assert isinstance(self, Trainer)
            return shards

    trainer = Trainer()
    next(trainer.loader)
    threads, gone = trainer.loader.threads, weakref.ref(trainer)
    del trainer

    def collected():
        gc.collect()
        return gone() is None and not any(t.is_alive() for t in threads)

    until("it is collected", collected)


class Subclass(Sampler):
    def next(self):
        return super().next()[::-1]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_subclass_of_sampler_is_asked(views, labels, workers):
    order = Subclass(500, 50, Sampler.Mode.CYCLIC, seed=42)
    with Loader({"labels": [views["labels"]]}, order, workers=workers) as loader:
        for step in range(5):
            got = next(loader)[0]["labels"].numpy()
            assert np.array_equal(got, labels[sampler().at(step)[::-1]])
        state = loader.state_dict()
        loader.load_state_dict({**state, "delivered": 1})
        got = next(loader)[0]["labels"].numpy()
        assert np.array_equal(got, labels[sampler().at(1)[::-1]])


@pytest.mark.parametrize("workers", [0, 2])
def test_views_of_the_users_own(views, labels, workers):
    class Squares:
        def __len__(self):
            return 500

        def __getitems__(self, indices):
            return np.asarray(indices) ** 2

    streams = {"mine": [Squares()], "labels": [views["labels"]]}
    with Loader(streams, sampler(), workers=workers) as loader:
        for step in range(3):
            [shard] = next(loader)
            assert np.array_equal(shard["mine"], sampler().at(step) ** 2)
            assert np.array_equal(shard["labels"].numpy(), labels[sampler().at(step)])


def test_streams_that_do_not_go_together(views, data, tmp_path):
    one = views["images"]
    with DenseWriter(tmp_path / "short", "int8", (), codec="raw") as w:
        w.append(np.zeros(499, np.int8))
        writer_in_use = w
        with pytest.raises(ValueError, match="bind"):
            Loader({"x": [writer_in_use]}, sampler())
    with DenseStore(tmp_path / "short") as short, Allocator("cpu") as a:
        with pytest.raises(ValueError, match="499"):
            Loader({"x": [one], "y": [short.bind(a)]}, sampler())
        with pytest.raises(ValueError, match="bind"):
            Loader({"x": [short]}, sampler())
    for streams in ({}, {"x": []}, {"x": one}, {"x": (one,)}, {"x": [one], "y": [one, one]}):
        with pytest.raises(ValueError):
            Loader(streams, sampler())
    with pytest.raises(ValueError, match="views"):
        Loader({"x": [7]}, sampler())
    for keys, error in [
        ({"workers": -1}, ValueError),
        ({"workers": True}, TypeError),
        ({"workers": "2"}, TypeError),
        ({"prefetch": 0}, ValueError),
        ({"transform": 3}, TypeError),
    ]:
        with pytest.raises(error):
            Loader({"x": [one]}, sampler(), **keys)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_store_that_is_closed_meanwhile_is_an_error(data, workers):
    store = DenseStore(data / "images")
    with Loader({"x": [store.bind(Allocator("cpu"))]}, sampler(), workers=workers) as loader:
        next(loader)
        store.close()
        with pytest.raises(RuntimeError, match="closed"):
            for _ in range(20):
                next(loader)


def test_ctrl_c_reaches_one_who_waits(views):
    import _thread

    done = threading.Event()
    loader = Loader(
        {"x": [views["images"]]}, sampler(), workers=1, transform=lambda shards: done.wait()
    )
    # Who was started in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        timer = threading.Timer(0.3, _thread.interrupt_main)
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            next(loader)
    finally:
        signal.signal(signal.SIGINT, before)
        done.set()
    loader.close()


@pytest.mark.parametrize("where", ["transform", "gather", "sampler"])
@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_is_not_lost_to_ctrl_c(views, labels, workers, where):
    calls, asked, interrupts = itertools.count(), [-1], 0

    def maybe(place):
        if place != where:
            return
        call = next(calls)
        if call % 3 == 1:
            # With a worker, when the consumer waits for this batch and has had those before.
            while workers and asked[0] < call:
                time.sleep(0.001)
            signal.raise_signal(signal.SIGINT)
            time.sleep(0.02)

    class Own:
        def __init__(self):
            self.step = 0

        def next(self):
            maybe("sampler")
            self.step += 1
            return sampler().at(self.step - 1)

    class View:
        def __len__(self):
            return 500

        def __getitems__(self, indices):
            maybe("gather")
            return labels[indices]

    def transform(shards):
        maybe("transform")
        return shards[0]["x"]

    # Who was started in the background ignores it.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    loader = Loader({"x": [View()]}, Own(), workers=workers, prefetch=1, transform=transform)
    try:
        for step in range(30):
            while True:
                try:
                    asked[0] = step
                    got = next(loader)
                    break
                except KeyboardInterrupt:
                    interrupts += 1
                    assert loader.state_dict()["delivered"] == step
            assert np.array_equal(got, labels[sampler().at(step)]), step
        assert interrupts >= 10
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        asked[0] = 1000
        loader.close()
        signal.signal(signal.SIGINT, before)


def test_closed_from_a_transform(views):
    box = []

    def transform(shards):
        box[0].close()
        return shards

    loader = Loader({"x": [views["images"]]}, sampler(), workers=0, transform=transform)
    box.append(loader)
    next(loader)
    with pytest.raises(StopIteration):
        next(loader)
