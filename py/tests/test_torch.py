"""PyTorch: Datasets, DataLoader, nested tensors."""

import pickle

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import batchfs  # noqa: E402
from batchfs.sampler import Sampler  # noqa: E402
from batchfs.torch import Batches, Records, as_is  # noqa: E402
from torch.utils.data import DataLoader  # noqa: E402

METHODS = [(0, None), (2, "fork"), (2, "spawn"), (2, "forkserver")]
SPEC = "batch=50,seed=3"


@pytest.fixture
def dense(views):
    return {name: views[name] for name in ("images", "labels")}


def ids(step):
    return Sampler(500, 50, seed=3).at(step).astype(np.int64)


@pytest.mark.parametrize("workers, method", METHODS)
def test_records_through_a_data_loader(dense, images, labels, workers, method):
    loader = DataLoader(
        Records(dense), batch_size=64, num_workers=workers, multiprocessing_context=method
    )
    batches = list(loader)
    assert torch.equal(torch.cat([b["images"] for b in batches]), torch.from_numpy(images))
    assert torch.equal(torch.cat([b["labels"] for b in batches]), torch.from_numpy(labels))


@pytest.mark.parametrize("workers, method", METHODS)
def test_batches_through_a_data_loader(views, images, tokens, workers, method):
    loader = DataLoader(
        Batches(views, SPEC), batch_size=None, num_workers=workers, multiprocessing_context=method
    )
    assert len(loader) == 10
    for _ in range(2):
        steps = 0
        for step, batch in enumerate(loader):
            assert torch.equal(batch["images"], torch.from_numpy(images[ids(step)]))
            want = np.concatenate([tokens[i] for i in ids(step)])
            assert torch.equal(batch["tokens"]["values"], torch.from_numpy(want))
            steps += 1
        assert steps == 10


def test_records_one_by_one_and_whole(views, images, tokens):
    records = Records(views)
    assert len(records) == 500
    assert torch.equal(records[-1]["images"], torch.from_numpy(images[-1]))
    assert torch.equal(records[7]["tokens"], torch.from_numpy(tokens[7]))
    some = records.__getitems__([7, 3])
    assert torch.equal(some[1]["tokens"], torch.from_numpy(tokens[3]))
    whole = DataLoader(Records(views, whole=True), batch_size=100, collate_fn=as_is)
    batch = next(iter(whole))
    assert torch.equal(batch["images"], torch.from_numpy(images[:100]))
    assert batch["tokens"]["cu_seqlens"].dtype == torch.int32
    doubled = Records({"images": views["images"]}, transform=lambda r: r["images"] * 2)
    assert torch.equal(doubled[1], torch.from_numpy(images[1]) * 2)
    with pytest.raises(TypeError):
        Records(3)


@pytest.mark.parametrize("workers, method", METHODS)
def test_over_a_mount(fuse, data, images, labels, tokens, workers, method):
    with batchfs.mount(data, batch=50, seed=3) as ds:
        options = {"num_workers": workers, "multiprocessing_context": method}
        loader = DataLoader(Batches(ds, start=2, stop=7), batch_size=None, **options)
        got = list(loader)
        assert len(got) == 5
        for step, batch in enumerate(got, 2):
            assert torch.equal(batch["images"], torch.from_numpy(images[ids(step)]))
        loader = DataLoader(Records({"labels": ds["labels"]}), batch_size=100, **options)
        assert torch.equal(torch.cat([b["labels"] for b in loader]), torch.from_numpy(labels))
        assert torch.equal(Records(ds)[5]["tokens"], torch.from_numpy(tokens[5]))
        with pytest.raises(ValueError):
            Batches(ds, SPEC)
        with pytest.raises(ValueError):
            Records(ds, whole=True)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("taken", [1, 4, 7])
def test_stateful_data_loader(dense, images, workers, taken):
    stateful = pytest.importorskip("torchdata.stateful_dataloader")

    def made():
        dataset = Batches(dense, SPEC)
        return stateful.StatefulDataLoader(dataset, batch_size=None, num_workers=workers)

    loader = made()
    steps = iter(loader)
    for _ in range(taken):
        next(steps)
    state = pickle.loads(pickle.dumps(loader.state_dict()))
    del steps
    again = made()
    again.load_state_dict(state)
    rest = list(again)
    assert len(rest) == 10 - taken
    for step, batch in enumerate(rest, taken):
        assert torch.equal(batch["images"], torch.from_numpy(images[ids(step)])), step


def test_an_iteration_that_was_broken_off_begins_anew(dense, images):
    loader = DataLoader(Batches(dense, SPEC), batch_size=None)
    for _ in range(2):
        for step, batch in enumerate(loader):
            assert torch.equal(batch["images"], torch.from_numpy(images[ids(step)]))
            if step == 3:
                break


def test_nested_tensors(views, tokens, boxes):
    nested = views["tokens"][0:20].to_nested()
    assert nested.is_nested and nested.layout == torch.jagged
    for part, want in zip(nested.unbind(), tokens[:20], strict=True):
        assert torch.equal(part, torch.from_numpy(want))
    nested = views["boxes"][0:20].to_nested()
    for part, want in zip(nested.unbind(), boxes[:20], strict=True):
        assert torch.equal(part, torch.from_numpy(want))


@pytest.mark.parametrize(
    "shapes", [[(2, 0), (3, 0)], [(0, 4), (2, 4)], [(0,), (0,)], [(0, 0)], [(2, 3, 1), (1, 3, 1)]]
)
def test_nested_tensors_of_empty_records(shapes):
    records = [np.full(shape, i, np.float32) for i, shape in enumerate(shapes)]
    nested = batchfs.store.RaggedBatch.from_records(records).to_nested()
    assert [tuple(part.shape) for part in nested.unbind()] == shapes
    for part, want in zip(nested.unbind(), records, strict=True):
        assert torch.equal(part, torch.from_numpy(want))


def test_nested_tensors_of_loaderx_shapes():
    # loaderx 2.8.19 has uint32 shapes.
    values, cu = np.arange(6, dtype=np.int32), np.array([0, 2, 6], np.int32)
    shapes = np.array([[1, 2], [2, 2]], np.uint32)
    nested = batchfs.store.RaggedBatch(*map(torch.from_numpy, (values, cu, shapes))).to_nested()
    assert [part.tolist() for part in nested.unbind()] == [[[0, 1]], [[2, 3], [4, 5]]]


def test_records_that_are_not_jagged():
    records = [np.zeros((2, 3), np.int8), np.zeros((2, 4), np.int8)]
    with pytest.raises(ValueError, match="first axis"):
        batchfs.store.RaggedBatch.from_records(records).to_nested()


def test_torch_tensors_are_appended(tmp_path):
    from batchfs import Allocator
    from batchfs.store import DenseStore, DenseWriter, RaggedBatch, RaggedStore, RaggedWriter

    want = torch.arange(24, dtype=torch.bfloat16).reshape(4, 6)
    with DenseWriter(tmp_path / "d", "bfloat16", (6,), codec="raw") as w:
        w.append(want)
        for bad in (want.T, want[:, ::2]):
            with pytest.raises(ValueError):
                w.append(bad)
    batch = RaggedBatch(
        torch.tensor([3, 5, 7], dtype=torch.int32),
        torch.tensor([0, 2, 3], dtype=torch.int32),
        torch.tensor([[2], [1]], dtype=torch.uint64),
    )
    with RaggedWriter(tmp_path / "r", "int32", 1, codec="zstd") as w:
        w.append(batch)
    assert [t.torch().tolist() for t in batch.to_tensors()] == [[3, 5], [7]]
    with DenseStore(tmp_path / "d") as d, RaggedStore(tmp_path / "r") as r, Allocator("cpu") as a:
        assert torch.equal(torch.from_dlpack(d.bind(a)[:]), want)
        assert r.bind(a)[1].values.torch().tolist() == [7]


def test_jax():
    pytest.importorskip("jax")
    import jax.dlpack
    from batchfs import Allocator

    tensor = Allocator("cpu").acquire(64).view("float32", (4, 4))
    tensor.numpy()[:] = np.arange(16).reshape(4, 4)
    assert np.array_equal(np.asarray(jax.dlpack.from_dlpack(tensor)), tensor.numpy())
