"""Processes that answer one JSON line per request, and the figures that come back."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from . import quiet


class Process:
    """A child that reads requests and writes answers."""

    def __init__(self, *command: str | Path) -> None:
        self.child = subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        quiet.ours.add(self.child.pid)

    def ask(self, op: str, **fields: Any) -> dict[str, Any]:
        assert self.child.stdin and self.child.stdout
        request = {"op": op} | {k: str(v) if isinstance(v, Path) else v for k, v in fields.items()}
        self.child.stdin.write(json.dumps(request) + "\n")
        self.child.stdin.flush()
        line = self.child.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.child.args} ended on {request}")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(f"{op}: {answer['error']}")
        return answer

    def close(self) -> None:
        assert self.child.stdin
        self.child.stdin.close()
        self.child.wait(timeout=30)
        quiet.ours.discard(self.child.pid)


def reader() -> Process:
    """A process of its own that reads batches with NumPy."""
    return Process(sys.executable, "-m", "harness.reader")
