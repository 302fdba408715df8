"""The protocol, and every dtype with every consumer."""

import gc
import importlib.metadata
import importlib.util
import sys
import threading
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from batchfs import Allocator, dtypes
from batchfs.store import DenseStore, DenseWriter, RaggedBatch
from conftest import bits, values_of

NUMPY = tuple(int(n) for n in np.__version__.split(".")[:2])


@pytest.fixture
def tensor(views):
    return views["images"][0:4]


def capsule_name(capsule):
    return repr(capsule).split('"')[1]


@pytest.mark.parametrize(
    "version, name",
    [
        (None, "dltensor"),
        ((0, 8), "dltensor"),
        ((1, 0), "dltensor_versioned"),
        ((1, 3), "dltensor_versioned"),
        ((2, 0), "dltensor_versioned"),
    ],
)
def test_max_version_chooses_the_capsule(tensor, version, name):
    assert capsule_name(tensor.__dlpack__(max_version=version)) == name
    assert capsule_name(tensor.__dlpack__(max_version=version, copy=True)) == name


def test_arguments(tensor):
    assert tensor.__dlpack_device__() == tensor.device == (1, 0)
    for stream in (None, -1, 0, 1, 2**40):
        tensor.__dlpack__(stream=stream)
    tensor.__dlpack__(dl_device=(1, 0), copy=False)
    for device in ((2, 0), (10, 0), (1, 1)):
        with pytest.raises(BufferError, match="cannot be exported"):
            tensor.__dlpack__(dl_device=device)
    for keys in ({"stream": "x"}, {"max_version": 1}, {"dl_device": 1}, {"nonsense": 1}):
        with pytest.raises(TypeError):
            tensor.__dlpack__(**keys)
    with pytest.raises(TypeError):
        tensor.__dlpack__(None)


class Asks:
    """A consumer's request, as a producer for NumPy."""

    def __init__(self, tensor, **keys):
        self.tensor, self.keys = tensor, keys

    def __dlpack__(self, **_):
        return self.tensor.__dlpack__(**self.keys)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def test_copy_means_copy_and_nothing_else_does(tensor, images):
    shared = tensor.numpy()
    copied = np.from_dlpack(Asks(tensor, copy=True))
    assert np.shares_memory(shared, np.from_dlpack(Asks(tensor)))
    assert np.shares_memory(shared, np.from_dlpack(Asks(tensor, copy=False)))
    assert not np.shares_memory(shared, copied)
    shared[0] = 0
    assert np.array_equal(copied, images[:4]) and not np.array_equal(shared, images[:4])


def test_each_read_has_memory_of_its_own(views, images):
    view = views["images"]
    for _ in range(3):
        first, second = view[0:4].numpy(), view[0:4].numpy()
        first[:] = 1
        assert np.array_equal(second, images[:4]) and np.array_equal(view[0].numpy(), images[0])


def test_parts_of_a_tensor(tensor, images):
    assert len(tensor) == 4 and tensor.ndim == 4 and tensor.size == tensor.nbytes == 4 * 192
    assert np.array_equal(tensor[1].numpy(), images[1])
    assert np.array_equal(tensor[-1][2][0].numpy(), images[3, 2, 0])
    assert np.array_equal(tensor[1:3].numpy(), images[1:3])
    assert tensor[3:1].shape == (0, 3, 8, 8) and tensor[:0].numpy().shape == (0, 3, 8, 8)
    assert np.shares_memory(tensor[1].numpy(), tensor.numpy())
    for outside in (4, -5, 2**70, -(2**63), -(2**70)):
        with pytest.raises(IndexError, match="out of range"):
            tensor[outside]
    with pytest.raises(ValueError):
        tensor[::2]
    scalar = tensor[0][0][0][0]
    assert scalar.shape == () and scalar.numpy() == images[0, 0, 0, 0]
    with pytest.raises(TypeError):
        len(scalar)
    assert repr(tensor) == "DLTensor(shape=(4, 3, 8, 8), dtype=uint8)"
    assert not hasattr(tensor, "__array_interface__") and not hasattr(tensor, "__array__")
    assert sum(1 for _ in tensor) == 4


def test_a_capsule_is_consumed_once(tensor):
    class Once:
        def __init__(self):
            self.capsule = tensor.__dlpack__()

        def __dlpack__(self, **_):
            return self.capsule

        def __dlpack_device__(self):
            return (1, 0)

    once = Once()
    np.from_dlpack(once)
    with pytest.raises((ValueError, BufferError, RuntimeError)):
        np.from_dlpack(once)
    with pytest.raises(ValueError, match="unused"):
        RaggedBatch(once, once, once).to_tensors()


def test_writable_as_told(tensor, tmp_path):
    array = tensor.numpy()
    assert array.flags.writeable and not tensor.readonly
    array[:] = 7
    if NUMPY >= (2, 1):
        assert np.from_dlpack(tensor).flags.writeable
    assert (np.from_dlpack(tensor) == 7).all()


def test_foreign_tensors_are_taken_and_given_back(tmp_path, flat):
    class Producer:
        """NumPy's export, not as an ndarray."""

        alive = 0

        def __init__(self, array):
            self.array = array

        def __dlpack__(self, **keys):
            return self.array.__dlpack__(**keys)

        def __dlpack_device__(self):
            return self.array.__dlpack_device__()

    source = np.arange(12, dtype=np.int16).reshape(3, 4)
    with DenseWriter(tmp_path / "s", "int16", (4,), codec="raw") as w:
        w.append(Producer(source))
        count = sys.getrefcount(source)
        w.append(Producer(source))
        assert sys.getrefcount(source) == count, "given back"
        w.append(Producer(source[:, None, :][:, 0]))
        for bad in (source[:, ::2], source.T):
            with pytest.raises(ValueError):
                w.append(Producer(bad))
        assert sys.getrefcount(source) == count

        class Elsewhere(Producer):
            def __dlpack__(self, **keys):
                raise BufferError("on a GPU")

        with pytest.raises(BufferError, match="GPU"):
            w.append(Elsewhere(source))
        flat(lambda i: w.append(Producer(source)), times=500)


def consumers():
    """Consumers by name: from a DLTensor to bytes that it holds, as a NumPy array of uint8."""
    found = {"numpy": lambda t: bits(np.from_dlpack(t)), "`.numpy()`": lambda t: bits(t.numpy())}
    try:
        import torch
    except ImportError:
        pass
    else:

        def of(tensor):
            return tensor.contiguous().view(torch.uint8).numpy().reshape(-1)

        found["torch"] = lambda t: of(torch.from_dlpack(t))
        found["`.torch()`"] = lambda t: of(t.torch())
    try:
        import jax.dlpack
    except ImportError:
        pass
    else:
        import jax

        jax.config.update("jax_enable_x64", True)
        found["jax"] = lambda t: bits(np.asarray(jax.dlpack.from_dlpack(t)))
    try:
        import pyarrow as pa
    except ImportError:
        pass
    else:
        found["pyarrow"] = lambda t: bits(pa.Tensor.from_numpy(t.numpy()).to_numpy())
    return found


def read_as(tensor, consume, want):
    """`yes`, or why not. Other values than those stored are a failure."""
    try:
        got = consume(tensor)
    except Exception as e:  # noqa: BLE001
        return f"no: {type(e).__name__}"
    assert np.array_equal(np.asarray(got).reshape(-1), bits(want).reshape(-1))
    return "yes"


def table(tmp_path):
    rows = {}
    for dtype in dtypes.supported:
        want = values_of(dtype, (16, 4))
        with DenseWriter(tmp_path / dtype.name, dtype, (4,), codec="raw") as w:
            w.append(want)
        with DenseStore(tmp_path / dtype.name) as store, Allocator("cpu") as allocator:
            tensor = store.bind(allocator)[:]
            rows[dtype.name] = {
                name: read_as(tensor, consume, want) for name, consume in consumers().items()
            }
    return rows


def test_every_dtype_with_every_consumer(tmp_path):
    rows = table(tmp_path)
    native = [name for name in rows if not hasattr(ml_dtypes, name)]
    assert len(native) == 14
    for name, row in rows.items():
        assert row["`.numpy()`"] == "yes", name
        assert row.get("`.torch()`", "yes") == "yes", name
        if name in native:
            assert row["numpy"] == "yes", name


def as_markdown(rows):
    names = list(next(iter(rows.values())))
    versions = ", ".join(
        f"{p} {importlib.metadata.version(p).split('+')[0]}"
        for p in ("numpy", "ml_dtypes", "torch", "jax", "pyarrow")
        if importlib.util.find_spec(p)
    )
    lines = [f"| dtype | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for dtype, row in rows.items():
        lines.append(f"| {dtype} | {' | '.join(row[n] for n in names)} |")
    return f"With {versions}:\n\n" + "\n".join(lines) + "\n"


def test_the_table_of_the_documentation_is_what_is_so(tmp_path):
    found = consumers()
    if not {"torch", "jax", "pyarrow"} <= set(found):
        pytest.skip("needs torch, jax and pyarrow, as the table has them")
    doc = Path(__file__).parents[2] / "docs" / "python.md"
    text = doc.read_text()
    rows = table(tmp_path)
    for dtype, row in rows.items():
        line = f"| {dtype} | {' | '.join(row[n] for n in found)} |"
        assert line in text, f"docs/python.md should have:\n{as_markdown(rows)}"


def test_memory_is_freed_on_any_thread(views, images):
    view = views["images"]
    arrays = [np.from_dlpack(view[i : i + 50]) for i in range(0, 500, 50)]

    def drop():
        while arrays:
            arrays.pop()

    threads = [threading.Thread(target=drop) for _ in range(4)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert not arrays and np.array_equal(view[0].numpy(), images[0])
    gc.collect()
