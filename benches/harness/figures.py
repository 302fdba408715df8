"""What was measured: one figure per contestant, and the ratios that count."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass
class Figure:
    """One contestant in one row: the median over all samples, and each turn's median."""

    group: str
    workload: str
    who: str
    unit: str
    value: float
    low: float
    high: float
    turns: list[float] = field(repr=False)

    def shown(self) -> str:
        return f"{number(self.value)} {self.unit}"


def number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


class Figures:
    def __init__(self) -> None:
        self.all: list[Figure] = []

    def add(
        self,
        group: str,
        workload: str,
        who: str,
        turns: list[list[float]],
        unit: str,
        convert: Callable[[float], float],
    ) -> None:
        """`turns` are the samples (ns) of each turn; `convert` makes the unit of one."""
        samples = sorted(convert(s) for turn in turns for s in turn)
        tenth = len(samples) // 10
        self.all.append(
            Figure(
                group,
                workload,
                who,
                unit,
                statistics.median(samples),
                samples[tenth],
                samples[-1 - tenth],
                [convert(statistics.median(turn)) for turn in turns],
            )
        )

    def find(self, group: str, workload: str, who: str) -> Figure | None:
        key = (group, workload, who)
        return next((f for f in self.all if (f.group, f.workload, f.who) == key), None)

    def ratio(self, group: str, workload: str, ours: str, peer: str) -> float | None:
        """How many times as fast as the peer: the median over the turns, which are taken side
        by side, so that a machine that is slow for a while is slow for both."""
        a, b = self.find(group, workload, ours), self.find(group, workload, peer)
        if a is None or b is None:
            return None
        if len(a.turns) == len(b.turns):
            pairs = list(zip(a.turns, b.turns, strict=True))
        else:
            pairs = [(a.value, b.value)]
        faster_is_more = a.unit == "GB/s"
        return statistics.median(x / y if faster_is_more else y / x for x, y in pairs)

    def as_json(self) -> list[dict[str, Any]]:
        return [asdict(f) for f in self.all]
