"""Rows of the Python package: gather and single records, loaders, and the memory that these take.

PyTorch's `DataLoader` takes part where PyTorch is installed (`run.py --torch`).
"""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import loaderx
import loaderx.sampler
import loaderx.zrecord as peer
import numpy as np

import batchfs
import batchfs.sampler
import batchfs.store as ours

from .data import BATCH, Workload
from .mounted import mounted
from .turns import Contestant, Context, Samples, require, timed

Step = Callable[[], Any]


def _opened(module: Any, work: Workload, path: Path) -> Any:
    kind = module.RaggedStore if work.ragged else module.DenseStore
    whole = batchfs if module is ours else loaderx
    return kind(str(path)).bind(whole.Allocator("cpu"))


def _work(ctx: Context, name: str) -> Workload:
    return next(work for work in ctx.workloads if work.name == name)


def _views(ctx: Context, name: str) -> tuple[Any, Any]:
    work = _work(ctx, name)
    return _opened(ours, work, work.store), _opened(peer, work, work.zrecord)


def _array(value: Any) -> np.ndarray:
    return np.from_dlpack(getattr(value, "values", value))


def _names(ctx: Context) -> list[str]:
    return [work.name for work in ctx.large()]


def calls(ctx: Context) -> None:
    """Batches of random records, and single ones, each by a call from Python."""
    for name in _names(ctx):
        mine, theirs = _views(ctx, name)
        ids = np.random.default_rng(22).integers(0, len(mine), (300, BATCH)).astype(np.uint64)
        for row in ids[:5]:
            require(np.array_equal(_array(mine[row]), _array(theirs[row])), f"{name}, from Python")
        count = 10 if ctx.quick or name == "image" else 300
        batches: dict[str, Contestant] = {
            "batchfs": _each(lambda i, v=mine, n=ids: v[n[i % len(n)]], count),
            "loaderx": _each(lambda i, v=theirs, n=ids: v[n[i % len(n)]], count),
        }
        first = [int(i) for i in ids[:, 0]]
        single: dict[str, Contestant] = {
            "batchfs": _each(lambda i, v=mine, n=first: v[n[i % len(n)]], 300),
            "loaderx": _each(lambda i, v=theirs, n=first: v[n[i % len(n)]], 300),
        }
        for work in ctx.dense():
            if work.name == name:
                batches |= _numpy(work, ids, count)
                data = work.array()
                single["numpy"] = _each(lambda i, d=data, n=first: d[n[i % len(n)]].copy(), 300)
        # Every record was read, and checked, once.
        for start in range(0, len(mine), BATCH):
            mine[start : start + BATCH]
        for what, rows in (("batch", batches), ("one record", single)):
            for who, turns in ctx.take_turns(rows).items():
                add(ctx, f"python, {what}", name, who, turns)


def _each(call: Callable[[int], object], count: int) -> Contestant:
    def run(turn: int) -> Samples:
        return [timed(lambda i=i: call(i)) for i in range(turn * count, (turn + 1) * count)]

    return run


def _numpy(work: Workload, ids: np.ndarray, count: int) -> dict[str, Contestant]:
    data, index = work.array(), ids.astype(np.intp)
    kept = np.ones((BATCH, *work.item_shape), work.dtype)

    def take(i: int) -> None:
        np.take(data, index[i % len(index)], axis=0, out=kept, mode="clip")

    return {"numpy, kept buffer": _each(take, count)}


def add(ctx: Context, group: str, workload: str, who: str, turns: list[Samples]) -> None:
    ctx.figures.add(group, workload, who, turns, "us", lambda ns: ns / 1e3)


def _run(make: Callable[[], tuple[Step, Callable[[], None]]], skip: int, count: int) -> Contestant:
    """The mean time of a batch over some, after some others."""

    def run(_: int) -> Samples:
        step, close = make()
        try:
            for _ in range(skip):
                step()
            start = time.perf_counter_ns()
            for _ in range(count):
                step()
            return [(time.perf_counter_ns() - start) / count]
        finally:
            close()

    return run


def _loader(whole: Any, view: Any, workers: int) -> Callable[[], tuple[Step, Callable[[], None]]]:
    def make() -> tuple[Step, Callable[[], None]]:
        kind = whole.sampler.Sampler
        sampler = kind(len(view), BATCH, kind.Mode.CYCLIC, seed=1)
        loader = whole.Loader({"x": [view]}, sampler, workers=workers, prefetch=4)
        return lambda: next(loader), loader.close

    return make


def loaders(ctx: Context) -> None:
    """Loaders of one stream, with no, one and four workers; and through a mount."""
    for name in _names(ctx):
        mine, theirs = _views(ctx, name)
        for start in range(0, len(mine), BATCH):
            mine[start : start + BATCH]
        skip, count = (5, 20) if ctx.quick or name == "image" else (200, 1500)
        rows: dict[str, Contestant] = {}
        for workers in (0, 1, 4):
            rows[f"batchfs, workers={workers}"] = _run(_loader(batchfs, mine, workers), skip, count)
            rows[f"loaderx, workers={workers}"] = _run(
                _loader(loaderx, theirs, workers), skip, count
            )
        if importlib.util.find_spec("torch"):
            # Its workers need long to start, and few batches of it are enough.
            few = max(5, count // 20)
            rows["torch DataLoader, 4 workers"] = _run(_torch(ctx, name), 5, few)
        with _mount(ctx, name) as dataset:
            rows["batchfs.open"] = _run(_opens(dataset, name), skip, count)
            for who, turns in ctx.take_turns(rows).items():
                add(ctx, "loader", name, who, turns)


@contextmanager
def _mount(ctx: Context, name: str) -> Iterator[batchfs.Dataset]:
    with mounted(ctx, _work(ctx, name)) as folder:
        yield batchfs.open(folder.parent.parent)


def _opens(dataset: batchfs.Dataset, name: str) -> Callable[[], tuple[Step, Callable[[], None]]]:
    steps = itertools.count()
    stream = dataset[name]
    # The next turn goes on where the last one was.
    return lambda: (lambda: stream.batch[next(steps)], lambda: None)


def _torch(ctx: Context, name: str) -> Callable[[], tuple[Step, Callable[[], None]]]:
    import torch
    from torch.utils.data import DataLoader, Dataset, RandomSampler

    work = _work(ctx, name)
    values = work.array()
    ends = work.cu().astype(np.int64) if work.ragged else None

    class Npy(Dataset):
        def __len__(self) -> int:
            return len(values) if ends is None else len(ends) - 1

        def __getitem__(self, i: int) -> torch.Tensor:
            one = values[i] if ends is None else values[ends[i] : ends[i + 1]]
            return torch.from_numpy(np.array(one))

    def packed(records: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        lengths = torch.tensor([0] + [len(r) for r in records])
        return torch.cat(records), lengths.cumsum(0).to(torch.int32)

    def make() -> tuple[Step, Callable[[], None]]:
        data = Npy()
        sampler = RandomSampler(data, replacement=True, num_samples=10**9)
        collate = packed if work.ragged else None
        loader = DataLoader(data, BATCH, sampler=sampler, num_workers=4, collate_fn=collate)
        batches = iter(loader)
        return lambda: next(batches), lambda: batches._shutdown_workers()

    return make


MEMORY = """
import json, sys, importlib
which, path, ragged, workers, steps = json.loads(sys.argv[1])
whole = importlib.import_module(which)
store = importlib.import_module("batchfs.store" if which == "batchfs" else "loaderx.zrecord")
Sampler = importlib.import_module(which + ".sampler").Sampler
opened = (store.RaggedStore if ragged else store.DenseStore)(path)
view = opened.bind(whole.Allocator("cpu"))
def used():
    with open("/proc/self/status") as f:
        lines = dict(line.split(":", 1) for line in f)
    return sum(int(lines[k].split()[0]) for k in ("RssAnon", "RssShmem"))
sampler = Sampler(len(view), 256, Sampler.Mode.CYCLIC, seed=1)
before = used()
loader = whole.Loader({"x": [view]}, sampler, workers=workers, prefetch=4)
most = 0
for _ in range(steps):
    batch = next(loader)
    most = max(most, used())
loader.close()
print(most - before)
"""


def memory(ctx: Context) -> None:
    """The most memory that a loader with four workers adds to its process, files not counted."""
    for name in _names(ctx):
        work = _work(ctx, name)
        for who, store in (("batchfs", work.store), ("loaderx", work.zrecord)):
            request = [who, str(store), work.ragged, 4, 20 if ctx.quick else 100]
            command = [sys.executable, "-c", MEMORY, json.dumps(request)]
            turns = [
                [float(subprocess.run(command, capture_output=True, check=True).stdout)]
                for _ in range(3)
            ]
            ctx.figures.add("loader memory", name, who, turns, "MiB", lambda kib: kib / 1024)
