"""Copies from mapped batches to a GPU that do not wait: their pages are pinned meanwhile."""

from __future__ import annotations

import collections
import mmap
from collections.abc import Iterable, Iterator
from typing import Any

PAGE = mmap.PAGESIZE
# Less than this is copied faster than it is pinned.
LEAST = 256 << 10
# Batches whose copies may be under way.
UNDER_WAY = 2
# cudaHostRegisterReadOnly: pages of a private mapping are not copied to be pinned. HIP has no such
# flag.
_READ_ONLY = 8


class Pins:
    """Ranges of memory that the GPU's runtime has pinned.

    ``runtime`` has ``cudaHostRegister`` and ``cudaHostUnregister``, as ``torch.cuda.cudart()`` has.
    When it refuses once, nothing more is tried.
    """

    def __init__(self, runtime: Any, flags: int) -> None:
        self._runtime = runtime
        self._flags = flags
        self.refused: int | None = None
        """The runtime's error, if it has refused."""

    def pin(self, start: int, end: int) -> bool:
        """Whether the pages from ``start`` to ``end`` are pinned now."""
        if self.refused is not None:
            return False
        code = int(self._runtime.cudaHostRegister(start, end - start, self._flags))
        if code != 0:
            self.refused = code
        return code == 0

    def release(self, start: int) -> None:
        self._runtime.cudaHostUnregister(start)


def ranges(tensors: Iterable[Any]) -> list[tuple[int, int]]:
    """The pages that tensors of the processor lie in, each once."""
    spans = []
    for tensor in tensors:
        start, size = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        if size >= LEAST:
            spans.append((start // PAGE * PAGE, -(-(start + size) // PAGE) * PAGE))
    merged: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if merged and start < merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def flatten(batch: Any) -> list[Any]:
    """The tensors of a batch of dicts."""
    if isinstance(batch, dict):
        return [tensor for value in batch.values() for tensor in flatten(value)]
    return [batch]


def moved(batch: Any, device: Any, waits: bool) -> Any:
    if isinstance(batch, dict):
        return {name: moved(value, device, waits) for name, value in batch.items()}
    return batch.to(device, non_blocking=not waits)


class Copier:
    """Moves batches to a device, several at a time.

    ``event()`` gives an object with ``synchronize()`` that waits for what the device has been told
    so far; ``forget_error()`` makes nobody else find the error of a refused pin.
    """

    def __init__(self, device: Any, pins: Pins, event: Any, forget_error: Any) -> None:
        self._device, self._pins = device, pins
        self._event, self._forget_error = event, forget_error
        self._under_way: collections.deque[tuple[Any, Any, list[int]]] = collections.deque()

    def copy(self, batch: Any) -> Any:
        pinned: list[int] = []
        for start, end in ranges(flatten(batch)) if self._pins.refused is None else []:
            if not self._pins.pin(start, end):
                self._forget_error()
                break
            pinned.append(start)
        try:
            copied = moved(batch, self._device, waits=not pinned)
        except BaseException:
            self._release(pinned)
            raise
        if pinned:
            # The batch itself is held until its copy is done.
            self._under_way.append((self._event(), batch, pinned))
            while len(self._under_way) > UNDER_WAY:
                self._finish()
        return copied

    def _finish(self) -> None:
        event, _batch, pinned = self._under_way.popleft()
        event.synchronize()
        self._release(pinned)

    def _release(self, pinned: list[int]) -> None:
        for start in pinned:
            self._pins.release(start)

    def close(self) -> None:
        while self._under_way:
            self._finish()


def copier(device: Any) -> Copier:
    """For a device of PyTorch's."""
    import torch

    def event() -> Any:
        made = torch.cuda.Event()
        made.record(torch.cuda.current_stream(device))
        return made

    def forget_error() -> None:
        # PyTorch finds it with the next kernel, and raises it once.
        try:
            torch.zeros(1, device=device)
        except RuntimeError:
            pass

    hip = getattr(torch.version, "hip", None)
    pins = Pins(torch.cuda.cudart(), 0 if hip else _READ_ONLY)
    return Copier(device, pins, event, forget_error)


def on_device(batches: Iterable[Any], device: Any) -> Iterator[Any]:
    import torch

    device = torch.device(device)
    if device.type == "cpu":
        yield from batches
        return
    if device.type != "cuda":
        for batch in batches:
            yield moved(batch, device, waits=True)
        return
    with torch.cuda.device(device):
        copies = copier(device)
    try:
        for batch in batches:
            yield copies.copy(batch)
    finally:
        copies.close()
