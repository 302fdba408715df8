"""The rows of the table. In each the contestants take turns, and their results are compared."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from loaderx import Allocator, _sampler
from loaderx.sampler import Sampler
from loaderx.zrecord import DenseStore, DenseWriter

from .data import BATCH, Workload
from .figures import Figures
from .process import Process, reader


@dataclass
class Context:
    bench: Process
    bin: Path
    folder: Path
    workloads: list[Workload]
    figures: Figures
    rounds: int
    quick: bool

    def open(self, work: Workload) -> None:
        self.bench.ask("open", name=work.name, store=work.store, npy=work.npy, ids=work.ids_file)


def take_turns(
    rounds: int, contestants: dict[str, Callable[[int], list[float]]]
) -> dict[str, list[list[float]]]:
    """Samples of each contestant, by turn. The first turn warms up and is dropped."""
    turns: dict[str, list[list[float]]] = {who: [] for who in contestants}
    for turn in range(rounds + 1):
        for who, run in contestants.items():
            samples = run(turn)
            if turn > 0:
                turns[who].append(samples)
    return turns


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - start


def require(same: bool, what: str) -> None:
    if not same:
        raise SystemExit(f"benches: {what}: the results differ, so nothing was measured")


def gather(ctx: Context) -> None:
    """Batches of random records, raw, in process, from a warm page cache."""
    for work in ctx.workloads:
        ctx.open(work)
        data, ids = work.array(), work.ids()
        index = ids.astype(np.intp)
        kept = np.ones((BATCH, *work.item_shape), work.dtype)
        count = (5 if ctx.quick else 20) if work.name == "image" else (50 if ctx.quick else 500)
        with DenseStore(str(work.zrecord)) as store, Allocator("cpu") as allocator:
            view = store.bind(allocator)
            for batch in (0, 1, 7):
                want = data[index[batch]]
                np.take(data, index[batch], axis=0, out=kept, mode="clip")
                require(np.array_equal(kept, want), "numpy")
                require(np.array_equal(np.from_dlpack(view[ids[batch]]), want), "loaderx")
                for how in ("store", "split", "engine", "limit1", "limit2"):
                    path = ctx.folder / "dump"
                    named = ctx.bench.ask(
                        "dump", name=work.name, how=how, path=path, **{"from": batch}
                    )
                    got = np.fromfile(path, work.dtype).reshape(want.shape)
                    require(np.array_equal(got, data[np.array(named["ids"])]), f"gather, {how}")
                    path.unlink()

            def ours(how: str) -> Callable[[int], list[float]]:
                name = work.name
                return lambda turn: ctx.bench.ask(
                    "gather", name=name, how=how, count=count, **{"from": turn * count}
                )["ns"]

            def numpy(turn: int) -> list[float]:
                rows = (index[i % len(index)] for i in range(turn * count, (turn + 1) * count))
                return [
                    timed(lambda r=r: np.take(data, r, axis=0, out=kept, mode="clip")) for r in rows
                ]

            def loaderx(turn: int) -> list[float]:
                rows = (ids[i % len(ids)] for i in range(turn * count, (turn + 1) * count))
                return [timed(lambda r=r: view[r]) for r in rows]

            turns = take_turns(
                ctx.rounds,
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
            ctx.figures.add(
                "gather", work.name, who, samples, "GB/s", lambda ns: work.batch_bytes / ns
            )


def one(ctx: Context) -> None:
    """One record by index, in process."""
    for work in ctx.workloads:
        ctx.open(work)
        data = work.array()
        first = [int(i) for i in work.ids()[:, 0]]
        count = 100 if ctx.quick else 400
        with DenseStore(str(work.zrecord)) as store, Allocator("cpu") as allocator:
            view = store.bind(allocator)
            for i in first[:20]:
                require(np.array_equal(np.from_dlpack(view[i]), data[i]), "loaderx, one record")

            def ids(turn: int) -> list[int]:
                return [first[i % len(first)] for i in range(turn * count, (turn + 1) * count)]

            name = work.name
            turns = take_turns(
                ctx.rounds,
                {
                    "batchfs": lambda turn: ctx.bench.ask(
                        "one", name=name, count=count, **{"from": turn * count}
                    )["ns"],
                    "numpy": lambda turn: [timed(lambda i=i: data[i].copy()) for i in ids(turn)],
                    "loaderx": lambda turn: [timed(lambda i=i: view[i]) for i in ids(turn)],
                },
            )
        for who, samples in turns.items():
            ctx.figures.add("one", work.name, who, samples, "us", lambda ns: ns / 1e3)


def ids(ctx: Context) -> None:
    """The ids of a batch of 256."""
    steps = 200 if ctx.quick else 4000
    for mode, number in (("iid", Sampler.Mode.IID), ("cyclic", Sampler.Mode.CYCLIC)):
        for records in (2500, 200_000):
            sampler = Sampler(records, BATCH, number, seed=42)
            fill = _sampler.fill_iid if mode == "iid" else _sampler.fill_cyclic
            large = min(records, 64 * BATCH)
            buffer = np.empty(large, np.uint64)
            spec = f"mode={mode},batch={BATCH},seed=42"
            plan = ctx.folder / "plan"
            count = records // BATCH
            ctx.bench.ask("plan", spec=spec, records=records, count=count, path=plan, **{"from": 0})
            drawn = np.fromfile(plan, np.uint64)
            require(drawn.max() < records, "ids out of range")
            require(mode == "iid" or len(np.unique(drawn)) == len(drawn), "an id came twice")

            def calls(_: int) -> list[float]:
                start = time.perf_counter_ns()
                for _ in range(steps):
                    sampler.next()
                return [(time.perf_counter_ns() - start) / steps]

            def loop(_: int) -> list[float]:
                many = max(1, steps * BATCH // large)
                start = time.perf_counter_ns()
                for step in range(many):
                    fill(records, large, 42, step, buffer)
                return [(time.perf_counter_ns() - start) / many * BATCH / large]

            turns = take_turns(
                ctx.rounds,
                {
                    "batchfs": lambda _: ctx.bench.ask(
                        "ids", spec=spec, records=records, runs=1, steps=steps
                    )["ns"],
                    "loaderx, Python call": calls,
                    "loaderx, loop alone": loop,
                },
            )
            for who, samples in turns.items():
                ctx.figures.add(
                    "ids", f"{mode}, n = {records:,}", who, samples, "ns", lambda ns: ns
                )


def write(ctx: Context) -> None:
    """A raw store from an array in memory, to the disk."""
    rounds = 1 if ctx.quick else min(ctx.rounds, 5)
    for work in ctx.workloads:
        data = work.array()
        total = data.nbytes
        out = ctx.folder / "written"

        def fresh() -> None:
            shutil.rmtree(out, ignore_errors=True)
            os.sync()

        def ours(key: str) -> Callable[[int], list[float]]:
            def run(_: int) -> list[float]:
                fresh()
                return [ctx.bench.ask("write", npy=work.npy, dest=out)[key]]

            return run

        def loaderx(flush: bool) -> Callable[[int], list[float]]:
            def run(_: int) -> list[float]:
                fresh()

                def whole() -> None:
                    with DenseWriter(str(out), work.dtype, work.item_shape, codec="raw") as w:
                        w.append(data)
                    if flush:
                        sync(out)

                return [timed(whole)]

            return run

        turns = take_turns(
            rounds,
            {
                "batchfs, flushed": ours("ns"),
                "batchfs, append alone": ours("append_ns"),
                "loaderx, then flushed": loaderx(True),
                "loaderx as it is": loaderx(False),
            },
        )
        fresh()
        for who, samples in turns.items():
            ctx.figures.add("write", work.name, who, samples, "GB/s", lambda ns: total / ns)


def sync(folder: Path) -> None:
    for path in [*folder.iterdir(), folder, folder.parent]:
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


SPEC = "mode=cyclic,batch=256,seed=7"


@contextmanager
def mounted(ctx: Context, work: Workload) -> Iterator[Path]:
    """The folder of the batches of a release mount."""
    folder = ctx.folder / "mnt"
    folder.mkdir(exist_ok=True)
    program = ctx.bin / "batchfs"
    command = [program, "mount", work.store, folder, "--spec", SPEC, "--foreground"]
    daemon = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert daemon.stdout
        said = daemon.stdout.readline()
        if not said:
            raise SystemExit("benches: the mount did not come up")
        if "passthrough" not in said:
            print(f"note: {said.strip()}", flush=True)
        yield folder / work.name / "batch"
    finally:
        subprocess.run([program, "umount", "--lazy", folder], capture_output=True)
        daemon.terminate()
        daemon.wait(timeout=30)


def mount(ctx: Context) -> None:
    """Steps in order through the mount, every byte summed, against NumPy's take and sum."""
    for work in ctx.workloads:
        image = work.name == "image"
        skip, count = (10, 30) if image else (20, 300)
        if ctx.quick:
            skip, count = 3, 10
        each = skip + count
        plan = ctx.folder / "plan"
        rounds = ctx.rounds + 1
        ways = 8
        ctx.bench.ask(
            "plan",
            spec=SPEC,
            records=work.records,
            count=each * rounds * ways,
            path=plan,
            **{"from": 0},
        )
        with mounted(ctx, work) as folder:
            ours, peer = reader(), reader()
            peer.ask("open", npy=work.npy, ids=plan, first=0)
            data = work.array()
            index = np.fromfile(plan, np.uint64).astype(np.intp).reshape(-1, BATCH)
            for step in (0, 1, each):
                got = np.load(folder / f"{step}.npy", mmap_mode="r")
                require(np.array_equal(got, data[index[step]]), "a batch of the mount")
                bare = np.fromfile(folder / str(step), work.dtype)
                require(np.array_equal(bare, data[index[step]].reshape(-1)), "a bare batch")
            del got
            sums: dict[int, int] = {}

            def check(start: int, found: list[int]) -> None:
                for step, total in enumerate(found, start):
                    require(sums.setdefault(step, total) == total, f"the sum of step {step}")

            # Each way has steps of its own: none finds what another one has left ready. The peer
            # sums all of them, untimed, for comparison.
            def start_of(way: int, turn: int) -> int:
                return (way * rounds + turn) * each

            def window(ns: list[float]) -> list[float]:
                time.sleep(0.05)
                return [statistics.fmean(ns[skip:])]

            def through(way: int, face: str) -> Callable[[int], list[float]]:
                def run(turn: int) -> list[float]:
                    start = start_of(way, turn)
                    got = ours.ask("mount", folder=folder, face=face, start=start, count=each)
                    check(start, got["sums"])
                    check(start, peer.ask("take", start=start, count=each)["sums"])
                    return window(got["ns"])

                return run

            def compiled(way: int, how: str) -> Callable[[int], list[float]]:
                def run(turn: int) -> list[float]:
                    start = start_of(way, turn)
                    got = ctx.bench.ask(
                        "sum",
                        dir=folder,
                        suffix="",
                        skip=0,
                        count=each,
                        how=how,
                        **{"from": start},
                    )
                    check(start, got["sums"])
                    check(start, peer.ask("take", start=start, count=each)["sums"])
                    return window(got["ns"])

                return run

            def take(turn: int) -> list[float]:
                got = peer.ask("take", start=start_of(0, turn), count=each)
                return window(got["ns"])

            turns = take_turns(
                ctx.rounds,
                {
                    "mount, np.load of .npy": through(1, "npy"),
                    "numpy, take and sum": take,
                    "mount, np.memmap": through(2, "memmap"),
                    "mount, mmap": through(3, "mmap"),
                    "mount, read into kept": through(4, "read"),
                    "mount, mmap, compiled": compiled(5, "mmap"),
                    "mount, read, compiled": compiled(6, "read"),
                },
            )
            ours.close()
            peer.close()
        for who, samples in turns.items():
            ctx.figures.add(
                "mount", work.name, who, samples, "GB/s", lambda ns: work.batch_bytes / ns
            )


def latency(ctx: Context) -> None:
    """Single calls, from a compiled client, on a mount and on a plain file."""
    work = ctx.workloads[-1]
    count = 100 if ctx.quick else 1000
    fresh = 50 if ctx.quick else 300
    plain = ctx.folder / "plain"
    plain.mkdir(exist_ok=True)
    for step in range(fresh):
        (plain / f"{step}").write_bytes(bytes(work.batch_bytes))
    with mounted(ctx, work) as folder:
        ready = folder / "3"
        ready.read_bytes()

        def call(what: str, path: Path) -> Callable[[int], list[float]]:
            return lambda _: ctx.bench.ask("latency", what=what, path=path, count=count)["ns"]

        def row(where: Path, moving: bool, pause: int) -> Callable[[int], list[float]]:
            def run(turn: int) -> list[float]:
                start = 1000 + turn * 2 * fresh if moving else 0
                return ctx.bench.ask(
                    "fresh", dir=where, suffix="", count=fresh, pause_us=pause, **{"from": start}
                )["ns"]

            return run

        rows: list[tuple[str, dict[str, Callable[[int], list[float]]]]] = [
            (
                "open and close, ready",
                {"mount": call("open_close", ready), "plain file": call("open_close", plain / "0")},
            ),
            (
                "fresh name: open, read a byte, close",
                {"mount": row(folder, True, 1000), "plain file": row(plain, False, 1000)},
            ),
            ("stat", {"mount": call("stat", ready), "plain file": call("stat", plain / "0")}),
        ]
        for name, contestants in rows:
            for who, samples in take_turns(ctx.rounds, contestants).items():
                ctx.figures.add("latency", name, who, samples, "us", lambda ns: ns / 1e3)
    shutil.rmtree(plain)


GROUPS = {
    "gather": gather,
    "one": one,
    "ids": ids,
    "write": write,
    "mount": mount,
    "latency": latency,
}
