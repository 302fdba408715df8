"""Batches of ragged and of compressed stores, in process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from loaderx import Allocator
from loaderx.zrecord import DenseStore, RaggedStore

from .data import BATCH, Workload
from .turns import Contestant, Context, Samples, require, timed


def gather(ctx: Context) -> None:
    """Batches of random records, from a warm page cache."""
    for work in ctx.large():
        for codec in work.codecs:
            # What is neither ragged nor compressed has rows of its own.
            if work.ragged or codec != "raw":
                _gather(ctx, work, codec)


@contextmanager
def peer(work: Workload, codec: str) -> Iterator[Any]:
    kind = RaggedStore if work.ragged else DenseStore
    with kind(str(work.zrecord_of(codec))) as store, Allocator("cpu") as allocator:
        yield store.bind(allocator)


class Take:
    """NumPy's way: what lies where is known, and copied into a kept buffer."""

    def __init__(self, work: Workload, ids: np.ndarray) -> None:
        self.data = work.array()
        self.cu = work.cu().astype(np.int64)
        self.ids = ids.astype(np.intp)
        lengths = np.diff(self.cu)
        self.out = np.ones(max(int(lengths[i].sum()) for i in self.ids), work.dtype)
        self.offsets = np.zeros(BATCH + 1, np.int32)

    def __call__(self, number: int) -> np.ndarray:
        ids = self.ids[number]
        starts, ends = self.cu[ids], self.cu[ids + 1]
        np.cumsum(ends - starts, out=self.offsets[1:])
        out = self.out[: self.offsets[-1]]
        parts = [self.data[a:b] for a, b in zip(starts.tolist(), ends.tolist(), strict=True)]
        return np.concatenate(parts, out=out)


def _gather(ctx: Context, work: Workload, codec: str) -> None:
    name, ids = f"{work.name}, {codec}", work.ids()
    ctx.bench.ask("open_packed", name=name, store=work.store_of(codec), ids=work.ids_file)
    many = {"image": 12, "token": 300, "ragged": 600}[work.name]
    count = 5 if ctx.quick else many * (4 if codec == "raw" else 1)
    take = Take(work, ids) if work.ragged else None
    lengths = np.diff(work.cu().astype(np.int64)) if work.ragged else None

    def numbers(turn: int) -> list[int]:
        return [i % len(ids) for i in range(turn * count, (turn + 1) * count)]

    def ours(all_threads: bool) -> Contestant:
        return lambda turn: ctx.bench.ask(
            "gather_packed", name=name, all=all_threads, start=turn * count, count=count
        )["ns"]

    with peer(work, codec) as view:
        for number in (0, 1, 7):
            theirs = view[ids[number]]
            theirs = np.from_dlpack(theirs.values if work.ragged else theirs).reshape(-1)
            want = take(number).copy() if take else work.array()[ids[number].astype(np.intp)]
            want = want.reshape(-1)
            require(np.array_equal(theirs, want), f"loaderx, {name}")
            for all_threads in (False, True):
                path = ctx.folder / "dump"
                ctx.bench.ask("dump_packed", name=name, all=all_threads, start=number, path=path)
                got = np.fromfile(path, work.dtype)
                require(np.array_equal(got, want), f"gather, {name}")
                path.unlink()

        def loaderx(turn: int) -> Samples:
            return [timed(lambda i=i: view[ids[i]]) for i in numbers(turn)]

        contestants: dict[str, Contestant] = {
            "batchfs, 1 thread": ours(False),
            "batchfs, all threads": ours(True),
            "loaderx": loaderx,
        }
        if take and codec == "raw":
            contestants["numpy"] = lambda turn: [timed(lambda i=i: take(i)) for i in numbers(turn)]
        turns = ctx.take_turns(contestants)
    per_batch = work.batch_bytes
    if lengths is not None:
        per_batch = int(np.mean([lengths[i.astype(np.intp)].sum() for i in ids])) * 4
    for who, samples in turns.items():
        ctx.figures.add("packed", name, who, samples, "GB/s", lambda ns: per_batch / ns)
