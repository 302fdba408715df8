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
        inside.map(np.int64),
        inside.map(np.uint16),
        inside.map(range),
        st.lists(inside, max_size=5).map(lambda x: np.array(x, ">i4")),
        st.lists(inside, max_size=5).map(lambda x: np.array([*x, *x], np.int64)[::2]),
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


def test_an_array_without_axes_is_one_record():
    # As in NumPy; for loaderx it is a batch of one.
    with Both() as both:
        write_dense(both, values_of("int32", (5, 3)))

        def read(module, path, allocator):
            return module.DenseStore(path).bind(allocator)[np.array(2)].shape

        assert both.each(read) == [(3,), (1, 3)]


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


@settings(MANY, max_examples=30)
@given(data=st.data(), length=st.integers(1, 9))
def test_negative_indices_count_from_the_end_where_loaderx_refuses_them(data, length):
    records = values_of("int32", (length, 2))
    negative = data.draw(st.integers(-length, -1))
    outside = data.draw(st.integers(-length - 3, -length - 1))
    with Both() as both:
        write_dense(both, records)

        def read(module, path, allocator):
            with module.DenseStore(path) as store:
                view = store.bind(allocator)
                selected = (negative, [0, negative], np.array([negative]), outside, [outside])
                return [outcome(lambda s=s: view[s]) for s in selected]

        got, theirs = both.each(read)
        assert np.array_equal(array_of(got[0]), records[negative])
        assert np.array_equal(array_of(got[1]), records[[0, negative]])
        assert np.array_equal(array_of(got[2]), records[[negative]])
        assert got[3:] == [IndexError] * 2
        assert set(theirs) <= {IndexError, OverflowError}


def write_dense(both, records, codec="raw"):
    def write(module, path, _):
        item = records.shape[1:]
        with module.DenseWriter(path, records.dtype, item, codec=codec) as writer:
            writer.append(records)

    assert both.each(write) == [None, None]


def appends(dtype, shape):
    """Batches that fit a store, and batches that do not."""
    other = np.dtype("int16") if dtype != np.dtype("int16") else np.dtype("int64")

    def made(rows, seed, bad):
        good = values_of(dtype, (rows, *shape), seed)
        return {
            "good": good,
            "dtype": values_of(other, (rows, *shape), seed),
            "axes": good[None],
            "shape": values_of(dtype, (rows, *shape, 2), seed),
            "none": good[:0],
            "strided": np.repeat(good, 2, axis=0)[::2],
            "list": good.tolist(),
            "thing": object(),
        }[bad]

    kinds = ["good"] * 6 + ["dtype", "axes", "shape", "none", "list", "thing"]
    return st.builds(made, st.integers(1, 6), st.integers(0, 99), SOME(kinds + ["strided"]))


@MANY
@given(data=st.data(), dtype=DTYPES, codec=SOME(["raw", "zstd", "zstd_dict"]))
def test_appends_that_do_not_fit_change_nothing_in_either(data, dtype, codec):
    shape = data.draw(st.lists(st.integers(1, 3), max_size=2).map(tuple))
    batches = data.draw(st.lists(appends(dtype, shape), min_size=1, max_size=6))
    options = {"dict_bytes": dictionary()} if codec == "zstd_dict" else {}
    # One row may be C-contiguous whatever its strides.
    with Both() as both:

        def write(module, path, _):
            with module.DenseWriter(path, dtype, shape, codec=codec, **options) as writer:
                told = [(outcome(lambda b=b: writer.append(b)), len(writer)) for b in batches]
                if len(writer) == 0:
                    writer.append(values_of(dtype, (1, *shape)))
            with module.DenseStore(path) as store:
                return told, array_of(store.bind(both.allocators[module is peer])[:]).copy()

        (told, got), (theirs, want) = both.each(write)
        assert told == theirs
        assert np.array_equal(bits(got), bits(want))


def dictionary():
    """Made by loaderx of records that have something in common."""
    with Both() as both:
        records = np.tile(np.arange(64, dtype=np.int32), (2000, 1))
        records[:, 0] = np.arange(2000)
        write_dense(both, records)
        with peer.DenseStore(both.path / "peer") as store:
            return peer.train_dict(store.bind(both.allocators[1]))


RAGGED = {
    "int64 cu_seqlens": lambda v, c, s: (v, c.astype(np.int64), s),
    "short cu_seqlens": lambda v, c, s: (v, c[:-1], s),
    "does not begin at 0": lambda v, c, s: (v, c + np.int32(1), s),
    "goes back": lambda v, c, s: (v, c[::-1].copy(), s),
    "values too short": lambda v, c, s: (v[:-1], c, s),
    "values of two axes": lambda v, c, s: (v[None], c, s),
    "strided values": lambda v, c, s: (np.repeat(v, 2)[::2], c, s),
    "other dtype": lambda v, c, s: (v.astype(np.float64), c, s),
    "int64 shapes": lambda v, c, s: (v, c, s.astype(np.int64)),
    "shapes of one axis": lambda v, c, s: (v, c, s.reshape(-1)),
    "shapes of more axes": lambda v, c, s: (v, c, np.concatenate([s, s], axis=1)),
    "shapes that disagree": lambda v, c, s: (v, c, s + np.uint32(1)),
    "lists": lambda v, c, s: (v.tolist(), c, s),
    "nothing": lambda v, c, s: (v[:0], c[:1], s[:0]),
    "right": lambda v, c, s: (v, c, s),
}


@pytest.mark.parametrize("name", RAGGED)
def test_ragged_appends_refuse_the_same_with_the_same_class(name):
    records = [np.arange(n, dtype=np.int32) for n in (3, 1, 4)]
    values = np.concatenate(records)
    cu, shapes = np.array([0, 3, 4, 8], np.int32), np.array([[3], [1], [4]], np.uint32)
    with Both() as both:

        def append(module, path, _):
            with module.RaggedWriter(path, "int32", 1, codec="zstd") as writer:
                fields = RAGGED[name](values, cu, shapes)
                told = outcome(lambda: writer.append(module.RaggedBatch(*fields)))
                return told, len(writer)

        ours_, theirs = both.each(append)
        assert ours_ == theirs if name == "right" else ours_[0] is theirs[0], (ours_, theirs)
        assert (ours_[0] is None) == (name == "right")


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


class Plan:
    """Index batches as they are written down; exceptions are raised."""

    def __init__(self, batches):
        self.batches = iter(batches)

    def next(self):
        batch = next(self.batches, [0] * 4)
        if isinstance(batch, type):
            raise batch("as told")
        return np.array(batch, np.uint64)


@settings(MANY, max_examples=25)
@given(
    data=st.data(),
    views=SOME([1, 2, 4]),
    workers=SOME([0, 1]),
    prefetch=st.integers(1, 3),
    codec=CODECS,
)
def test_loaders_deliver_the_same_up_to_the_first_error(data, views, workers, prefetch, codec):
    inside = st.integers(0, 29)
    good = st.lists(inside, min_size=4, max_size=8).filter(lambda b: len(b) % views == 0)
    bad = SOME([[], [30] * 4, [0, 1, 2], ValueError, OSError, KeyError])
    batches = data.draw(st.lists(st.one_of(good, good, good, bad), min_size=1, max_size=6))
    breaks = data.draw(st.integers(0, 12))
    records = values_of("int32", (30, 3))

    with Both() as both:
        write_dense(both, records, codec)

        def load(module, path, allocator):
            whole, calls = (batchfs if module is ours else loaderx), []

            def transform(shards):
                calls.append(None)
                if len(calls) == breaks:
                    raise ZeroDivisionError
                return [array_of(shard["a"]).copy() for shard in shards]

            with module.DenseStore(path) as store:
                view = store.bind(allocator)
                loader = whole.Loader(
                    {"a": [view] * views},
                    Plan(batches),
                    workers=workers,
                    prefetch=prefetch,
                    transform=transform,
                )
                steps, error = [], None
                try:
                    for _ in range(8):
                        steps.append(next(loader))
                except Exception as e:  # noqa: BLE001
                    error = type(e)
                finally:
                    loader.close()
                return steps, error

        (got, error), (want, theirs) = both.each(load)
        assert error is theirs
        # With workers an error of loaderx overtakes what was ready before it.
        assert len(got) == len(want) if workers == 0 or error is None else len(got) >= len(want)
        for a, b in zip(got, want, strict=False):
            assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@settings(MANY, max_examples=30)
@given(
    sizes=st.lists(st.integers(0, 5000), min_size=1, max_size=12),
    minimum=SOME([64, 100, 1024]),
    pool=SOME([0, 64, 1000, 4096, 1 << 20]),
)
def test_allocators_keep_the_same(sizes, minimum, pool):
    def use(module):
        allocator = module.Allocator("cpu", minimum_size=minimum, pool_size=pool)
        told = [allocator.device, allocator.pool_size, allocator.minimum_size]
        told.append([allocator.size_class(n) for n in sizes])
        held = [allocator.acquire(n) for n in sizes]
        told.append([a.size for a in held])
        for allocation in held:
            allocation.close()
        assert allocator.cached_bytes <= pool
        told.append(allocator.cached_bytes == 0)
        allocator.close()
        return [*told, allocator.cached_bytes, outcome(lambda: allocator.acquire(1))]

    assert use(batchfs) == use(loaderx)


ALLOCATORS = {
    "kind": lambda m: m.Allocator("gpu"),
    "empty": lambda m: m.Allocator(""),
    "no text": lambda m: m.Allocator(1),
    "device": lambda m: m.Allocator("cpu", 1),
    "negative device": lambda m: m.Allocator("cpu", -1),
    "bool device": lambda m: m.Allocator("cpu", True),
    "text device": lambda m: m.Allocator("cpu", "0"),
    "negative pool": lambda m: m.Allocator("cpu", pool_size=-1),
    "bool pool": lambda m: m.Allocator("cpu", pool_size=True),
    "text pool": lambda m: m.Allocator("cpu", pool_size="1"),
    "negative minimum": lambda m: m.Allocator("cpu", minimum_size=-1),
    "negative size": lambda m: m.Allocator("cpu").acquire(-1),
    "bool size": lambda m: m.Allocator("cpu").acquire(True),
    "float size": lambda m: m.Allocator("cpu").acquire(1.5),
    "odd alignment": lambda m: m.Allocator("cpu").acquire(1, 3),
    "no alignment": lambda m: m.Allocator("cpu").acquire(1, 0),
    "text alignment": lambda m: m.Allocator("cpu").acquire(1, "a"),
    "view too large": lambda m: m.Allocator("cpu").acquire(64).view("int8", (65,)),
    "view behind": lambda m: m.Allocator("cpu").acquire(64).view("int8", (1,), 64),
    "view of objects": lambda m: m.Allocator("cpu").acquire(64).view("O", (1,)),
}


@pytest.mark.parametrize("name", ALLOCATORS)
def test_allocators_refuse_the_same(name):
    a, b = (outcome(lambda m=m: ALLOCATORS[name](m)) for m in (batchfs, loaderx))
    assert a is b and isinstance(a, type), (a, b)


@settings(MANY, max_examples=15)
@given(data=st.data(), codec=CODECS)
def test_converters_write_the_same(data, codec):
    datasets = pytest.importorskip("datasets")
    pa = pytest.importorskip("pyarrow")
    import batchfs.converter
    import loaderx.converter

    rows = data.draw(st.integers(1, 30))
    random = np.random.default_rng(rows)
    # loaderx refuses empty records.
    lists = [random.integers(0, 99, n).astype(np.int32) for n in random.integers(1, 6, rows)]
    grid = random.random((rows, 3)).astype(np.float32)
    boxes = [random.random((n, 2)) for n in random.integers(1, 4, rows)]
    shape = pa.array([list(b.shape) for b in boxes], pa.list_(pa.uint32(), 2))
    values = pa.array([b.reshape(-1) for b in boxes], pa.list_(pa.float64()))
    columns = {
        "label": pa.array(random.integers(0, 9, rows)),
        "flag": pa.array(random.integers(0, 2, rows).astype(bool)),
        "grid": pa.FixedSizeListArray.from_arrays(pa.array(grid.reshape(-1)), 3),
        "tokens": pa.array(lists, pa.list_(pa.int32())),
        "boxes": pa.StructArray.from_arrays([values, shape], ["values", "shape"]),
        "text": pa.array(["a"] * rows),
        "hole": pa.array([None] * rows, pa.int32()),
    }
    good = ["label", "flag", "grid", "tokens", "boxes"]
    names = data.draw(st.lists(SOME(good), min_size=1, unique=True))
    names += data.draw(SOME([[], [], [], ["text"], ["hole"]]))
    dataset = datasets.Dataset(pa.table({name: columns[name] for name in names}))
    chosen = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows))
    dataset = data.draw(SOME([dataset, dataset.select(chosen), dataset.shuffle(seed=1)]))
    with Both() as both:

        def convert(module, path, allocator):
            whole = batchfs if module is ours else loaderx
            whole.converter.convert(dataset, path, codec=codec)
            found = {}
            for name in names:
                ragged = name in ("tokens", "boxes")
                kind = module.RaggedStore if ragged else module.DenseStore
                with kind(path / name) as store:
                    found[name] = store.bind(allocator)[:]
            return found

        got, want = both.each(convert)
        if isinstance(got, type):
            assert got is want is ValueError
            assert not (both.path / "ours").exists()
            return
        for name in names:
            same(got[name], want[name], name)


@pytest.mark.parametrize(
    "streams, keys",
    [
        ({}, {}),
        ({"x": []}, {}),
        ({"x": None}, {}),
        ({"x": [7]}, {}),
        ({"x": "view"}, {}),
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
