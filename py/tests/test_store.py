"""Writing and reading stores."""

import errno
import gc
import os
import pickle
import subprocess
import warnings

import numpy as np
import pytest
from batchfs import Allocator, Loader, StoreError, dtypes
from batchfs.store import (
    DenseStore,
    DenseView,
    DenseWriter,
    DLTensor,
    RaggedBatch,
    RaggedStore,
    RaggedView,
    RaggedWriter,
    train_dict,
)
from conftest import bits, values_of


@pytest.mark.parametrize("dtype", dtypes.supported, ids=lambda d: d.name)
@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_every_dtype_round_trips(tmp_path, dtype, codec):
    dense = values_of(dtype, (37, 2, 3))
    ragged = [values_of(dtype, (n,), n) for n in (3, 0, 11)]
    with DenseWriter(tmp_path / "d", dtype, (2, 3), codec=codec) as w:
        w.append(dense[:20])
        w.append(dense[20:])
    with RaggedWriter(tmp_path / "r", dtype, 1, codec=codec) as w:
        w.append(RaggedBatch.from_records(ragged))
    with DenseStore(tmp_path / "d") as d, RaggedStore(tmp_path / "r") as r, Allocator("cpu") as a:
        assert (d.dtype, d.item_shape, d.codec, len(d)) == (dtype, (2, 3), codec, 37)
        assert (r.dtype, r.ndim, r.codec, len(r)) == (dtype, 1, codec, 3)
        got = d.bind(a)[36, 0, 36].numpy()
        assert got.dtype == dtype and np.array_equal(bits(got), bits(dense[[36, 0, 36]]))
        batch = r.bind(a)[2, 1, 0]
        assert batch.values.dtype == dtype
        for tensor, want in zip(batch.to_tensors(), (ragged[i] for i in (2, 1, 0)), strict=True):
            assert np.array_equal(bits(tensor.numpy()), bits(want))


@pytest.mark.parametrize(
    "value",
    ["<f4", float, np.float64, "bfloat16", dtypes.uint8, bool],
    ids=str,
)
def test_dtypes_may_be_spelt_as_numpy_has_them(tmp_path, value):
    with DenseWriter(tmp_path / "s", value, (), codec="raw") as w:
        assert w.dtype in dtypes.supported


@pytest.mark.parametrize("value", [">i4", "O", "U4", "M8[s]", [("a", "i4")], "(2,)i4", "nonsense"])
def test_other_dtypes_are_refused(tmp_path, value):
    with pytest.raises(TypeError):
        DenseWriter(tmp_path / "s", value, (), codec="raw")
    assert not list(tmp_path.iterdir())


def test_views_select_as_told(views, images, labels):
    view = views["images"]
    assert isinstance(view, DenseView) and len(view) == len(images)
    assert view[3].shape == (3, 8, 8) and view[[3]].shape == (1, 3, 8, 8)
    assert views["labels"][5].shape == () and views["labels"][-1].numpy() == labels[-1]
    selections = [
        (0, 5, 2),
        [7, 7, 7, -1],
        [np.int64(3), 4],
        range(10, 20, 3),
        np.array([1, -2, 3]),
        np.array([4, 5], np.uint64),
        np.array([4, 5], np.uint8),
        np.arange(20)[::3],
        slice(None, 4),
        slice(-3, None),
        slice(10, 2, -2),
        slice(400, 9999),
        np.arange(500) % 9 == 0,
        [bool(i % 2) for i in range(500)],
    ]
    for selection in selections:
        want = images[list(selection) if isinstance(selection, (tuple, range)) else selection]
        got = view[selection]
        assert isinstance(got, DLTensor)
        assert np.array_equal(got.numpy(), want), selection
    for one in (3, -1, np.int64(7), np.uint8(200), np.array(5)):
        assert np.array_equal(view[one].numpy(), images[one])
    for empty in ([], (), np.array([], np.int64), slice(5, 5)):
        assert view[empty].shape == (0, 3, 8, 8)
    assert np.array_equal(view.__getitems__(np.array([1, 2])).numpy(), images[1:3])


def test_what_is_no_index_is_refused(views, data):
    view = views["images"]
    for outside in (500, -501, [0, 500], np.array([2**63], np.uint64), 2**70, [2**70]):
        with pytest.raises(IndexError, match="out of range") as e:
            view[outside]
        assert str(data / "images") in str(e.value) and "500 records" in str(e.value)
    for other in (np.zeros((2, 2), int), np.zeros(499, bool), np.array(True)):
        with pytest.raises(IndexError):
            view[other]
    for nonsense in (1.5, "1", None, [1.5], object(), True, np.bool_(True), ..., {"a": 1}, {1}):
        with pytest.raises(TypeError):
            view[nonsense]


def test_iteration_gives_every_record_once(views, images, tokens):
    got = list(views["images"])
    assert len(got) == 500 and all(
        np.array_equal(a.numpy(), b) for a, b in zip(got, images, strict=True)
    )
    for batch, want in zip(views["tokens"], tokens, strict=True):
        assert len(batch) == 1 and np.array_equal(batch.values.numpy(), want)


def test_ragged_batches(views, tokens, boxes):
    view = views["tokens"]
    assert isinstance(view, RaggedView) and view.ndim == 1
    batch = view[5, 0, 5]
    want = [tokens[5], tokens[0], tokens[5]]
    assert np.array_equal(batch.values.numpy(), np.concatenate(want))
    assert batch.cu_seqlens.dtype == dtypes.int32 and batch.shapes.dtype == dtypes.uint64
    assert batch.cu_seqlens.numpy().tolist() == [0, *np.cumsum([len(t) for t in want])]
    assert batch.shapes.numpy().tolist() == [[len(t)] for t in want]
    empty = view[[]]
    assert len(empty) == 0 and empty.cu_seqlens.numpy().tolist() == [0]
    assert empty.values.shape == (0,) and empty.shapes.shape == (0, 1)
    for tensor, want in zip(views["boxes"][:50].to_tensors(), boxes[:50], strict=True):
        assert tensor.shape == want.shape and np.array_equal(tensor.numpy(), want)


def test_what_was_read_can_be_appended(tmp_path, views, images, tokens):
    with DenseWriter(tmp_path / "i", "uint8", (3, 8, 8), codec="zstd") as w:
        w.append(views["images"][:])
        w.append(views["images"][:2])
        assert len(w) == 502
    with RaggedWriter(tmp_path / "t", "int32", 1, codec="zstd") as w:
        w.append(views["tokens"][::-1])
    with Allocator("cpu") as a:
        assert np.array_equal(DenseStore(tmp_path / "i").bind(a)[:500].numpy(), images)
        last = RaggedStore(tmp_path / "t").bind(a)[-1]
        assert np.array_equal(last.values.numpy(), tokens[0])


def test_inputs_of_all_kinds(tmp_path):
    want = np.arange(24, dtype=np.int32).reshape(4, 6)
    readonly = want.copy()
    readonly.flags.writeable = False
    np.save(tmp_path / "x.npy", want)
    inputs = [
        want,
        readonly,
        np.load(tmp_path / "x.npy", mmap_mode="r"),
        np.load(tmp_path / "x.npy", mmap_mode="c"),
        memoryview(readonly),
    ]
    with DenseWriter(tmp_path / "s", "int32", (6,), codec="raw") as w:
        for value in inputs:
            w.append(value)
        for bad, error in [
            (want.astype(np.int64), ValueError),
            (want[:, ::2], ValueError),
            (want.T, ValueError),
            (np.asfortranarray(want), ValueError),
            (want[0], ValueError),
            (want[:0], ValueError),
            (want.astype(">i4"), TypeError),
            (bytearray(24), TypeError),
            (want.tolist(), TypeError),
            (7, TypeError),
            (None, TypeError),
        ]:
            with pytest.raises(error):
                w.append(bad)
        assert len(w) == 4 * len(inputs)
    with DenseStore(tmp_path / "s") as s, Allocator("cpu") as a:
        assert np.array_equal(s.bind(a)[:].numpy(), np.concatenate([want] * len(inputs)))
    with DenseWriter(tmp_path / "bytes", "uint8", (), codec="raw") as w:
        w.append(b"abc")


def test_ragged_inputs_that_do_not_fit_change_nothing(tmp_path):
    values = np.arange(5, dtype=np.int32)
    cu, shapes = np.array([0, 2, 5], np.int32), np.array([[2], [3]], np.uint64)
    with RaggedWriter(tmp_path / "s", "int32", 1, codec="raw") as w:
        w.append(RaggedBatch(values, cu, shapes))
        w.append(RaggedBatch(values, cu, shapes.astype(np.uint32)))
        for v, c, s in [
            (values.astype(np.int64), cu, shapes),
            (values.reshape(1, 5), cu, shapes),
            (values, cu.astype(np.int64), shapes),
            (values, cu[:2], shapes),
            (values, np.array([1, 2, 5], np.int32), shapes),
            (values, np.array([0, 3, 5], np.int32), shapes),
            (values, np.array([0, -2, 5], np.int32), shapes),
            (values[:4], cu, shapes),
            (values, cu, shapes[:, 0]),
            (values, cu, np.array([[2, 1], [3, 1]], np.uint64)),
            (values, cu, np.array([[2], [2**63]], np.uint64)),
            (values[:0], cu[:1], shapes[:0]),
        ]:
            with pytest.raises(ValueError):
                w.append(RaggedBatch(v, c, s))
        for other in (values, [values], None):
            with pytest.raises(TypeError):
                w.append(other)
        assert len(w) == 4
    with pytest.raises(TypeError):
        RaggedBatch(values, cu, [[2], [3]])
    for records, error in [
        ([], ValueError),
        ([[1, 2]], TypeError),
        ([np.int32(3)], TypeError),
        ([np.array(3)], ValueError),
        ([values, values.astype(np.int64)], ValueError),
        ([values, values.reshape(1, 5)], ValueError),
        ([np.array(["a"])], TypeError),
    ]:
        with pytest.raises(error):
            RaggedBatch.from_records(records)
    packed = RaggedBatch.from_records(iter([values[::2], values[:0]]))
    assert packed.values.numpy().tolist() == [0, 2, 4] and len(packed) == 2


def test_a_store_is_whole_or_not_there(tmp_path):
    one = np.zeros((1, 2), np.int8)
    path = tmp_path / "deep" / "er" / "s"
    with pytest.raises(ZeroDivisionError):
        with DenseWriter(path, "int8", (2,), codec="raw") as w:
            w.append(one)
            raise ZeroDivisionError
    assert not list(tmp_path.iterdir()), "an exception publishes nothing and leaves nothing"
    w = DenseWriter(path, "int8", (2,), codec="raw")
    w.append(one)
    assert not path.exists()
    del w
    assert not path.exists(), "a forgotten writer publishes nothing"
    w = DenseWriter(path, "int8", (2,), codec="raw")
    w.append(one)
    w.close()
    w.close()
    assert path.exists()
    with pytest.raises(RuntimeError, match="closed"):
        w.append(one)
    with pytest.raises(FileExistsError) as e:
        DenseWriter(path, "int8", (2,), codec="raw")
    assert e.value.filename == str(path)
    with pytest.raises(RuntimeError):
        w[0]


def test_a_writer_after_its_end(tmp_path):
    one = np.zeros((1, 2), np.int8)
    for end in ("close", "abort"):
        dense = DenseWriter(tmp_path / end / "d", "int8", (2,), codec="raw")
        ragged = RaggedWriter(tmp_path / end / "r", "int8", 1, codec="zstd")
        dense.append(one)
        ragged.append(RaggedBatch.from_records([one[0]]))
        for writer in (dense, ragged):
            getattr(writer, end)()
            batch = one if writer is dense else RaggedBatch.from_records([one[0]])
            for use in (lambda w=writer, b=batch: w.append(b), lambda w=writer: len(w)):
                with pytest.raises(RuntimeError, match="closed"):
                    use()
            writer.close()
            writer.abort()
            assert writer.path.exists() == (end == "close")
    assert len(DenseStore(tmp_path / "close" / "d")) == 1


def test_two_writers_of_one_path(tmp_path):
    first = DenseWriter(tmp_path / "s", "int8", (2,), codec="raw")
    second = DenseWriter(tmp_path / "s", "int8", (2,), codec="raw")
    first.append(np.zeros((3, 2), np.int8))
    second.append(np.ones((5, 2), np.int8))
    second.close()
    with pytest.raises(FileExistsError) as e:
        first.close()
    assert e.value.filename == str(tmp_path / "s")
    with DenseStore(tmp_path / "s") as store, Allocator("cpu") as a:
        assert np.array_equal(store.bind(a)[:].numpy(), np.ones((5, 2), np.int8))
    assert [p.name for p in tmp_path.iterdir()] == ["s"], "nothing is left of the other"


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_a_full_disk_publishes_nothing(tmp_path, codec):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)]
    if subprocess.run(mounted, capture_output=True).returncode != 0:
        pytest.skip("needs root, to mount a small tmpfs")
    try:
        random = np.random.default_rng(0)
        batch = random.integers(0, 256, (1024, 1024), np.uint8)
        with pytest.raises(OSError) as e:
            with DenseWriter(disk / "s", "uint8", (1024,), codec=codec) as writer:
                for _ in range(8):
                    writer.append(batch)
        assert e.value.errno == errno.ENOSPC and not list(disk.iterdir())
        writer = DenseWriter(disk / "s", "uint8", (1024,), codec=codec)
        with pytest.raises(OSError, match="No space"):
            for _ in range(8):
                writer.append(batch)
        # Who goes on all the same is told, and publishes nothing.
        for use in (lambda: writer.append(batch[:1]), writer.close):
            with pytest.raises(ValueError, match="earlier append failed"):
                use()
        del writer
        assert not list(disk.iterdir())
        with DenseWriter(disk / "s", "uint8", (1024,), codec=codec) as writer:
            writer.append(batch[:100])
        with DenseStore(disk / "s") as store, Allocator("cpu") as a:
            assert np.array_equal(store.bind(a)[:].numpy(), batch[:100])
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_half_made_objects_do_no_harm(tmp_path):
    for kind, names in [
        (DenseWriter, ("close", "abort", "append")),
        (RaggedWriter, ("close",)),
        (DenseStore, ("close", "bind")),
        (Loader, ("close",)),
    ]:
        for name in names:
            with pytest.raises((AttributeError, TypeError)):
                getattr(kind.__new__(kind), name)()
    for kind in (DLTensor, DenseView, RaggedView):
        with pytest.raises(TypeError):
            kind()
    gc.collect()


def test_closed_stores_and_allocators(data, images):
    store, allocator = DenseStore(data / "images"), Allocator("cpu")
    view = store.bind(allocator)
    kept = view[3]
    with pytest.raises(RuntimeError, match="bind"):
        store[0]
    store.close()
    store.close()
    for use in (lambda: view[0], lambda: store[0], lambda: store.bind(allocator)):
        with pytest.raises(RuntimeError, match="closed"):
            use()
    assert len(view) == 500 and view.dtype == dtypes.uint8
    view = DenseStore(data / "images").bind(allocator)
    allocator.close()
    with pytest.raises(RuntimeError, match="allocator"):
        view[0]
    assert np.array_equal(kept.numpy(), images[3]), "what was read stays"
    with pytest.raises(TypeError):
        DenseStore(data / "images").bind(None)


def test_refusals_name_the_path(tmp_path, data):
    with pytest.raises(FileNotFoundError) as e:
        DenseStore(tmp_path / "none")
    assert str(tmp_path / "none") in str(e.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError) as e:
        DenseStore(tmp_path / "empty")
    assert e.value.path == tmp_path / "empty" and e.value.record is None
    with pytest.raises(ValueError, match="RaggedStore"):
        DenseStore(data / "tokens")
    with pytest.raises(ValueError, match="DenseStore"):
        RaggedStore(data / "images")
    with pytest.raises(ValueError, match="verify"):
        DenseStore(data / "images", verify="sometimes")


def test_damage_is_an_error_with_path_and_record(tmp_path, images):
    path = tmp_path / "s"
    with DenseWriter(path, "uint8", (3, 8, 8), codec="raw", data_shards=1) as w:
        w.append(images)
    with open(path / "data-000.npy", "r+b") as f:
        f.seek(4096 + 192 * 7 + 5)
        byte = f.read(1)
        f.seek(-1, os.SEEK_CUR)
        f.write(bytes([byte[0] ^ 1]))
    with DenseStore(path) as store, Allocator("cpu") as a:
        view = store.bind(a)
        with pytest.raises(StoreError) as e:
            view[5:10]
        assert e.value.record == 7 and e.value.path == path
        again = pickle.loads(pickle.dumps(e.value))
        assert (again.record, str(again)) == (7, str(e.value))
        assert np.array_equal(view[0:7].numpy(), images[:7])
    with DenseStore(path, verify="never") as store, Allocator("cpu") as a:
        assert not np.array_equal(store.bind(a)[7].numpy(), images[7])


@pytest.mark.parametrize(
    "kind, args, options, error",
    [
        (DenseWriter, ("int8", (2,)), {"codec": "lz4"}, ValueError),
        (DenseWriter, ("int8", (2,)), {"codec": None}, ValueError),
        (DenseWriter, ("int8", (2,)), {"codec": "zstd_dict"}, ValueError),
        (DenseWriter, ("int8", (2,)), {"codec": "zstd", "dict_bytes": b"x"}, ValueError),
        (DenseWriter, ("int8", (2,)), {"codec": "zstd_dict", "dict_bytes": b"x"}, ValueError),
        (DenseWriter, ("int8", (2,)), {"codec": "raw", "data_shards": 0}, ValueError),
        (DenseWriter, ("int8", (2,)), {"codec": "raw", "data_shards": 256}, ValueError),
        (DenseWriter, ("int8", (2,)), {"codec": "raw", "data_shards": True}, ValueError),
        (DenseWriter, ("int8", (2,)), {"codec": "zstd", "level": 99}, ValueError),
        (DenseWriter, ("int8", (0,)), {"codec": "raw"}, ValueError),
        (DenseWriter, ("int8", (-1,)), {"codec": "raw"}, ValueError),
        (DenseWriter, ("int8", (1.5,)), {"codec": "raw"}, ValueError),
        (DenseWriter, ("int8", 3), {"codec": "raw"}, ValueError),
        (DenseWriter, ("int8", (2**31,)), {"codec": "raw"}, ValueError),
        (DenseWriter, ("int8", (2**70,)), {"codec": "raw"}, ValueError),
        (DenseWriter, ("int8", (2**40, 2**40)), {"codec": "raw"}, ValueError),
        (DenseWriter, ("int8", (2,)), {"codec": "zstd", "level": 2**40}, ValueError),
        (DenseWriter, ("int8", (2,)), {"codec": "zstd_dict", "dict_bytes": 5}, TypeError),
        (DenseWriter, ("int8", (2,)), {"codec": "zstd_dict", "dict_bytes": "a"}, TypeError),
        (DenseWriter, (None, (2,)), {"codec": "raw"}, TypeError),
        (DenseWriter, ("S4", (2,)), {"codec": "raw"}, TypeError),
        (DenseWriter, ("V0", (2,)), {"codec": "raw"}, TypeError),
        (DenseWriter, ([("a", "i4")], (2,)), {"codec": "raw"}, TypeError),
        (DenseWriter, ("(2,)i4", (2,)), {"codec": "raw"}, TypeError),
        (DenseWriter, (np.dtype("i4", metadata={"a": 1}), (2,)), {"codec": "raw"}, TypeError),
        (DenseWriter, ("m8[s]", (2,)), {"codec": "raw"}, TypeError),
        (DenseWriter, ("longdouble", (2,)), {"codec": "raw"}, TypeError),
        (DenseWriter, ("int8", (1,) * 64), {"codec": "raw"}, ValueError),
        (RaggedWriter, ("int8", 0), {"codec": "raw"}, ValueError),
        (RaggedWriter, ("int8", 65), {"codec": "raw"}, ValueError),
        (RaggedWriter, ("int8", "1"), {"codec": "raw"}, ValueError),
    ],
)
def test_writers_refuse_what_does_not_fit(tmp_path, kind, args, options, error):
    if options.get("data_shards") is True:
        assert isinstance(True, int)
    if args[1] == (2**31,):
        args = (args[0], (2**31 + 1,))
    with pytest.raises(error):
        kind(tmp_path / "a" / "s", *args, **options)
    assert not list(tmp_path.iterdir())


def test_dictionaries(tmp_path):
    records = np.tile(np.arange(64, dtype=np.int32), (2000, 1))
    records[:, 0] = np.arange(2000)
    with DenseWriter(tmp_path / "sample", "int32", (64,), codec="zstd") as w:
        w.append(records)
    with DenseStore(tmp_path / "sample") as s, Allocator("cpu") as a:
        view = s.bind(a)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = train_dict(view, path=tmp_path / "dict")
        assert made == (tmp_path / "dict").read_bytes() == train_dict(view)
        with DenseWriter(
            tmp_path / "s", view.dtype, view.item_shape, codec="zstd_dict", dict_bytes=made
        ) as w:
            w.append(view[:])
        with pytest.raises(TypeError):
            train_dict(s)
    with DenseStore(tmp_path / "s") as s, Allocator("cpu") as a:
        assert s.codec == "zstd_dict" and np.array_equal(s.bind(a)[:].numpy(), records)


def test_odd_arrays_are_told_apart(tmp_path):
    want = np.arange(24, dtype=np.int32).reshape(4, 6)
    misaligned = np.frombuffer(b"x" + want.tobytes(), np.uint8)[1:].view(np.int32).reshape(4, 6)
    assert not misaligned.flags.aligned
    good = [misaligned, want[::2][:1], np.broadcast_to(want[:1], (1, 6)), want.view(np.matrix)]
    bad = [
        (np.broadcast_to(want[0], (4, 6)), ValueError),
        (want[::-1], ValueError),
        (want.astype(">i4"), TypeError),
        (want.astype(object), TypeError),
        (np.array([["a"] * 6]), TypeError),
        (want.view([("a", "i4"), ("b", "i4")]), TypeError),
        (want.astype("datetime64[s]"), TypeError),
        (np.array(3, np.int32), ValueError),
        (np.int32(3), ValueError),
    ]
    with DenseWriter(tmp_path / "s", "int32", (6,), codec="raw") as w:
        for array in good:
            w.append(array)
        for array, error in bad:
            with pytest.raises(error):
                w.append(array)
    with DenseStore(tmp_path / "s") as s, Allocator("cpu") as a:
        got = s.bind(a)[:].numpy()
    assert np.array_equal(got, np.concatenate([np.asarray(g) for g in good]))
    with RaggedWriter(tmp_path / "r", "int32", 1, codec="raw") as w:
        w.append(RaggedBatch.from_records([want[:, 0], want[0, ::-1], misaligned[3]]))
        with pytest.raises(TypeError):
            RaggedBatch.from_records([want.astype(">i4")[0]])
    with RaggedStore(tmp_path / "r") as s, Allocator("cpu") as a:
        got = [t.numpy().tolist() for t in s.bind(a)[:].to_tensors()]
    assert got == [want[:, 0].tolist(), want[0, ::-1].tolist(), want[3].tolist()]
    # Scalars are records of no axes.
    with DenseWriter(tmp_path / "scalars", "float32", (), codec="zstd") as w:
        w.append(np.arange(5, dtype=np.float32))
        with pytest.raises(ValueError):
            w.append(np.array(1, np.float32))
    with DenseStore(tmp_path / "scalars") as s, Allocator("cpu") as a:
        view = s.bind(a)
        assert view.item_shape == () and view[3].shape == () and view[3].numpy() == 3
        assert view[3, 1].numpy().tolist() == [3, 1] and view[[]].shape == (0,)


def test_indices_of_other_libraries(views, images):
    torch = pytest.importorskip("torch")
    view = views["images"]
    assert np.array_equal(view[torch.tensor(3)].numpy(), images[3])
    assert np.array_equal(view[torch.tensor([3, -1])].numpy(), images[[3, -1]])
    mask = torch.zeros(500, dtype=torch.bool)
    mask[7] = True
    assert np.array_equal(view[mask].numpy(), images[[7]])
    with pytest.raises(TypeError):
        view[torch.tensor(1.5)]


def test_containers_of_loaderx_are_read_in_place(tmp_path, images):
    peer = pytest.importorskip("loaderx.zrecord", reason="loaderx needs Python 3.12 or newer")
    with peer.DenseWriter(tmp_path / "x", np.uint8, (3, 8, 8), codec="zstd", data_shards=3) as w:
        w.append(images)
    with DenseStore(tmp_path / "x") as s, Allocator("cpu") as a:
        assert (s.codec, s.data_shards) == ("zstd", 3)
        assert np.array_equal(s.bind(a)[::-1].numpy(), images[::-1])
        again = pickle.loads(pickle.dumps(s.bind(a)))
        assert again.codec == "zstd" and np.array_equal(again[9].numpy(), images[9])


def test_ragged_npy_folders_are_read_in_place(tmp_path):
    folder = tmp_path / "r"
    folder.mkdir()
    np.save(folder / "values.npy", np.arange(6, dtype=np.int16))
    np.save(folder / "cu_seqlens.npy", np.array([0, 2, 2, 6]))
    with RaggedStore(folder) as s, Allocator("cpu") as a:
        got = [t.numpy().tolist() for t in s.bind(a)[:].to_tensors()]
        assert got == [[0, 1], [], [2, 3, 4, 5]] and s.codec == "raw"


def test_npy_files_are_read_in_place(tmp_path, images):
    np.save(tmp_path / "images.npy", images)
    with DenseStore(tmp_path / "images.npy") as s, Allocator("cpu") as a:
        assert s.codec == "raw" and np.array_equal(s.bind(a)[9, 1].numpy(), images[[9, 1]])


def test_stores_and_views_pickle(views, images, data, monkeypatch):
    again = pickle.loads(pickle.dumps(views))
    for name in views:
        assert type(again[name]) is type(views[name]) and len(again[name]) == 500
    assert np.array_equal(again["images"][7].numpy(), images[7])
    monkeypatch.chdir(data)
    with DenseStore("images") as store:
        dumped = pickle.dumps(store)
    monkeypatch.chdir("/")
    with pickle.loads(dumped) as store, Allocator("cpu") as a:
        assert np.array_equal(store.bind(a)[0].numpy(), images[0])
