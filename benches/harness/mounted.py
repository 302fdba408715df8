"""Rows through a mount: batches in order, and single calls."""

from __future__ import annotations

import shutil
import statistics
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from . import quiet
from .data import BATCH, Workload
from .process import reader
from .turns import Contestant, Context, Samples, require

SPEC = "mode=cyclic,batch=256,seed=7"

FRESH = "fresh name: open, read a byte, close"
BYTE = "a byte to another thread and back"
# Microseconds before each call: enough to fill a small batch ahead; and so many that a virtual machine's
# other core is asleep, and has to be woken for anything that crosses over.
AWAKE, ASLEEP = 200, 1000


@contextmanager
def mounted(ctx: Context, work: Workload, *more: str) -> Iterator[Path]:
    """The folder of the batches of a release mount."""
    folder = ctx.folder / "-".join(("mnt", *more))
    folder.mkdir(exist_ok=True)
    program = ctx.bin / "batchfs"
    command = [program, "mount", work.store, folder, "--spec", SPEC, "--foreground", *more]
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    quiet.ours.add(daemon.pid)
    try:
        assert daemon.stdout
        said = daemon.stdout.readline()
        if not said:
            raise SystemExit("benches: the mount did not come up")
        if "passthrough" not in said and "--cached" not in more:
            print(f"note: {said.strip()}", flush=True)
        yield folder / work.name / "batch"
    finally:
        subprocess.run([program, "umount", "--lazy", folder], capture_output=True, check=False)
        daemon.terminate()
        daemon.wait(timeout=30)
        quiet.ours.discard(daemon.pid)


def in_order(ctx: Context) -> None:
    """Steps in order, every byte summed, against NumPy's take and sum."""
    for work in ctx.dense():
        _first_epoch(ctx, work)
        with mounted(ctx, work) as folder:
            _in_order(ctx, work, folder)


def _first_epoch(ctx: Context, work: Workload) -> None:
    """The first steps of a fresh mount: records are read, and checked, for the first time."""
    steps = max(2, work.records // BATCH)
    turns: list[Samples] = []
    for _ in range(1 if ctx.quick else 3):
        with mounted(ctx, work) as folder:
            # Not measured again if disturbed: a second time is no first one.
            got = ctx.bench.ask(
                "sum", dir=folder, suffix="", skip=0, start=0, count=steps, how="mmap"
            )
            turns.append([statistics.fmean(got["ns"])])
    who = "mount, mmap, compiled, first epoch"
    ctx.figures.add("mount", work.name, who, turns, "GB/s", lambda ns: work.batch_bytes / ns)


def _in_order(ctx: Context, work: Workload, folder: Path) -> None:
    if ctx.quick:
        skip, count = 3, 10
    else:
        # The first steps of each turn find what was prefetched while others had their turn.
        skip, count = (10, 30) if work.name == "image" else (20, 400)
    each = skip + count
    plan = ctx.folder / "plan"
    rounds, ways = ctx.rounds + 1, 8
    steps = each * rounds * ways
    ctx.bench.ask("plan", spec=SPEC, records=work.records, start=0, count=steps, path=plan)
    _compare(work, folder, plan, each)
    # An epoch, after which every record was read and checked once.
    for step in range(work.records // BATCH + 1):
        (folder / str(step)).read_bytes()
    ours, peer = reader(), reader()
    peer.ask("open", npy=work.npy, ids=plan, first=0)

    # Each way has steps of its own: none finds what another one has left ready.
    def start_of(way: int, turn: int) -> int:
        return (way * rounds + turn) * each

    def window(ns: list[int]) -> Samples:
        time.sleep(0.05)
        return [statistics.fmean(ns[skip:])]

    def result(start: int, got: dict[str, list[int]]) -> Samples:
        want = peer.ask("take", start=start, count=each)
        require(got["sums"] == want["sums"], f"the sums of the steps from {start} on")
        return window(got["ns"])

    def python(way: int, face: str) -> Contestant:
        def run(turn: int) -> Samples:
            start = start_of(way, turn)
            got = ours.ask("mount", folder=folder, face=face, start=start, count=each)
            return result(start, got)

        return run

    def compiled(way: int, how: str) -> Contestant:
        def run(turn: int) -> Samples:
            start = start_of(way, turn)
            got = ctx.bench.ask(
                "sum", dir=folder, suffix="", skip=0, start=start, count=each, how=how
            )
            return result(start, got)

        return run

    def take(turn: int) -> Samples:
        return window(peer.ask("take", start=start_of(0, turn), count=each)["ns"])

    turns = ctx.take_turns(
        {
            "mount, np.load of .npy": python(1, "npy"),
            "numpy, take and sum": take,
            "mount, np.memmap": python(2, "memmap"),
            "mount, mmap": python(3, "mmap"),
            "mount, read into kept": python(4, "read"),
            "mount, mmap, compiled": compiled(5, "mmap"),
            "mount, read, compiled": compiled(6, "read"),
        },
    )
    ours.close()
    peer.close()
    for who, samples in turns.items():
        ctx.figures.add("mount", work.name, who, samples, "GB/s", lambda ns: work.batch_bytes / ns)


def _compare(work: Workload, folder: Path, plan: Path, far: int) -> None:
    data = work.array()
    index = np.fromfile(plan, np.uint64).astype(np.intp).reshape(-1, BATCH)
    for step in (0, 1, far):
        want = data[index[step]]
        got = np.load(folder / f"{step}.npy", mmap_mode="r")
        require(np.array_equal(got, want), "a batch of the mount")
        bare = np.fromfile(folder / str(step), work.dtype)
        require(np.array_equal(bare, want.reshape(-1)), "a bare batch of the mount")


def latency(ctx: Context) -> None:
    """Single calls, from a compiled client, on a mount and on a plain file. The batches are small
    (16 KiB), so that it is the calls that are measured."""
    work = next(work for work in ctx.workloads if work.name == "small")
    count = 100 if ctx.quick else 1000
    fresh = 50 if ctx.quick else 300
    plain = ctx.folder / "plain"
    plain.mkdir(exist_ok=True)
    for step in range(fresh):
        (plain / f"{step}").write_bytes(bytes(work.batch_bytes))
    with mounted(ctx, work) as folder:
        ready = folder / "3"
        ready.read_bytes()

        def call(what: str, path: Path) -> Contestant:
            return lambda _: ctx.bench.ask("latency", what=what, path=path, count=count)["ns"]

        def trip(pause: int) -> Contestant:
            return lambda _: ctx.bench.ask("round_trip", count=count, pause_us=pause)["ns"]

        def row(where: Path, pause: int) -> Contestant:
            def run(turn: int) -> Samples:
                start = 0 if where == plain else 1000 + (turn * 1000 + pause) * 2 * fresh
                got = ctx.bench.ask(
                    "fresh", dir=where, suffix="", start=start, count=fresh, pause_us=pause
                )
                # A few steps until the mount has seen that they come in order.
                return got["ns"][8:]

            return run

        rows: dict[str, dict[str, Contestant]] = {
            "open and close, ready": {
                "mount": call("open_close", ready),
                "plain file": call("open_close", plain / "0"),
            },
            FRESH: {"mount": row(folder, AWAKE), "plain file": row(plain, AWAKE)},
            f"{FRESH}; after {ASLEEP / 1000:g} ms": {
                "mount": row(folder, ASLEEP),
                "plain file": row(plain, ASLEEP),
            },
            "stat": {"mount": call("stat", ready), "plain file": call("stat", plain / "0")},
            BYTE: {"socket": trip(0)},
            f"{BYTE}; after {ASLEEP / 1000:g} ms": {"socket": trip(ASLEEP)},
        }
        for name, contestants in rows.items():
            for who, samples in ctx.take_turns(contestants).items():
                ctx.figures.add("latency", name, who, samples, "us", lambda ns: ns / 1e3)
    shutil.rmtree(plain)
