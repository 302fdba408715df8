"""Taking turns: what all rows have in common."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .data import Workload
from .figures import Figures
from .process import Process
from .quiet import Watch

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
    watch: Watch
    work: Path | None = None
    """Where datasets are kept for the next run."""
    data: Path | None = None
    """Somebody's own Parquet files of tokens, instead of those that are made."""
    column: str = "tokens"
    """Their column."""

    def large(self) -> list[Workload]:
        return [work for work in self.workloads if work.name != "small"]

    def dense(self) -> list[Workload]:
        return [work for work in self.large() if not work.ragged]

    def open(self, work: Workload) -> None:
        self.bench.ask("open", name=work.name, store=work.store, npy=work.npy, ids=work.ids_file)

    def take_turns(
        self, contestants: dict[str, Contestant], rounds: int | None = None
    ) -> dict[str, list[Samples]]:
        """Samples (ns) of each contestant, by turn. The first turn warms up and is dropped."""
        turns: dict[str, list[Samples]] = {who: [] for who in contestants}
        for turn in range((rounds or self.rounds) + 1):
            for who, run in contestants.items():
                if turn == 0:
                    run(turn)
                else:
                    turns[who].append(self.watch.run(lambda run=run, turn=turn: run(turn)))
        return turns


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    work()
    return time.perf_counter_ns() - start


def require(same: bool, what: str) -> None:
    if not same:
        raise SystemExit(f"benches: {what}: the results differ, so nothing was measured")
