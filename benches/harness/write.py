"""Writing: a store from an array in memory, to the disk."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from .data import Workload, write_zrecord
from .turns import Contestant, Context, Samples, timed


def write(ctx: Context) -> None:
    for work in ctx.large():
        for codec in ("raw", "zstd"):
            _write(ctx, work, codec)


def _write(ctx: Context, work: Workload, codec: str) -> None:
    nbytes, out = work.array().nbytes, ctx.folder / "written"

    def fresh() -> None:
        shutil.rmtree(out, ignore_errors=True)
        os.sync()

    def ours(key: str) -> Contestant:
        def run(_: int) -> Samples:
            fresh()
            return [ctx.bench.ask("write", npy=work.npy, dest=out, how=work.how(codec))[key]]

        return run

    def loaderx(flush: bool) -> Contestant:
        def whole() -> None:
            write_zrecord(work, codec, out)
            if flush:
                sync(out)

        def run(_: int) -> Samples:
            fresh()
            return [timed(whole)]

        return run

    turns = ctx.take_turns(
        {
            "batchfs, flushed": ours("ns"),
            "loaderx, then flushed": loaderx(True),
            "batchfs, append alone": ours("append_ns"),
            "loaderx as it is": loaderx(False),
        },
        1 if ctx.quick else min(ctx.rounds, 5),
    )
    fresh()
    for who, samples in turns.items():
        name = f"{work.name}, {codec}"
        ctx.figures.add("write", name, who, samples, "GB/s", lambda ns: nbytes / ns)


def sync(folder: Path) -> None:
    for path in [*folder.iterdir(), folder, folder.parent]:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
