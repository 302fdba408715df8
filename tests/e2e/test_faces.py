"""Every form of a batch, read without batchfs, and the table of docs/faces.md."""

import hashlib
import io
import json
import re
import sys
import threading

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest
from harness import REPO, errno_of, needs_tool, retype, wait_for
from PIL import Image
from safetensors.numpy import load_file

FACES = ["", ".npy", ".safetensors", ".arrow", ".json", ".txt", ".png", ".sha256"]
RECORDS = 60


def table() -> dict[str, dict[str, bool]]:
    """docs/faces.md: which dtype has which face."""
    text = (REPO / "docs/faces.md").read_text()
    found = {}
    for line in text[text.index("## Which dtype has which") :].splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) == 1 + len(FACES) and cells[1] in ("yes", "–"):
            found[cells[0]] = dict(zip(FACES, (c == "yes" for c in cells[1:]), strict=True))
    return found


TABLE = table()


def dtype_of(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name, name))


def plain(name: str) -> np.dtype:
    """A type of the same size that NumPy and Arrow have."""
    dtype = dtype_of(name)
    return (
        dtype if dtype.kind in "biufc" and dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")
    )


class Source:
    """One stream, as arrays."""

    def __init__(self, name: str, layout: str, rng):
        self.dtype = dtype_of(name)
        size = self.dtype.itemsize
        if layout == "dense":
            shapes = [(3, 4, 5)] * RECORDS
        elif layout == "scalar":
            shapes = [()] * RECORDS
        else:
            shapes = [tuple(rng.integers(0, 6, 2)) for _ in range(RECORDS)]
            shapes[:2] = [(0, 3), (2, 2)]

        def one(shape) -> np.ndarray:
            count = int(np.prod(shape))
            raw = rng.integers(0, 2 if name == "bool" else 256, count * size, np.uint8)
            return np.frombuffer(raw.tobytes(), self.dtype).reshape(shape)

        self.layout = layout
        self.records = [one(shape) for shape in shapes]

    def batch(self, ids) -> dict[str, np.ndarray]:
        records = [self.records[i] for i in ids]
        if self.layout != "ragged":
            return {"data": np.stack(records)}
        lengths = [r.size for r in records]
        return {
            "values": np.concatenate([r.reshape(-1) for r in records]),
            "cu_seqlens": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
            "shapes": np.array([r.shape for r in records], np.uint64),
        }


def make(box, codec: str) -> dict[str, Source]:
    """A dataset with a stream of every dtype and layout."""
    rng = np.random.default_rng(5)
    args = ["--codec", codec]
    if codec == "zstd_dict":
        sample = rng.integers(0, 256, (3000, 60), np.uint8) // 7
        box.store("sample", sample)
        box.run("train-dict", box.path / "sample", "-o", box.path / "dict", "--size", "2KiB")
        args += ["--dict", box.path / "dict"]
    found = {}
    for name in TABLE:
        for layout in ("dense", "scalar", "ragged"):
            source = Source(name, layout, rng)
            stream = f"{layout}-{name}"
            store = box.path / "data" / stream
            stored = plain(name)
            if layout == "ragged":
                flat = np.concatenate([r.reshape(-1) for r in source.records]).view(stored)
                lengths = [r.size for r in source.records]
                offsets = np.concatenate([[0], np.cumsum(lengths)])
                more = ["--offsets", box.npy("cu", offsets)]
                shapes = np.array([r.shape for r in source.records])
                more += ["--shapes", box.npy("shapes", shapes)]
                box.run("create", store, "--from", box.npy("v", flat), *more, *args)
            else:
                box.store(f"data/{stream}", np.stack(source.records).view(stored), *args)
            if stored != source.dtype:
                retype(store, name)
            found[stream] = source
    box.run("verify", box.path / "data")
    return found


def tensors(path) -> dict[str, np.ndarray]:
    """A safetensors file by its definition, for the types that NumPy's reader lacks."""
    names = {
        "BF16": ml_dtypes.bfloat16,
        "F8_E4M3": ml_dtypes.float8_e4m3fn,
        "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
        "F8_E5M2": ml_dtypes.float8_e5m2,
        "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
        "F8_E8M0": ml_dtypes.float8_e8m0fnu,
        "C64": np.complex64,
        "I32": np.int32,
        "U64": np.uint64,
    }
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, about in header.items():
        if name == "__metadata__" or name.startswith("__pad"):
            continue
        begin, end = (8 + length + o for o in about["data_offsets"])
        found[name] = np.frombuffer(data[begin:end], names[about["dtype"]]).reshape(about["shape"])
    return found


def arrow_arrays(batch: pa.RecordBatch, column: str, dtype) -> list[np.ndarray]:
    """The column's rows, without a copy."""
    array = batch.column(column)
    if isinstance(array.type, pa.FixedShapeTensorType):
        return list(array.to_numpy_ndarray().view(dtype))
    if isinstance(array.type, pa.ListType):
        values = array.values
        values = values.storage if isinstance(values, pa.ExtensionArray) else values
        flat = values.to_numpy(zero_copy_only=True).view(dtype)
        offsets = array.offsets.to_numpy()
        return [flat[a:b] for a, b in zip(offsets, offsets[1:], strict=False)]
    array = array.storage if isinstance(array, pa.ExtensionArray) else array
    return list(array.to_numpy(zero_copy_only=True).view(dtype))


def addresses(batch: pa.RecordBatch) -> list[int]:
    found = [b for column in batch.columns for b in column.buffers()]
    return [b.address for b in found if b is not None and b.size]


def same(a: np.ndarray, b: np.ndarray) -> None:
    assert (a.dtype, a.shape) == (b.dtype, b.shape)
    assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("codec", ["raw", "zstd", "zstd_dict"])
def test_every_face_of_every_dtype_and_layout(box, mode, codec):
    sources = make(box, codec)
    assert len(sources) == 60
    with box.mount(box.path / "data", spec="batch=8,seed=3", mode=mode) as m:
        for step in (0, 5):
            ids = m.ids(step)
            for stream, source in sources.items():
                check_batch(m, stream, source, step, ids)
        for stream, source in sources.items():
            check_record(m, stream, source, 1)


def check_batch(m, stream: str, source: Source, step: int, ids) -> None:
    name = stream.split("-", 1)[1]
    wanted = source.batch(ids)
    path = m / f"{stream}/batch"
    ragged = source.layout == "ragged"
    for face, there in TABLE[name].items():
        file = path / f"{step}{face}"
        if face == ".png" or (face == ".npy" and ragged) or not there:
            assert errno_of(file.stat) == "ENOENT", file
        else:
            assert file.stat().st_size == len(file.read_bytes()), file

    bare = (path / f"{step}").read_bytes()
    about = json.loads((path / f"{step}.json").read_bytes())
    assert about["ids"] == ids.tolist()
    for array in about["arrays"]:
        part = bare[array["offset"] : array["offset"] + array["nbytes"]]
        dtype = dtype_of(array["dtype"])
        same(np.frombuffer(part, dtype).reshape(array["shape"]), wanted[array["name"]])

    digest = hashlib.sha256(bare).hexdigest()
    assert (path / f"{step}.sha256").read_text() == f"{digest}  {step}\n"
    text = (path / f"{step}.txt").read_text()
    assert text.startswith(f"{stream}/batch/{step}\n{name}")

    if TABLE[name][".npy"] and not ragged:
        same(np.load(path / f"{step}.npy", mmap_mode="r"), wanted["data"])
    if TABLE[name][".safetensors"]:
        file = path / f"{step}.safetensors"
        numpy_can = source.dtype.isbuiltin == 1 and name != "complex64"
        found = load_file(file) if numpy_can else tensors(file)
        for key, array in wanted.items():
            same(found[key], array)
    if TABLE[name][".arrow"]:
        check_arrow(path / f"{step}.arrow", source, ids)


def check_arrow(path, source: Source, ids) -> None:
    with pa.memory_map(str(path)) as file:
        before = pa.total_allocated_bytes()
        batch = pa.ipc.open_file(file).get_batch(0)
        batch.validate(full=True)
        whole = file.read_buffer(file.size())
        low, high = whole.address, whole.address + whole.size
        # Nothing was copied: all buffers lie in the mapped file, in their places.
        places = addresses(batch)
        assert all(low <= a < high and (a - low) % 64 == 0 for a in places)
        if source.layout == "dense":
            assert (places[0] - low) % 4096 == 0
        found = arrow_arrays(batch, "data", source.dtype)
        assert pa.total_allocated_bytes() - before < 4096
        assert len(found) == len(ids)
        for row, i in zip(found, ids, strict=True):
            assert np.asarray(row).tobytes() == source.records[i].tobytes()
        if source.layout == "ragged":
            shapes = batch.column("shapes").to_numpy_ndarray()
            assert shapes.tolist() == [list(source.records[i].shape) for i in ids]


def check_record(m, stream: str, source: Source, i: int) -> None:
    name = stream.split("-", 1)[1]
    path, record = m / f"{stream}/record", source.records[i]
    for face, there in TABLE[name].items():
        file = path / f"{i}{face}"
        if face == ".png":
            # uint8 of shape (3, 4, 5) and (2, 2).
            there = there and source.layout != "scalar"
        if face == ".arrow" or not there:
            assert errno_of(file.stat) == "ENOENT", file
        else:
            assert file.stat().st_size == len(file.read_bytes()), file
    assert (path / f"{i}").read_bytes() == record.tobytes()
    about = json.loads((path / f"{i}.json").read_text())
    assert about["record"] == i and about["nbytes"] == record.nbytes
    assert about["arrays"][0]["shape"] == list(record.shape)
    if TABLE[name][".npy"]:
        same(np.load(path / f"{i}.npy"), record)
    # Every value is there, as its shortest digits.
    words = re.split(r"[\[\]\s]+", (path / f"{i}.txt").read_text().split("\n", 3)[3])
    words = [w for w in words if w]
    with np.errstate(all="ignore"):
        if name == "bool":
            shown = np.array([w == "True" for w in words])
        elif record.dtype.kind in "iu":
            shown = np.array([int(w) for w in words], record.dtype)
        elif record.dtype.kind == "c":
            shown = np.array([complex(w) for w in words]).astype(record.dtype)
        else:
            shown = np.array([float(w) for w in words]).astype(record.dtype)
    flat = record.reshape(-1)
    assert len(shown) == flat.size
    equal = (shown == flat) | ((shown != shown) & (flat != flat))
    if record.dtype.kind == "c":
        equal = equal | np.isnan(flat)
    assert equal.all(), (name, shown[~equal], flat[~equal])


def check_all(path, arrays, ids) -> None:
    with pa.memory_map(str(path)) as file:
        batch = pa.ipc.open_file(file).get_batch(0)
        assert batch.schema.names == ["images", "labels", "x"]
        assert b"step 4" in batch.schema.metadata[b"batchfs"]
        for name, source in arrays.items():
            found = np.stack(arrow_arrays(batch, name, source.dtype))
            assert np.array_equal(found, source[ids])


def test_all_streams_in_one_file(box, data, arrays, mode):
    with box.mount(data, spec="batch=32,seed=5", mode=mode) as m:
        ids = m.ids(4)
        check_all(m / "all/batch/4.arrow", arrays, ids)
        # In a process of its own: it keeps the file mapped.
        code = "import polars, sys; print(polars.read_ipc(sys.argv[1])['labels'].to_list())"
        done = box.tool(sys.executable, "-c", code, m / "all/batch/4.arrow")
        assert json.loads(done.stdout) == arrays["labels"][ids].tolist()
        for face in ("", ".npy", ".txt", ".png", ".sha256"):
            assert not (m / f"all/batch/4{face}").exists()


def test_pictures(box, mode):
    rng = np.random.default_rng(8)
    shapes = {
        "grey": (7, 9),
        "hwc": (7, 9, 3),
        "rgba": (7, 9, 4),
        "chw": (3, 7, 9),
        "one": (1, 7, 9),
    }
    pictures = {n: rng.integers(0, 256, (10, *s), np.uint8) for n, s in shapes.items()}
    for name, array in pictures.items():
        box.npy(f"data/{name}", array)
    box.npy("data/two", np.zeros((10, 2, 7, 9), np.uint8))
    box.npy("data/signed", np.zeros((10, 7, 9), np.int8))
    with box.mount(box.path / "data", spec="batch=2", mode=mode) as m:
        for name, array in pictures.items():
            found = np.asarray(Image.open(io.BytesIO(m.read(f"{name}/record/3.png"))))
            wanted = array[3]
            if name in ("chw", "one"):
                wanted = np.moveaxis(wanted, 0, -1).squeeze()
            assert np.array_equal(found, wanted), name
        for name in ("two/record/3.png", "signed/record/3.png", "grey/batch/0.png"):
            assert errno_of((m / name).stat) == "ENOENT"
            assert name in m.errors()


@needs_tool("sha256sum")
def test_sha256sum_checks_its_file(box, data, mode):
    with box.mount(data, mode=mode) as m:
        for folder in ("images/batch", "labels/record", "index"):
            done = box.tool("sha256sum", "-c", "3.sha256", cwd=m / folder)
            assert done.stdout == "3: OK\n"


def test_two_mounts_agree(box, data, mode):
    def digests(at: str, mode: str) -> list[str]:
        with box.mount(data, spec="batch=40,seed=11", mode=mode, at=at) as m:
            names = [f"all/batch/{s}{f}" for s in (0, 3, 2**45) for f in (".safetensors", ".arrow")]
            return [hashlib.sha256(m.read(n)).hexdigest() for n in names]

    first = digests("a", mode)
    assert digests("b", "cached") == first and len(set(first)) == 6


def test_a_file_that_cannot_be_made_says_why(box):
    array = np.random.default_rng(4).integers(0, 256, (64, 1000), np.uint8)
    store = box.store("s", array, "--shards", "1")
    shard = store / "data-000.npy"
    data = bytearray(shard.read_bytes())
    data[4096 + 5 * 1000] ^= 1
    shard.write_bytes(data)
    with box.mount(store, spec="batch=8,mode=sequential") as m:
        for name in ("s/batch/0.txt", "s/batch/0.sha256", "s/record/5.txt"):
            assert errno_of((m / name).stat) == "EIO"
            assert name in m.errors() and "record 5" in m.errors()
        assert (m / "s/batch/1.txt").stat().st_size > 100


def test_a_lookup_that_takes_long_holds_up_no_other(box, mode):
    """It waits for memory that a reader has, and gets it when the others were answered."""
    array = np.random.default_rng(4).integers(0, 256, (64, 1 << 20), np.uint8)
    box.npy("data/x", array)
    with box.mount(box.path / "data", spec="batch=8", memory="20MiB", mode=mode) as m:
        held = [(m / f"x/batch/{step}").open("rb") for step in (0, 900)]
        waits = m.metrics()["waits_total"]
        got = []
        slow = threading.Thread(target=lambda: got.append((m / "x/batch/5.sha256").stat().st_size))
        slow.start()
        wait_for(lambda: m.metrics()["waits_total"] > waits, "the lookup waits for room")
        for name in ("x/batch/6", "x/batch/6.npy", "x/batch/6.json", "x/batch/7.safetensors"):
            assert (m / name).stat().st_size > 0
        assert len(list((m / "x/batch").iterdir())) == 8
        assert not got
        for file in held:
            file.close()
        slow.join(60)
        assert got == [64 + 2 + 1 + 1]
