"""Hugging Face datasets become stores."""

import numpy as np
import pytest

datasets = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")

from batchfs import Allocator  # noqa: E402
from batchfs.converter import convert  # noqa: E402
from batchfs.store import DenseStore, RaggedStore  # noqa: E402
from datasets import Dataset, DatasetDict, Features, Sequence, Value  # noqa: E402


def read(path, kind):
    with kind(path) as store, Allocator("cpu") as allocator:
        return store.dtype.name, store.bind(allocator)[:]


def table(**columns):
    return Dataset(pa.table(columns))


@pytest.mark.parametrize("codec", ["raw", "zstd"])
def test_columns_become_streams(tmp_path, codec):
    random = np.random.default_rng(0)
    grid = random.random((40, 6)).astype(np.float32)
    flags = random.integers(0, 2, 40).astype(bool)
    lists = [random.integers(0, 9, n).tolist() for n in random.integers(0, 5, 40)]
    boxes = [random.random((n, 2)) for n in random.integers(1, 4, 40)]
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(grid.reshape(-1)), 6)
    nested = pa.FixedSizeListArray.from_arrays(
        pa.FixedSizeListArray.from_arrays(pa.array(grid.reshape(-1)), 2), 3
    )
    values = pa.array([b.reshape(-1).tolist() for b in boxes], pa.list_(pa.float64()))
    shape = pa.array([list(b.shape) for b in boxes], pa.list_(pa.uint64(), 2))
    dataset = table(
        label=pa.array(range(40), pa.int16()),
        half=pa.array(grid[:, 0].astype(np.float16)),
        flag=pa.array(flags),
        grid=fixed,
        nested=nested,
        tokens=pa.array(lists, pa.list_(pa.int32())),
        large=pa.array(lists, pa.large_list(pa.uint8())),
        boxes=pa.StructArray.from_arrays([values, shape], ["values", "shape"]),
    )
    out = convert(dataset, tmp_path / "deep" / "out", codec=codec)
    assert out == tmp_path / "deep" / "out"
    for name, want in [
        ("label", np.arange(40, dtype=np.int16)),
        ("half", grid[:, 0].astype(np.float16)),
        ("flag", flags),
        ("grid", grid),
        ("nested", grid.reshape(40, 3, 2)),
    ]:
        dtype, got = read(out / name, DenseStore)
        assert dtype == want.dtype.name and np.array_equal(got.numpy(), want), name
    for name, dtype in [("tokens", "int32"), ("large", "uint8")]:
        found, got = read(out / name, RaggedStore)
        assert found == dtype and [t.numpy().tolist() for t in got.to_tensors()] == lists
    _, got = read(out / "boxes", RaggedStore)
    assert all(np.array_equal(t.numpy(), b) for t, b in zip(got.to_tensors(), boxes, strict=True))


def test_rows_come_in_the_order_of_the_indices(tmp_path):
    dataset = Dataset.from_dict(
        {"tokens": [[i] * (i % 4) for i in range(100)], "id": list(range(100))},
        features=Features({"tokens": Sequence(Value("int32")), "id": Value("int64")}),
    )
    chosen = dataset.shuffle(seed=1).select(range(10, 60)).filter(lambda r: r["id"] % 3 != 0)
    convert(chosen, tmp_path / "out", codec="zstd")
    _, ids = read(tmp_path / "out" / "id", DenseStore)
    assert ids.numpy().tolist() == chosen["id"][:]
    _, tokens = read(tmp_path / "out" / "tokens", RaggedStore)
    assert [t.numpy().tolist() for t in tokens.to_tensors()] == chosen["tokens"][:]


def test_many_rows_and_large_ones(tmp_path):
    dataset = table(
        small=pa.array(np.arange(100_000)),
        large=pa.array([np.arange(i % 50, dtype=np.float64) for i in range(100_000)]),
    )
    convert(dataset, tmp_path / "out", codec="raw")
    with RaggedStore(tmp_path / "out" / "large") as store, Allocator("cpu") as a:
        assert len(store) == 100_000
        assert store.bind(a)[99_999].values.numpy().tolist() == list(range(49))


@pytest.mark.parametrize(
    "column, why",
    [
        (pa.array(["a", "b"]), "string"),
        (pa.array([b"a", b"b"]), "binary"),
        (pa.array([1, None]), "null"),
        (pa.array([[1], None]), "null"),
        (pa.array([[1], [None]]), "null"),
        (pa.array([None, None]), "null"),
        (pa.array([[[1]], [[2]]]), "list"),
        (pa.array([{"a": 1}, {"a": 2}]), "struct"),
        (pa.array([1, 2], pa.timestamp("s")), "timestamp"),
        (pa.array([{"values": [1], "shape": [1]}, {"values": [2], "shape": [1]}]), "shape"),
    ],
    ids=lambda v: str(getattr(v, "type", "")),
)
def test_other_columns_are_refused_by_name(tmp_path, column, why):
    dataset = table(fine=pa.array([1, 2]), odd=column)
    with pytest.raises(ValueError, match="odd"):
        convert(dataset, tmp_path / "out", codec="raw")
    assert not list(tmp_path.iterdir()), "all columns or none"


def test_shapes_that_do_not_match_their_values(tmp_path):
    values = pa.array([[1, 2, 3]], pa.list_(pa.int32()))
    shape = pa.array([[2, 2]], pa.list_(pa.uint32(), 2))
    dataset = table(x=pa.StructArray.from_arrays([values, shape], ["values", "shape"]))
    with pytest.raises(ValueError):
        convert(dataset, tmp_path / "out", codec="raw")
    assert not list(tmp_path.iterdir())


def test_what_is_no_dataset(tmp_path):
    one = table(x=pa.array([1, 2]))
    with pytest.raises(TypeError, match=r"dataset\['train'\]"):
        convert(DatasetDict({"train": one}), tmp_path / "out", codec="raw")
    with pytest.raises(TypeError, match="IterableDataset"):
        convert(one.to_iterable_dataset(), tmp_path / "out", codec="raw")
    with pytest.raises(TypeError):
        convert([1, 2], tmp_path / "out", codec="raw")
    with pytest.raises(ValueError, match="codec"):
        convert(one, tmp_path / "out", codec="zstd_dict")
    with pytest.raises(ValueError, match="empty"):
        convert(one.select([]), tmp_path / "out", codec="raw")
    with pytest.raises(ValueError, match="all"):
        convert(table(all=pa.array([1])), tmp_path / "out", codec="raw")
    convert(one, tmp_path / "out", codec="raw")
    with pytest.raises(FileExistsError):
        convert(one, tmp_path / "out", codec="raw")
