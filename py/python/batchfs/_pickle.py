"""How views and allocators come back from a pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ._native import Allocator, Store


def allocator(kind: str, device: int, minimum: int | None, pool: int | None) -> Allocator:
    return Allocator(kind, device, minimum_size=minimum, pool_size=pool)


def view(path: Path, dense: bool, verify: str, bound: Allocator) -> Any:
    # The view keeps the store open.
    return Store(path, dense, verify).bind(bound)
