"""Rows of tokens from Parquet: beside `datasets` and MosaicML Streaming."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from . import quiet
from .process import Process
from .process import reader as reading
from .turns import Context, require

LANES, SEQ_LEN, WINDOW = 64, 2048, 16
SPEC = f"lanes={LANES},window={WINDOW},seq_len={SEQ_LEN},seed=1"
FAR = 10_000_000
PEERS = ["datasets, numpy", "datasets, arrow", "datasets, streaming", "mosaic"]


def make(folder: Path, codec: str, quick: bool) -> None:
    """About 1,000 documents and a million tokens a row group; lengths are log-normal."""
    if (folder / "done").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "parquet").mkdir(parents=True)
    random = np.random.default_rng(5)
    files, groups, documents = (2, 4, 200) if quick else (4, 64, 1000)
    for number in range(files):
        path = folder / f"parquet/{number}.parquet"
        schema = pa.schema([("id", pa.int64()), ("tokens", pa.list_(pa.int32()))])
        with pq.ParquetWriter(path, schema, compression=codec) as writer:
            for _ in range(groups):
                lengths = random.lognormal(np.log(1030) - 0.5, 1.0, documents).astype(np.int32)
                offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
                # Some words are much more frequent than others.
                tokens = (50_000 * random.random(offsets[-1]) ** 4).astype(np.int32)
                column = pa.ListArray.from_arrays(offsets, tokens)
                ids = pa.array(np.arange(documents))
                writer.write_table(pa.table([ids, column], schema), row_group_size=documents)
    convert(folder, "tokens")


def own(folder: Path, data: Path, column: str) -> None:
    """The files right in the folder `data`."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "parquet").symlink_to(data.resolve(), target_is_directory=True)
    convert(folder, column)


def convert(folder: Path, column: str) -> None:
    """Makes what MosaicML Streaming reads, and notes the number of documents."""
    subprocess.run(token_peers("to mds", folder, column, "0"), check=True)
    files = (folder / "parquet").glob("*.parquet")
    documents = sum(pq.ParquetFile(path).metadata.num_rows for path in files)
    (folder / "done").write_text(str(documents))


def token_peers(who: str, folder: Path, column: str, documents: str) -> list[str]:
    sizes = [str(LANES), str(SEQ_LEN), documents]
    return [sys.executable, "-m", "harness.token_peers", who, str(folder), column, *sizes]


def peer(who: str, folder: Path, column: str) -> dict[str, Any]:
    command = token_peers(who, folder, column, (folder / "done").read_text())
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf-home")}
    child = subprocess.Popen(command, stdout=subprocess.PIPE, env=env)
    quiet.ours.add(child.pid)
    out, _ = child.communicate()
    quiet.ours.discard(child.pid)
    require(child.returncode == 0, who)
    return json.loads(out.splitlines()[-1])


def ours(ctx: Context, folder: Path, start: int, passes: int, budget: int | None) -> dict[str, Any]:
    bench = Process(ctx.bin / "batchfs-bench")
    fields = {"source": folder / "parquet", "spec": SPEC, "start": start, "passes": passes}
    fields["column"] = ctx.column
    said = bench.ask("tokens", budget=budget, **fields)
    bench.close()
    return said


def used(pid: int) -> int:
    return quiet.used(pid) * 1_000_000_000 // os.sysconf("SC_CLK_TCK")


WARM = """
import mmap
memory = mmap.mmap(-1, 1 << 30)
memory.madvise(mmap.MADV_HUGEPAGE)
for page in range(0, 1 << 30, 4096):
    memory[page] = 1
"""


def warm() -> None:
    """Touches memory and frees it: what is free for a while, the host of a virtual machine takes back, and then
    whoever comes next pays for it. In a process of its own: what is said of a child's memory begins with its
    parent's."""
    subprocess.run([sys.executable, "-c", WARM], check=True)


def peak(pid: int, at: Path) -> int:
    """The most that the daemon has held, and with it the memory of the batches that nobody maps."""
    status = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    )
    metrics = dict(
        line.split(" ")
        for line in (at / ".batchfs/metrics").read_text().splitlines()
        if line[0] != "#"
    )
    return int(status["VmHWM"].split()[0]) * 1024 + int(metrics["batchfs_memory_used_bytes"])


def mount(ctx: Context, folder: Path, step: int, steps: int) -> dict[str, Any]:
    """A mount from its start on, read by a process of its own: one batch, then `steps`."""
    at = ctx.folder / "mnt"
    at.mkdir(exist_ok=True)
    reader = reading()

    def ask(begin: int, count: int) -> None:
        reader.ask("mount", folder=at / "tokens/batch", face="mmap", start=begin, count=count)

    # Imports are in the time of no contestant.
    ask(step, 0)
    start = time.perf_counter_ns()
    command = [ctx.bin / "batchfs", "mount", folder / "parquet", at, "--spec", SPEC, "-f"]
    command += ["--column", ctx.column]
    daemon = subprocess.Popen([str(part) for part in command], stdout=subprocess.PIPE, text=True)
    quiet.ours.add(daemon.pid)
    try:
        assert daemon.stdout and daemon.stdout.readline()
        ask(step, 1)
        said = {"first": time.perf_counter_ns() - start}
        if steps:
            before, begin = used(daemon.pid) + used(reader.child.pid), time.perf_counter_ns()
            ask(step + 1, steps)
            said["ns"] = time.perf_counter_ns() - begin
            said["cpu"] = used(daemon.pid) + used(reader.child.pid) - before
            said["tokens"] = steps * LANES * SEQ_LEN
            said["peak"] = peak(daemon.pid, at)
        return said
    finally:
        reader.close()
        umount = [str(ctx.bin / "batchfs"), "umount", "--lazy", str(at)]
        subprocess.run(umount, capture_output=True, check=False)
        daemon.wait(timeout=30)
        quiet.ours.discard(daemon.pid)


def rows(ctx: Context) -> None:
    if ctx.data:
        folder = (ctx.work or ctx.folder) / "tokens-own"
        own(folder, ctx.data, ctx.column)
        _rows(ctx, folder, ctx.data.name)
        return
    for codec in ("snappy", "zstd"):
        folder = (ctx.work or ctx.folder) / f"tokens-{codec}{'-quick' if ctx.quick else ''}"
        make(folder, codec, ctx.quick)
        _rows(ctx, folder, codec)


def _rows(ctx: Context, folder: Path, codec: str) -> None:
    say: dict[str, list[dict[str, Any]]] = {}

    def keep(who: str, said: dict[str, Any]) -> list[float]:
        say.setdefault(who, []).append(said)
        return [float(said["first"])]

    def in_process(turn: int) -> list[float]:
        said = ours(ctx, folder, 0, 1, None)
        return keep("batchfs", {**said, **said["passes"][0]})

    def later(turn: int) -> list[float]:
        # Everything stays in memory: the second pass reads nothing.
        said = ours(ctx, folder, 0, 2, 8 << 30)
        return keep("batchfs, later epochs", {**said, **said["passes"][1]})

    def far(turn: int) -> list[float]:
        said = ours(ctx, folder, FAR, 0, None)
        require(said["decoded"] <= 2 * WINDOW, "a seek decodes no more than two windows")
        return keep("batchfs, step 10,000,000", said)

    def mounted(turn: int) -> list[float]:
        steps = say["batchfs"][-1]["tokens"] // (LANES * SEQ_LEN)
        return keep("batchfs, mount", mount(ctx, folder, 0, steps - 1))

    def mounted_far(turn: int) -> list[float]:
        return keep("batchfs, mount, step 10,000,000", mount(ctx, folder, FAR, 0))

    def cold(turn: int) -> list[float]:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        return keep("batchfs, cold", ours(ctx, folder, 0, 0, None))

    def mounted_cold(turn: int) -> list[float]:
        shutil.rmtree(folder / "cache", ignore_errors=True)
        return keep("batchfs, mount, cold", mount(ctx, folder, 0, 0))

    os.environ["BATCHFS_CACHE_DIR"] = str(folder / "cache")
    peers = {who: lambda turn, who=who: keep(who, peer(who, folder, ctx.column)) for who in PEERS}
    contestants = {
        "batchfs, cold": cold,
        "batchfs": in_process,
        "batchfs, later epochs": later,
        "batchfs, mount, cold": mounted_cold,
        "batchfs, mount": mounted,
        "batchfs, step 10,000,000": far,
        "batchfs, mount, step 10,000,000": mounted_far,
        **peers,
    }

    def warmed(run: Callable[[int], list[float]], turn: int) -> list[float]:
        warm()
        return run(turn)

    turns = {who: lambda turn, run=run: warmed(run, turn) for who, run in contestants.items()}
    ctx.take_turns(turns, rounds=ctx.rounds)
    # The first turn warms up.
    told = {who: said[-ctx.rounds :] for who, said in say.items()}

    def add(group: str, who: str, unit: str, values: list[float]) -> None:
        ctx.figures.add(group, codec, who, [[v] for v in values], unit, lambda v: v)

    for who, said in told.items():
        if "ns" in said[0]:
            add("tokens", who, "ns", [s["ns"] / s["tokens"] for s in said])
            add("tokens, processor", who, "ns", [s["cpu"] / s["tokens"] for s in said])
        if who != "batchfs, later epochs":
            add("tokens, first batch", who, "ms", [s["first"] / 1e6 for s in said])
        if "resumed" in said[0]:
            add("tokens, resumed", who, "ms", [s["resumed"] / 1e6 for s in said])
        if "peak" in said[0] and "ns" in said[0]:
            add("tokens, memory", who, "MB", [s["peak"] / 1e6 for s in said])
    for who in ("batchfs", "batchfs, mount"):
        far = told[f"{who}, step 10,000,000"]
        add("tokens, resumed", who, "ms", [s["first"] / 1e6 for s in far])
