"""The code that the documentation of the package shows, as a user types it in."""

import re
from pathlib import Path

import numpy as np
import pytest
from batchfs import Allocator, dtypes
from batchfs.store import DenseStore, DenseWriter, RaggedBatch, RaggedWriter

torch = pytest.importorskip("torch")

DOCS = Path(__file__).parents[2] / "docs"


def blocks(name):
    return re.findall(r"^```python\n(.*?)^```", (DOCS / name).read_text(), re.M | re.S)


@pytest.fixture
def train(tmp_path, monkeypatch):
    """A dataset where the code expects it, and its records."""
    monkeypatch.chdir(tmp_path)
    images = np.random.default_rng(0).integers(0, 256, (600, 3, 4, 4), np.uint8)
    labels = np.arange(600)
    tokens = [np.arange(n % 7 + 1, dtype=np.int32) + n for n in range(600)]
    for name, records in (("images", images), ("labels", labels)):
        with DenseWriter(f"train/{name}", records.dtype, records.shape[1:], codec="raw") as w:
            w.append(records)
    with RaggedWriter("train/tokens", dtypes.int32, 1, codec="zstd") as w:
        w.append(RaggedBatch.from_records(tokens))
    return images, labels, tokens


def test_through_a_mount(train, fuse):
    images, labels, _ = train
    [code] = blocks("python-mount.md")
    world = {}
    exec(code.replace("stop=1000", "stop=4"), world)
    assert np.array_equal(world["images"].numpy(), images[world["labels"]])
    assert world["labels"].shape == (256,) and set(world["labels"]) <= set(labels)


class Enough(Exception):
    """Ends a loop that has no end."""


def test_in_process(train):
    images, _, tokens = train
    [code] = blocks("python-process.md")
    by_bytes = {image.tobytes(): i for i, image in enumerate(images)}
    steps = []

    def step(pictures, nested):
        for picture, part in zip(pictures, nested.unbind(), strict=True):
            assert part.tolist() == tokens[by_bytes[picture.numpy().tobytes()]].tolist()
        steps.append(len(pictures))
        if len(steps) == 3:
            raise Enough

    with pytest.raises(Enough):
        exec(code, {"train": step})
    assert steps == [256] * 3


def test_datasets_for_pytorch(train):
    images, _, _ = train
    [code] = [block for block in blocks("python.md") if "Records(" in block]
    made = []
    code = re.sub(r"^(DataLoader\(.*\)) +#.*$", r"made.append(\1)", code, flags=re.M)
    with DenseStore("train/images") as store, Allocator("cpu") as memory:
        exec(code, {"streams": {"images": store.bind(memory)}, "made": made})
        records, batches = made
        seen = torch.cat([batch["images"] for batch in records])
        assert sorted(map(bytes, seen.numpy())) == sorted(map(bytes, images))
        assert [len(batch["images"]) for batch in batches] == [256, 256]
