"""Rows of the descriptor service: what it is to users whose mounts are in cached mode."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from .data import BATCH, Workload
from .mounted import mounted
from .process import Process, reader
from .turns import Contestant, Context, Samples, require


def service(ctx: Context) -> None:
    """Tensors of `batchfs.open` in step order, and the time from a request to its descriptor."""
    for work in ctx.dense():
        with mounted(ctx, work) as passed, mounted(ctx, work, "--cached") as cached:
            _tensors(ctx, work, passed.parent.parent, cached.parent.parent)
    work = next(work for work in ctx.workloads if work.name == "small")
    count = 100 if ctx.quick else 1000
    with mounted(ctx, work) as passed, mounted(ctx, work, "--cached") as cached:

        def export(folder: Path) -> Contestant:
            socket = folder.parent.parent / ".batchfs" / "service.sock"
            fields = {"socket": socket, "stream": work.name, "step": 3, "count": count}
            return lambda _: ctx.bench.ask("export", **fields)["ns"]

        rows = {"cached": export(cached), "passthrough": export(passed)}
        for who, samples in ctx.take_turns(rows).items():
            name = "export of a ready batch"
            ctx.figures.add("service", name, who, samples, "us", lambda ns: ns / 1e3)


def _tensors(ctx: Context, work: Workload, passed: Path, cached: Path) -> None:
    skip, count = (3, 8) if ctx.quick else (10, 30) if work.name == "image" else (20, 400)
    rounds = ctx.rounds + 1
    # Every record is read, and checked, once.
    for folder in (passed, cached):
        for step in range(work.records // BATCH + 1):
            (folder / work.name / "batch" / str(step)).read_bytes()
    clients: list[Process] = []
    sums: dict[int, list[int]] = {}

    def tensors(way: int, mount: Path, door: str) -> Contestant:
        client = reader()
        clients.append(client)

        def run(turn: int) -> Samples:
            # The same steps for all, of which each pair of mount and door sees each but once.
            first = (turn + (way % 2) * rounds) * (skip + count)
            fields = {"stream": work.name, "door": door, "start": first, "count": skip + count}
            got = client.ask("tensors", mount=mount, **fields)
            want = sums.setdefault(first, got["sums"])
            require(got["sums"] == want, f"the sums of the steps from {first} on")
            time.sleep(0.05)
            return [statistics.fmean(got["ns"][skip:])]

        return run

    turns = ctx.take_turns(
        {
            "cached, service": tensors(0, cached, "service"),
            "passthrough, files": tensors(0, passed, "files"),
            "cached, files": tensors(1, cached, "files"),
            "passthrough, service": tensors(1, passed, "service"),
        }
    )
    for client in clients:
        client.close()
    for who, samples in turns.items():
        per_second = lambda ns: work.batch_bytes / ns  # noqa: E731
        ctx.figures.add("service", work.name, who, samples, "GB/s", per_second)
