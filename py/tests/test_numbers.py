"""Integers that are given: each has its range, and an error says so."""

import pickle

import pytest
from batchfs import Allocator, Loader, TokenLoader, mount
from batchfs.sampler import Sampler
from batchfs.store import DenseWriter, RaggedWriter, train_dict

HUGE = (2**64, 2**200, -(2**200), 10**5000)


def refused(name, call, *values):
    """Each of these is a `ValueError` that has name and range, and what is no integer is none."""
    for value in values:
        with pytest.raises(ValueError, match=rf"{name}=.* is not valid; it is -?\d+ to \d"):
            call(value)
    with pytest.raises((TypeError, ValueError), match=f"{name} is an integer"):
        call("many")


@pytest.mark.parametrize("name", ["lanes", "window", "seq_len", "seed", "rank", "world"])
def test_of_the_order_of_tokens(folder, expected, name):
    least = 0 if name in ("seed", "rank") else 1
    refused(name, lambda value: TokenLoader(folder, **{name: value}), least - 1, *HUGE)


@pytest.mark.parametrize("name", ["budget", "prefetch", "threads"])
def test_of_the_token_loader(folder, expected, name):
    refused(name, lambda value: TokenLoader(folder, **{name: value}), -1, *HUGE)


def test_of_steps_and_epochs(folder, expected):
    sampler = Sampler(100, 10)
    for at in (sampler.at, sampler.seek):
        refused("step", at, -1, *HUGE)
    assert sampler.step == 0
    with TokenLoader(folder, lanes=6, seq_len=16, window=3) as loader:
        refused("step", loader.seek, -1, *HUGE)
        refused("epoch", loader.first_step, -1, *HUGE)
        assert loader.step == 0


@pytest.mark.parametrize("name", ["length", "batch_size", "seed", "rank", "world"])
def test_of_the_sampler(name):
    given = {"length": 100, "batch_size": 10}
    least = 0 if name in ("seed", "rank") else 1
    refused(name, lambda value: Sampler(**{**given, name: value}), least - 1, *HUGE)


def test_of_the_loader(views):
    streams = {"labels": [views["labels"]]}
    for name, least in (("workers", 0), ("prefetch", 1)):
        call = lambda value, name=name: Loader(streams, Sampler(500, 50), **{name: value})  # noqa: E731
        refused(name, call, least - 1, *HUGE)
    with pytest.raises(ValueError, match="workers=1025 is not valid; it is 0 to 1024"):
        Loader(streams, Sampler(500, 50), workers=1025)
    with Loader(streams, Sampler(500, 50), workers=0) as loader:
        state = loader.state_dict()
        for key in ("delivered", "step"):
            refused(
                key, lambda value, key=key: loader.load_state_dict({**state, key: value}), -1, *HUGE
            )


def test_of_the_allocator():
    refused("pool_size", lambda value: Allocator("cpu", pool_size=value), -1, *HUGE)
    refused("minimum_size", lambda value: Allocator("cpu", minimum_size=value), -1, *HUGE)
    refused("device_id", lambda value: Allocator("cpu", value), -1, 2**31, *HUGE)
    with Allocator("cpu", 0, pool_size=1 << 20) as allocator:
        assert pickle.loads(pickle.dumps(allocator)).pool_size == 1 << 20
        refused("size", allocator.acquire, -1, *HUGE)
        refused("size", allocator.size_class, -1, *HUGE)
        refused("alignment", lambda value: allocator.acquire(64, value), -1, *HUGE)
        with allocator.acquire(64) as memory:
            refused("offset", lambda value: memory.view("uint8", (1,), value), -1, *HUGE)
            for value in (-1, 2**63, *HUGE):
                with pytest.raises(ValueError):
                    memory.view("uint8", (value,))


def test_of_writers(tmp_path, views):
    dense = lambda **more: DenseWriter(tmp_path / "d", "uint8", (3,), codec="zstd", **more)  # noqa: E731
    refused("data_shards", lambda value: dense(data_shards=value), 0, 256, *HUGE)
    refused("level", lambda value: dense(level=value), *HUGE)
    shape = lambda n: DenseWriter(tmp_path / "d", "uint8", (n,), codec="raw")  # noqa: E731
    refused("each number of item_shape", shape, -1, 2**63, *HUGE)
    refused("ndim", lambda n: RaggedWriter(tmp_path / "r", "uint8", n, codec="raw"), 0, 65, *HUGE)
    refused("size", lambda value: train_dict(views["labels"], size=value), 0, *HUGE)
    assert not list(tmp_path.iterdir())


def test_of_a_mount(tmp_path):
    for name, least in (("memory", 1), ("threads", 0), ("batch", 0), ("seed", 0)):
        for value in (least - 1, *HUGE):
            with pytest.raises(ValueError, match=rf"{name}=.* is not valid; it is {least} to \d"):
                mount(tmp_path, **{name: value})


def test_of_datasets(views):
    torch = pytest.importorskip("torch")
    from batchfs.torch import Batches

    streams = {"labels": views["labels"]}
    refused("start", lambda value: Batches(streams, start=value), -1, *HUGE)
    refused("stop", lambda value: Batches(streams, stop=value), -2, 2**64 + 1, 10**5000)
    last = list(Batches(streams, "batch=50", start=2**64 - 1, stop=2**64))
    assert len(last) == 1 and isinstance(last[0]["labels"], torch.Tensor)
