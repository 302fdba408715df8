"""The figures as markdown: all of them, and beside the goals."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass

from .figures import Figures, number


@dataclass
class Goal:
    """A ratio against a peer, or without one a time in the figure's own unit."""

    what: str
    group: str
    workload: str
    ours: str
    peer: str | None
    least: float
    aim: float | None


def _gather(workload: str, least: float, aim: float, aim_loaderx: float) -> list[Goal]:
    what = f"gather, raw, {workload}"
    ours = "batchfs, all threads"
    return [
        Goal(what, "gather", workload, ours, "numpy", least, aim),
        Goal(what, "gather", workload, ours, "loaderx", 0, aim_loaderx),
    ]


def _ids(mode: str, least: float, aim: float) -> list[Goal]:
    return [
        Goal(f"ids, {w}", "ids", w, "batchfs", peer, least, aim)
        for w in (f"{mode}, n = 2,500", f"{mode}, n = 200,000")
        for peer in ("loaderx, Python call", "loaderx, loop alone")
    ]


def _mount(workload: str) -> list[Goal]:
    ways = ["mount, np.load of .npy", "mount, np.memmap", "mount, mmap", "mount, mmap, compiled"]
    peer = "numpy, take and sum"
    return [Goal(f"{workload}: {w}", "mount", workload, w, peer, 1.2, None) for w in ways]


def _loader(workload: str, least: float, torch: float | None) -> list[Goal]:
    what = f"loader, {workload}"
    goals = [
        Goal(f"{what}, {w}", "loader", workload, f"batchfs, {w}", f"loaderx, {w}", least, None)
        for w in ("workers=0", "workers=1", "workers=4")
    ]
    inside = "batchfs, workers=1"
    goals.append(
        Goal(f"{what}, mount", "loader", workload, "batchfs.open", "batchfs, workers=1", 1, None)
    )
    if torch is not None:
        peer = "torch DataLoader, 4 workers"
        goals.append(Goal(f"{what}, beside torch", "loader", workload, inside, peer, torch, None))
    return goals


def _tokens(codec: str) -> list[Goal]:
    peer, what = "datasets, numpy", f"tokens, {codec}"
    near, far = "batchfs", "batchfs, step 10,000,000"
    start = "tokens, first batch"
    return [
        Goal(f"{what}: first pass", "tokens", codec, "batchfs", peer, 4, 6),
        Goal(f"{what}: first pass, mount", "tokens", codec, "batchfs, mount", peer, 4, 6),
        Goal(f"{what}: processor", "tokens, processor", codec, "batchfs", peer, 2, 1 / 0.35),
        Goal(f"{what}: later epochs", "tokens", codec, "batchfs, later epochs", peer, 20, None),
        Goal(f"{what}: beside Arrow tables", "tokens", codec, "batchfs", "datasets, arrow", 0, 1),
        Goal(f"{what}: a seek beside step 0", start, codec, far, near, 1 / 1.5, 1),
        Goal(
            f"{what}: a seek beside step 0, mount",
            start,
            codec,
            "batchfs, mount, step 10,000,000",
            "batchfs, mount",
            1 / 1.5,
            1,
        ),
        Goal(f"{what}: resumed", "tokens, resumed", codec, "batchfs", peer, 1, None),
    ]


ALL = "batchfs, all threads"

GOALS = [
    *_gather("image", 1.2, 1.6, 3),
    *_gather("token", 1.2, 1.7, 11),
    *(
        Goal(f"write, {w}", "write", w, "batchfs, flushed", "loaderx, then flushed", 2, None)
        for w in ("image, raw", "token, raw", "ragged, raw", "image, zstd", "token, zstd")
    ),
    Goal("gather, raw, ragged", "packed", "ragged, raw", ALL, "numpy", 3, 6),
    Goal("gather, raw, ragged", "packed", "ragged, raw", ALL, "loaderx", 0, 45),
    *(
        Goal(f"gather, {w}", "packed", w, ALL, "loaderx", least, None)
        for codec in ("zstd", "zstd_dict")
        for w, least in ((f"image, {codec}", 2), (f"token, {codec}", 4), (f"ragged, {codec}", 4))
    ),
    *_ids("iid", 1, 2),
    *_ids("cyclic", 3, 6),
    *(
        Goal(f"one record, {w}", "one", w, "batchfs", peer, least, aim)
        for w in ("image", "token")
        for peer, least, aim in (("loaderx", 20, None), ("numpy", 0, 1))
    ),
    *_mount("image"),
    *_mount("token"),
    *_loader("image", 2, 8),
    *_loader("token", 6, None),
    *_loader("ragged", 6, 40),
    *(
        Goal(
            f"one record from Python, {w}", "python, one record", w, "batchfs", "loaderx", 20, None
        )
        for w in ("image", "token", "ragged")
    ),
    *(
        Goal(f"loader memory, {w}", "loader memory", w, "batchfs", "loaderx", 1, None)
        for w in ("image", "token", "ragged")
    ),
    *(goal for codec in ("snappy", "zstd") for goal in _tokens(codec)),
    Goal("open and close, ready", "latency", "open and close, ready", "mount", None, 25, 15),
    Goal(
        "fresh name",
        "latency",
        "fresh name: open, read a byte, close",
        "mount",
        None,
        60,
        26,
    ),
    *(
        Goal(
            f"batchfs.open in cached mode, {w}",
            "service",
            w,
            "cached, service",
            "passthrough, files",
            0.9,
            None,
        )
        for w in ("image", "token")
    ),
    Goal("request to fd", "service", "export of a ready batch", "cached", None, 60, None),
    Goal("stat", "latency", "stat", "mount", None, 3, 1.5),
]


def goals(figures: Figures) -> str:
    lines = ["| what | measured | at least | aim | met |", "|---|---|---|---|---|"]
    for goal in GOALS:
        figure = figures.find(goal.group, goal.workload, goal.ours)
        if figure is None:
            continue
        if goal.peer is None:
            measured, met = figure.shown(), figure.value <= goal.least
            aimed = goal.aim is not None and figure.value <= goal.aim
            unit = f" {figure.unit}"
        else:
            ratio = figures.ratio(goal.group, goal.workload, goal.ours, goal.peer)
            if ratio is None:
                continue
            measured = f"{ratio:.2f}x {goal.peer}"
            met, aimed = ratio >= goal.least, goal.aim is not None and ratio >= goal.aim
            unit = "x"
        least = f"{goal.least:g}{unit}" if goal.least else ""
        aim = f"{goal.aim:g}{unit}" if goal.aim else ""
        verdict = "aim" if aimed else "at least" if met and goal.least else "no"
        lines.append(f"| {goal.what} | {measured} | {least} | {aim} | {verdict} |")
    return "\n".join(lines)


def table(figures: Figures) -> str:
    lines = ["| row | workload | who | median | 10 % .. 90 % |", "|---|---|---|---|---|"]
    for f in figures.all:
        spread = f"{number(f.low)} .. {number(f.high)}"
        lines.append(f"| {f.group} | {f.workload} | {f.who} | {f.shown()} | {spread} |")
    return "\n".join(lines)


def machine() -> dict[str, str | int]:
    """The machine in general words."""
    model, memory = "", 0
    with open("/proc/cpuinfo") as f:
        names = [line.split(":", 1)[1].strip() for line in f if line.startswith("model name")]
        model = names[0] if names else platform.machine()
    with open("/proc/meminfo") as f:
        memory = int(f.readline().split()[1]) // (1 << 20)
    return {
        "cores": os.cpu_count() or 1,
        "cpu": model,
        "memory_gib": memory,
        "kernel": ".".join(platform.release().split(".")[:2]),
        "python": platform.python_version(),
    }
