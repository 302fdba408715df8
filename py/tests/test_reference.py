"""The code that loaderx's README shows, under our names, on small real arrays.

The README is read from `../shared`, where that lies beside the project, and is not copied.
"""

import contextlib
import importlib
import re
from pathlib import Path

import numpy as np
import pytest
from batchfs import Allocator, Loader, dtypes
from batchfs.sampler import Sampler
from batchfs.store import DenseStore, DenseWriter, RaggedBatch, RaggedStore, RaggedWriter

README = Path(__file__).parents[3] / "shared/reference/loaderx-2.8.18.md"
DIGITS = Path(__file__).parents[2] / "tools/data"


def blocks():
    if not README.is_file():
        return []
    text = README.read_text()
    return re.findall(r"```python\n(.*?)```", text, re.S)


def renamed(code):
    code = code.replace("loaderx.zrecord", "batchfs.store")
    return re.sub(r"\bloaderx\b", "batchfs", code)


class Enough(Exception):
    """Ends a loop that has no end."""


class World(dict):
    """What the blocks take for given, by name."""

    def __init__(self):
        images = np.load(DIGITS / "digits-images.npy")
        labels = np.load(DIGITS / "digits-labels.npy")
        np.save("data.npy", images)
        np.save("label.npy", labels)
        random = np.random.default_rng(0)
        sequences = [random.integers(0, 99, n).astype(np.int32) for n in range(1, len(images) + 1)]
        self.consumed, self.steps = [], 0
        super().__init__(
            np=np,
            images=np.zeros((16, 28, 28), np.uint8),
            data=images,
            joint=images,
            label=labels,
            seqs=sequences,
            sequences=sequences[:20],
            token_generator=iter(sequences[:20]),
            consume=self.consume,
            model=self.model,
            Allocator=Allocator,
            Loader=Loader,
            Sampler=Sampler,
            DenseStore=DenseStore,
            root="xsub/train",
            to_torch=lambda shards: shards,
            tokenize_and_collate=lambda shards: shards,
        )

    def consume(self, tensor):
        self.consumed.append(np.from_dlpack(tensor).copy())

    def model(self, shard):
        self.steps += 1
        assert set(shard) == {"joint", "label"}
        if self.steps == 5:
            raise Enough

    def make(self, path, records, dtype=None):
        with DenseWriter(path, records.dtype, records.shape[1:], codec="raw") as writer:
            writer.append(records)
        return DenseStore(path)

    def views(self, *names):
        allocator = Allocator("cpu")
        made = {name: self.make(f"v/{name}", self["data"]) for name in names}
        return [made[name].bind(allocator) for name in names]


def quick_start(world, run):
    run()
    assert world["i"] == 256 and world["shard"]["data"].shape == (256, 8, 8)


def dense(world, run):
    run()
    assert world["record"].shape == (2, 4) and world["batch"].shape == (3, 2, 4)
    assert np.array_equal(np.stack(world.consumed), np.arange(64.0).reshape(8, 2, 4))


def ragged(world, run):
    run()
    assert world["batch"].cu_seqlens.numpy().tolist() == [0, 3, 7, 12]
    assert [len(a) for a in world.consumed] == [3, 4, 5]


def writers(world, run):
    run()
    assert world["first_four"].shape == (4, 28, 28) and len(RaggedStore("tokens")) == 20


def dictionary(world, run):
    world.make("dict-sample", world["data"])
    run()
    with Allocator("cpu") as a, DenseStore("data") as store:
        assert store.codec == "zstd_dict"
        assert np.array_equal(store.bind(a)[:].numpy(), world["data"])


def rewritten(world, run):
    world.make("src", world["data"])
    run()
    with Allocator("cpu") as a:
        assert np.array_equal(DenseStore("dst").bind(a)[:].numpy(), world["data"])


def converted(world, run):
    pytest.importorskip("datasets")
    run()
    with Allocator("cpu") as a, RaggedStore("tokens/tokens") as store:
        got = [t.numpy().tolist() for t in store.bind(a)[:].to_tensors()]
    assert got == [[1, 2], [3], [4, 5, 6]]


def from_the_hub(world, run):
    datasets = pytest.importorskip("datasets")
    from batchfs.converter import convert

    world["convert"] = convert
    here = datasets.Dataset.from_dict({"x": [[1, 2], [3, 4]], "label": [0, 1]})
    with pytest.MonkeyPatch.context() as patch:
        # There is no network; everything else is as it stands.
        patch.setattr(datasets, "load_dataset", lambda name, split: here)
        patch.setattr(datasets.config, "HF_ENDPOINT", datasets.config.HF_ENDPOINT)
        run()
    assert len(DenseStore("mnist-train/label")) == 2


def several_streams(world, run):
    run()
    shard = world["shard"]
    assert shard["joint"].shape == (256, 8, 8) and len(shard["token"]) == 256
    ids = Sampler(len(world["joint"]), 256, Sampler.Mode.CYCLIC, seed=42).at(0)
    assert np.array_equal(shard["joint"].numpy(), world["joint"][ids])
    assert np.array_equal(shard["label"].numpy(), world["label"][ids])
    lengths = np.diff(shard["token"].cu_seqlens.numpy())
    assert np.array_equal(lengths, ids + 1)


def positions(world, run):
    world["data_store"] = world.make("p/data", world["data"])
    world["label_store"] = world.make("p/label", world["label"])
    world["allocator_0"], world["allocator_1"] = Allocator("cpu"), Allocator("cpu")
    run()
    sampler = Sampler(len(world["data"]), 256)
    with Loader(world["streams"], sampler) as loader:
        shards = next(loader)
    both = np.concatenate([s["label"].numpy() for s in shards])
    assert np.array_equal(both, world["label"][Sampler(len(world["data"]), 256).at(0)])


def policies(world, run):
    [view] = world.views("x")
    world["streams"], world["sampler"] = {"x": [view]}, Sampler(len(view), 32)
    run()
    assert next(world["loader"])[0]["x"].shape == (32, 8, 8)
    world["loader"].close()


def collated(world, run):
    world["dense_tokens"], world["labelset"] = world.views("t", "l")
    run()
    assert set(world["shards"][0]) == {"input_ids", "label"}


def numba(world, run):
    pytest.importorskip("numba")
    run()
    [view] = world.views("image")
    with Loader({"image": [view]}, Sampler(len(view), 4), transform=world["transform"]) as loader:
        got = next(loader)[0]["image"]
    ids = Sampler(len(view), 4).at(0)
    assert np.allclose(got, world["data"][ids] / 255)


def to_the_cpu(world, run):
    pytest.importorskip("torch")
    world.make("xsub/train/joint", world["joint"])
    world.make("xsub/train/label", world["label"])
    with pytest.raises(Enough):
        run(lambda code: code.replace('"cuda:0"', '"cpu"'))
    assert world.steps == 5


def jax(world, run):
    pytest.importorskip("jax")
    run()
    [view] = world.views("x")
    with Loader({"x": [view]}, Sampler(len(view), 32), transform=world["to_device"]) as loader:
        got = next(loader)[0]["x"]
    assert np.array_equal(np.asarray(got), world["data"][Sampler(len(view), 32).at(0)])


def appended(world, run):
    torch = pytest.importorskip("torch")

    def on_cpu(code):
        code = code.replace('torch.device("cuda", 0)', 'torch.device("cpu")')
        code = code.replace("torch.cuda.Stream(device=device)", "None")
        return code.replace("torch.cuda.stream(producer_stream)", "nothing()")

    world["nothing"] = contextlib.nullcontext
    run(on_cpu)
    with DenseStore("dense") as store, Allocator("cpu") as a:
        assert torch.equal(world["dense"], store.bind(a)[:].torch())


def sampler(world, run):
    run()
    assert world["indices"].shape == (256,) and world["saved"].dtype == np.uint64


# What stands in a block and in no other, and how it is run. `None`: it needs a GPU.
BLOCKS = {
    "np.load('data.npy'": quick_start,
    "np.arange(64": dense,
    "seqs = [np.arange(L": ragged,
    "'mnist/x'": writers,
    "'dict-sample'": dictionary,
    'DenseStore("src")': rewritten,
    "Dataset.from_dict": converted,
    "load_dataset(": from_the_hub,
    '"/token"': several_streams,
    "allocator_1": positions,
    "tokenize_and_collate": policies,
    "dense_tokens": collated,
    "import numba": numba,
    'device = "cuda:0"': to_the_cpu,
    "pin_memory()": None,
    "jax.device_put(": jax,
    '"amdgpu"': None,
    "producer_stream": appended,
    "1_000_000": sampler,
}


def test_every_block_is_known():
    if not README.is_file():
        pytest.skip(f"needs {README}")
    for code in blocks():
        assert sum(mark in code for mark in BLOCKS) == 1, code
    for mark in BLOCKS:
        assert sum(mark in code for code in blocks()) == 1, mark


@pytest.mark.parametrize("mark", BLOCKS)
def test_block(mark, tmp_path, monkeypatch):
    if not README.is_file():
        pytest.skip(f"needs {README}")
    how = BLOCKS[mark]
    if how is None:
        pytest.skip("needs a GPU")
    [code] = [renamed(code) for code in blocks() if mark in code]
    monkeypatch.chdir(tmp_path)
    world = World()

    def run(change=lambda code: code):
        exec(compile(change(code), f"<{mark}>", "exec"), world)

    how(world, run)


def test_all_names_are_there():
    for module, names in {
        "batchfs": ["Allocation", "Allocator", "Loader", "dtypes"],
        "batchfs.store": [
            *["DLTensor", "DenseStore", "DenseView", "DenseWriter"],
            *["RaggedBatch", "RaggedStore", "RaggedView", "RaggedWriter", "train_dict"],
        ],
        "batchfs.sampler": ["Sampler"],
        "batchfs.converter": ["convert"],
    }.items():
        found = importlib.import_module(module)
        assert all(hasattr(found, name) and name in dir(found) for name in names)
    assert (Sampler.Mode.SEQUENTIAL, Sampler.Mode.IID, Sampler.Mode.CYCLIC) == (0, 1, 2)
    assert RaggedBatch and RaggedWriter and dtypes
