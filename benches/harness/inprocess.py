"""Rows in process: raw batches, single records, ids."""

from __future__ import annotations

import time

import numpy as np
from loaderx import Allocator, _sampler
from loaderx.sampler import Sampler
from loaderx.zrecord import DenseStore, DenseView

from .data import BATCH, Workload
from .turns import Contestant, Context, Samples, require, timed


def gather(ctx: Context) -> None:
    """Batches of random records, raw, from a warm page cache."""
    for work in ctx.dense():
        ctx.open(work)
        with DenseStore(str(work.zrecord)) as store, Allocator("cpu") as allocator:
            _gather(ctx, work, store.bind(allocator))


def _gather(ctx: Context, work: Workload, view: DenseView) -> None:
    data, ids = work.array(), work.ids()
    index = ids.astype(np.intp)
    kept = np.ones((BATCH, *work.item_shape), work.dtype)
    count = (5 if ctx.quick else 40) if work.name == "image" else (50 if ctx.quick else 1500)
    for batch in (0, 1, 7):
        want = data[index[batch]]
        np.take(data, index[batch], axis=0, out=kept, mode="clip")
        require(np.array_equal(kept, want), "numpy")
        require(np.array_equal(np.from_dlpack(view[ids[batch]]), want), "loaderx")
        for how in ("store", "split", "engine", "limit1", "limit2"):
            path = ctx.folder / "dump"
            said = ctx.bench.ask("dump", name=work.name, how=how, start=batch, path=path)
            got = np.fromfile(path, work.dtype).reshape(want.shape)
            require(np.array_equal(got, data[np.array(said["ids"])]), f"gather, {how}")
            path.unlink()

    def ours(how: str) -> Contestant:
        return lambda turn: ctx.bench.ask(
            "gather", name=work.name, how=how, start=turn * count, count=count
        )["ns"]

    def numbers(turn: int) -> list[int]:
        return [i % len(ids) for i in range(turn * count, (turn + 1) * count)]

    # NumPy's default mode, "raise", goes through a second buffer when there is an `out`.
    def numpy(turn: int) -> Samples:
        return [
            timed(lambda i=i: np.take(data, index[i], axis=0, out=kept, mode="clip"))
            for i in numbers(turn)
        ]

    def loaderx(turn: int) -> Samples:
        return [timed(lambda i=i: view[ids[i]]) for i in numbers(turn)]

    turns = ctx.take_turns(
        {
            "batchfs, 1 thread": ours("store"),
            "batchfs, all threads": ours("split"),
            "batchfs, engine": ours("engine"),
            "numpy": numpy,
            "loaderx": loaderx,
            "limit, 1 core": ours("limit1"),
            "limit, 2 cores": ours("limit2"),
        },
    )
    for who, samples in turns.items():
        ctx.figures.add("gather", work.name, who, samples, "GB/s", lambda ns: work.batch_bytes / ns)


def one(ctx: Context) -> None:
    """One record by index."""
    for work in ctx.dense():
        ctx.open(work)
        with DenseStore(str(work.zrecord)) as store, Allocator("cpu") as allocator:
            _one(ctx, work, store.bind(allocator))


def _one(ctx: Context, work: Workload, view: DenseView) -> None:
    data = work.array()
    first = [int(i) for i in work.ids()[:, 0]]
    count = 100 if ctx.quick else 400
    for i in first[:20]:
        require(np.array_equal(np.from_dlpack(view[i]), data[i]), "loaderx, one record")

    def ids(turn: int) -> list[int]:
        return [first[i % len(first)] for i in range(turn * count, (turn + 1) * count)]

    turns = ctx.take_turns(
        {
            "batchfs": lambda turn: ctx.bench.ask(
                "one", name=work.name, start=turn * count, count=count
            )["ns"],
            "numpy": lambda turn: [timed(lambda i=i: data[i].copy()) for i in ids(turn)],
            "loaderx": lambda turn: [timed(lambda i=i: view[i]) for i in ids(turn)],
        },
    )
    for who, samples in turns.items():
        ctx.figures.add("one", work.name, who, samples, "us", lambda ns: ns / 1e3)


def ids(ctx: Context) -> None:
    """The ids of a batch of 256."""
    for mode in ("iid", "cyclic"):
        for records in (2500, 200_000):
            _ids(ctx, mode, records)


def _ids(ctx: Context, mode: str, records: int) -> None:
    steps = 200 if ctx.quick else 4000
    number = Sampler.Mode.IID if mode == "iid" else Sampler.Mode.CYCLIC
    fill = _sampler.fill_iid if mode == "iid" else _sampler.fill_cyclic
    sampler = Sampler(records, BATCH, number, seed=42)
    # One call for many batches' worth of ids, so that the call itself counts for little.
    large = min(records, 64 * BATCH)
    buffer = np.empty(large, np.uint64)
    spec = f"mode={mode},batch={BATCH},seed=42"
    plan = ctx.folder / "plan"
    ctx.bench.ask("plan", spec=spec, records=records, start=0, count=records // BATCH, path=plan)
    drawn = np.fromfile(plan, np.uint64)
    require(bool(drawn.max() < records), "ids out of range")
    require(mode == "iid" or len(np.unique(drawn)) == len(drawn), "an id came twice")

    def calls(_: int) -> Samples:
        start = time.perf_counter_ns()
        for _ in range(steps):
            sampler.next()
        return [(time.perf_counter_ns() - start) / steps]

    def loop(_: int) -> Samples:
        many = max(1, steps * BATCH // large)
        start = time.perf_counter_ns()
        for step in range(many):
            fill(records, large, 42, step, buffer)
        return [(time.perf_counter_ns() - start) / many * BATCH / large]

    turns = ctx.take_turns(
        {
            "batchfs": lambda _: ctx.bench.ask(
                "ids", spec=spec, records=records, runs=1, steps=steps
            )["ns"],
            "loaderx, Python call": calls,
            "loaderx, loop alone": loop,
        },
    )
    for who, samples in turns.items():
        ctx.figures.add("ids", f"{mode}, n = {records:,}", who, samples, "ns", lambda ns: ns)
