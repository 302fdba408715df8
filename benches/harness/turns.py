"""Taking turns: what all rows have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .data import Workload
from .figures import Figures
from .process import Process

Samples = list[float]
Contestant = Callable[[int], Samples]


@dataclass
class Context:
    bench: Process
    """Our compiled process."""
    bin: Path
    """The folder of the release binaries."""
    folder: Path
    """For what is made on the way."""
    workloads: list[Workload]
    figures: Figures
    rounds: int
    quick: bool

    def open(self, work: Workload) -> None:
        self.bench.ask("open", name=work.name, store=work.store, npy=work.npy, ids=work.ids_file)


def take_turns(rounds: int, contestants: dict[str, Contestant]) -> dict[str, list[Samples]]:
    """Samples (ns) of each contestant, by turn. The first turn warms up and is dropped."""
    turns: dict[str, list[Samples]] = {who: [] for who in contestants}
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
