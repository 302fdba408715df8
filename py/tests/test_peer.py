"""Side by side with loaderx 2.8.19: the same writes, selections and errors.

Where it differs on purpose, the difference is written down here.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest
from conftest import bits, values_of

hypothesis = pytest.importorskip("hypothesis")
pytest.importorskip("loaderx", reason="loaderx needs Python 3.12 or newer")

import batchfs  # noqa: E402
import batchfs.sampler  # noqa: E402
import batchfs.store as ours  # noqa: E402
import loaderx  # noqa: E402
import loaderx.sampler  # noqa: E402
import loaderx.zrecord as peer  # noqa: E402
from batchfs import dtypes  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

MANY = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True
)
SOME = st.sampled_from
CODECS = SOME(["raw", "zstd"])
DTYPES = SOME(dtypes.supported)


def outcome(work):
    """What it gives, or the class of its error."""
    try:
        return work()
    except Exception as e:  # noqa: BLE001
        return type(e)


class Both:
    """A folder with room for one store of each."""

    def __enter__(self):
        self.path = Path(tempfile.mkdtemp())
        self.allocators = (batchfs.Allocator("cpu"), loaderx.Allocator("cpu"))
        return self

    def __exit__(self, *exc):
        shutil.rmtree(self.path)

    def each(self, work):
        """The same with either module: `work(module, path, allocator)`."""
        modules = zip((ours, peer), ("ours", "peer"), self.allocators, strict=True)
        return [outcome(lambda m=m, n=n, a=a: work(m, self.path / n, a)) for m, n, a in modules]


def array_of(tensor):
    return tensor.numpy() if hasattr(tensor, "numpy") else np.from_dlpack(tensor)


def same(a, b, what):
    if isinstance(a, type) or isinstance(b, type):
        assert a is b, what
        return
    if hasattr(a, "values"):
        for field in ("values", "cu_seqlens", "shapes"):
            x, y = array_of(getattr(a, field)), array_of(getattr(b, field))
            # Shapes are uint64 in ours and in loaderx 2.8.18, uint32 in 2.8.19.
            assert field == "shapes" or x.dtype == y.dtype
            assert x.shape == y.shape, what
            assert np.array_equal(x, y) if field != "values" else np.array_equal(bits(x), bits(y))
        return
    a, b = array_of(a), array_of(b)
    assert a.dtype == b.dtype and a.shape == b.shape, what
    assert np.array_equal(bits(a), bits(b)), what


def selections(length):
    inside = st.integers(0, length - 1)
    return st.one_of(
        inside,
        st.integers(length, length + 3),
        st.lists(inside, max_size=8),
        st.lists(inside, min_size=1, max_size=8).map(tuple),
        st.lists(st.integers(0, length + 1), min_size=1, max_size=4),
        st.slices(length),
        st.lists(inside, max_size=5).map(lambda x: np.array(x, np.int64)),
        st.lists(inside, max_size=5).map(lambda x: np.array(x, np.uint8)),
        st.lists(st.booleans(), min_size=length, max_size=length).map(lambda x: np.array(x, bool)),
        st.lists(st.booleans(), min_size=length, max_size=length),
        SOME([1.5, "a", [0.5], np.array([1.0])]),
    )


@MANY
@given(data=st.data(), dtype=DTYPES, codec=CODECS, shards=st.integers(1, 5))
def test_dense_stores(data, dtype, codec, shards):
    shape = data.draw(st.lists(st.integers(1, 4), max_size=3).map(tuple))
    appends = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    parts = [values_of(dtype, (n, *shape), seed) for seed, n in enumerate(appends)]

    def write(module, path, _):
        with module.DenseWriter(path, dtype, shape, codec=codec, data_shards=shards) as writer:
            for part in parts:
                writer.append(part)

    length = sum(appends)
    chosen = data.draw(st.lists(selections(length), min_size=1, max_size=5))
    with Both() as both:
        assert both.each(write) == [None, None]

        def read(module, path, allocator):
            with module.DenseStore(path) as store:
                view = store.bind(allocator)
                found = (store.dtype, store.item_shape, store.codec, store.data_shards, len(view))
                return found, [outcome(lambda s=s: view[s]) for s in chosen]

        (about, got), (theirs, want) = both.each(read)
        assert about == theirs
        for a, b, selection in zip(got, want, chosen, strict=True):
            same(a, b, selection)


@MANY
@given(data=st.data(), dtype=DTYPES, codec=CODECS, ndim=st.integers(1, 3))
def test_ragged_stores(data, dtype, codec, ndim):
    # loaderx refuses empty records, ours takes them.
    shapes = data.draw(
        st.lists(st.tuples(*[st.integers(1, 4)] * ndim), min_size=1, max_size=12),
    )
    records = [values_of(dtype, shape, seed) for seed, shape in enumerate(shapes)]
    chosen = data.draw(st.lists(selections(len(records)), min_size=1, max_size=4))

    def write(module, path, _):
        with module.RaggedWriter(path, dtype, ndim, codec=codec) as writer:
            writer.append(module.RaggedBatch.from_records(records))

    with Both() as both:
        assert both.each(write) == [None, None]

        def read(module, path, allocator):
            with module.RaggedStore(path) as store:
                view = store.bind(allocator)
                found = (store.dtype, store.ndim, store.codec, len(view))
                return found, [outcome(lambda s=s: view[s]) for s in chosen]

        (about, got), (theirs, want) = both.each(read)
        assert about == theirs
        for a, b, selection in zip(got, want, chosen, strict=True):
            same(a, b, selection)
            if hasattr(a, "values"):
                for x, y in zip(a.to_tensors(), b.to_tensors(), strict=True):
                    same(x, y, selection)


@pytest.mark.parametrize(
    "args, options",
    [
        (("int8", (2,)), {"codec": "lz4"}),
        (("int8", (2,)), {"codec": "zstd_dict"}),
        (("int8", (2,)), {"codec": "raw", "dict_bytes": b"x"}),
        (("int8", (2,)), {"codec": "raw", "data_shards": 0}),
        (("int8", (2,)), {"codec": "raw", "data_shards": 256}),
        (("int8", (2,)), {"codec": "raw", "data_shards": 1.5}),
        (("int8", (2,)), {"codec": "raw", "data_shards": True}),
        (("int8", (0,)), {"codec": "raw"}),
        (("int8", (-1,)), {"codec": "raw"}),
        (("int8", 5), {"codec": "raw"}),
        (("int8", ("a",)), {"codec": "raw"}),
        (("O", (2,)), {"codec": "raw"}),
        ((">i4", (2,)), {"codec": "raw"}),
        (("nonsense", (2,)), {"codec": "raw"}),
        (("int8",), {"codec": "raw"}),
        (("int8", (2,)), {}),
    ],
)
def test_writers_refuse_the_same_with_the_same_class(args, options):
    with Both() as both:
        a, b = both.each(lambda m, path, _: m.DenseWriter(path, *args, **options))
        assert a is b and isinstance(a, type)


BATCHES = {
    "dtype": np.zeros((2, 3), np.int64),
    "shape": np.zeros((2, 4), np.int32),
    "axes": np.zeros((2, 3, 1), np.int32),
    "record": np.zeros(3, np.int32),
    "strided": np.zeros((2, 6), np.int32)[:, ::2],
    "fortran": np.zeros((3, 2), np.int32).T,
    "empty": np.zeros((0, 3), np.int32),
    "list": [[1, 2, 3]],
    "bytearray": bytearray(24),
    "none": None,
}


@pytest.mark.parametrize("name", BATCHES)
def test_appends_refuse_the_same_with_the_same_class(name):
    with Both() as both:

        def append(module, path, _):
            with module.DenseWriter(path, "int32", (3,), codec="raw") as writer:
                writer.append(BATCHES[name])

        a, b = both.each(append)
        assert a is b and isinstance(a, type)


def test_closed_things_are_the_same_errors():
    with Both() as both:

        def write(module, path, _):
            with module.DenseWriter(path, "int8", (2,), codec="raw") as writer:
                writer.append(np.zeros((4, 2), np.int8))

        both.each(write)

        def closed_store(module, path, allocator):
            store = module.DenseStore(path)
            view = store.bind(allocator)
            store.close()
            view[0]

        def unbound(module, path, _):
            module.DenseStore(path)[0]

        def not_an_allocator(module, path, _):
            module.DenseStore(path).bind(3)

        def reads_a_writer(module, path, _):
            module.DenseWriter(path.with_suffix(".w"), "int8", (2,), codec="raw")[0]

        def a_batch_of_nothing(module, path, _):
            module.RaggedBatch.from_records([])

        def lists(module, path, _):
            module.RaggedBatch.from_records([[1]])

        def scalars(module, path, _):
            module.RaggedBatch.from_records([np.array(1)])

        for work in (
            *(closed_store, unbound, not_an_allocator, reads_a_writer),
            *(a_batch_of_nothing, lists, scalars),
        ):
            a, b = both.each(work)
            assert a is b and isinstance(a, type), work


@MANY
@given(
    length=st.integers(1, 300),
    batch=st.integers(1, 64),
    mode=st.integers(0, 2),
    seed=st.integers(0, 2**64 - 1),
    step=st.integers(0, 2**64 - 2),
)
def test_samplers_promise_the_same(length, batch, mode, seed, step):
    # The orders are not the same, nor have they to be; what they promise is.
    if batch > length and mode != 1:
        # loaderx repeats records within a batch, or gives a smaller one; ours refuses.
        with pytest.raises(ValueError):
            batchfs.sampler.Sampler(length, batch, mode, seed)
        return
    for module in (batchfs.sampler, loaderx.sampler):
        sampler = module.Sampler(length, batch, mode, seed)
        sampler.seek(step)
        drawn = sampler.next()
        assert drawn.dtype == np.uint64 and drawn.shape == (batch,) and drawn.max() < length
        kept = drawn.copy()
        sampler.next()
        sampler.seek(step)
        assert np.array_equal(next(sampler), kept)
        if mode == 0:
            assert kept.tolist() == [(step * batch + i) % length for i in range(batch)]
        if mode == 2:
            assert len(np.unique(kept)) == batch


@pytest.mark.parametrize(
    "args", [(0, 1, 0), (1, 0, 0), (5, 1, 7), (5, 1, 0, -1), (5, 1, 0, 2**64), ("a", 1, 0)]
)
def test_samplers_refuse_the_same(args):
    ours_, theirs = (
        outcome(lambda m=m: m.Sampler(*args)) for m in (batchfs.sampler, loaderx.sampler)
    )
    assert ours_ is theirs and isinstance(ours_, type)


@pytest.mark.parametrize("workers", [0, 1])
def test_loaders_deliver_the_same(workers):
    records = values_of("int32", (100, 3))

    class Order:
        def __init__(self):
            self.random = np.random.default_rng(5)

        def next(self):
            return self.random.integers(0, 100, 10).astype(np.uint64)

    with Both() as both:

        def write(module, path, _):
            with module.DenseWriter(path, "int32", (3,), codec="zstd") as writer:
                writer.append(records)

        both.each(write)

        def load(module, path, allocator):
            whole = batchfs if module is ours else loaderx
            view = module.DenseStore(path).bind(allocator)
            loader = whole.Loader({"a": [view, view], "b": [view, view]}, Order(), workers=workers)
            try:
                steps = [next(loader) for _ in range(20)]
            finally:
                loader.close()
            return [[{k: array_of(v) for k, v in s.items()} for s in step] for step in steps]

        got, want = both.each(load)
        for a, b in zip(got, want, strict=True):
            assert [list(s) for s in a] == [list(s) for s in b]
            for x, y in zip(a, b, strict=True):
                assert all(np.array_equal(x[k], y[k]) for k in x)


@pytest.mark.parametrize(
    "streams, keys",
    [
        ({}, {}),
        ({"x": []}, {}),
        ({"x": None}, {}),
        (None, {"workers": -1}),
        (None, {"workers": True}),
        (None, {"workers": "a"}),
        (None, {"prefetch": 0}),
        (None, {"prefetch": 1.5}),
    ],
)
def test_loaders_refuse_the_same(streams, keys):
    with Both() as both:

        def write(module, path, _):
            with module.DenseWriter(path, "int8", (), codec="raw") as writer:
                writer.append(np.zeros(10, np.int8))

        both.each(write)

        def load(module, path, allocator):
            whole = batchfs if module is ours else loaderx
            view = module.DenseStore(path).bind(allocator)
            given_ = {"x": [view]} if streams is None else streams
            whole.Loader(given_, whole.sampler.Sampler(10, 2, 0), **keys).close()

        a, b = both.each(load)
        assert a is b and isinstance(a, type)
