"""Whether the machine was ours while something was measured."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

TICK = 1 / os.sysconf("SC_CLK_TCK")
# Of one core: what others may use while something is measured.
MOST = 0.1

# Every process that belongs to the run.
ours: set[int] = {os.getpid()}


class Watch:
    """Measures turns again in which others used the processor, as long as there is time."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds
        self.noisy = 0
        """Turns that were kept although others were busy."""

    def run(self, work: Callable[[], list[float]]) -> list[float]:
        while True:
            start, others = time.monotonic(), foreign()
            result = work()
            taken = time.monotonic() - start
            # Times are counted in ticks: one of them says nothing.
            if foreign() - others <= MOST * taken + TICK:
                return result
            if self.left <= 0:
                self.noisy += 1
                return result
            self.wait()
            self.left -= time.monotonic() - start

    def wait(self) -> None:
        """Until others let go of the processor."""
        end = time.monotonic() + self.left
        while time.monotonic() < end:
            start, others = time.monotonic(), foreign()
            time.sleep(0.3)
            if foreign() - others <= MOST * (time.monotonic() - start) + TICK:
                return


def foreign() -> float:
    """Seconds of processor time that others have used since the system started."""
    fields = [int(f) for f in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    user, nice, system, _, _, irq, softirq, steal = fields[:8]
    busy = user + nice + system + irq + softirq + steal
    return (busy - sum(used(pid) for pid in ours)) * TICK


def used(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return 0
    fields = stat.rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])
