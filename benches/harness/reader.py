"""A training process in small: gets batches in order, with NumPy, and sums every byte.

Runs by itself and answers JSON lines. All ways end in the same reduction, over uint64 words.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np


def words(array: np.ndarray) -> int:
    return int(array.reshape(-1).view(np.uint64).sum())


def npy_face(path: str) -> int:
    return words(np.asarray(np.load(path + ".npy", mmap_mode="r")))


def memmap_face(path: str) -> int:
    return words(np.asarray(np.memmap(path, dtype=np.uint8, mode="r")))


def mmap_face(path: str) -> int:
    fd = os.open(path, os.O_RDONLY)
    try:
        mapped = mmap.mmap(fd, 0, prot=mmap.PROT_READ)
    finally:
        os.close(fd)
    return int(np.frombuffer(mapped, np.uint64).sum())


class Read:
    """read() into a buffer that is kept."""

    def __init__(self) -> None:
        self.buffer = np.empty(0, np.uint8)

    def __call__(self, path: str) -> int:
        fd = os.open(path, os.O_RDONLY)
        try:
            size = os.fstat(fd).st_size
            if self.buffer.nbytes != size:
                self.buffer = np.empty(size, np.uint8)
            view, done = memoryview(self.buffer), 0
            while done < size:
                done += os.readv(fd, [view[done:]])
        finally:
            os.close(fd)
        return words(self.buffer)


FACES: dict[str, Callable[[str], int]] = {
    "npy": npy_face,
    "memmap": memmap_face,
    "mmap": mmap_face,
    "read": Read(),
}


def timed(work: Callable[[int], int], start: int, count: int) -> dict[str, Any]:
    ns, sums = [], []
    for step in range(start, start + count):
        begin = time.perf_counter_ns()
        total = work(step)
        ns.append(time.perf_counter_ns() - begin)
        sums.append(total)
    return {"ns": ns, "sums": sums}


def mount(folder: str, face: str, start: int, count: int) -> dict[str, Any]:
    read = FACES[face]
    return timed(lambda step: read(f"{folder}/{step}"), start, count)


class Open:
    """`batchfs.open`: batches as tensors, through one of its two doors."""

    def __init__(self, mount: str, stream: str, door: str) -> None:
        import batchfs
        from batchfs import _native

        dataset = batchfs.open(mount, local=False)
        link = f"{mount}/.batchfs/service.sock"
        dataset._service = _native.Service(link) if door == "service" else None
        self.batches = dataset[stream].batch

    def __call__(self, step: int) -> int:
        return words(self.batches[step].numpy())


class Take:
    """NumPy's own way: take the records from a mapped array into a kept buffer."""

    def __init__(self, npy: str, ids: str, first: int) -> None:
        self.data = np.load(npy, mmap_mode="r")
        self.data = np.asarray(self.data)
        self.ids = np.fromfile(ids, np.uint64).astype(np.intp).reshape(-1, 256)
        self.first = first
        self.out = np.ones((256, *self.data.shape[1:]), self.data.dtype)
        words(self.data)

    def __call__(self, step: int) -> int:
        np.take(self.data, self.ids[step - self.first], axis=0, out=self.out, mode="clip")
        return words(self.out)


def main() -> None:
    take: Take | None = None
    doors: dict[tuple[str, str, str], Open] = {}
    for line in sys.stdin:
        request = json.loads(line)
        op = request.pop("op")
        if op == "open":
            take = Take(**request)
            answer: dict[str, Any] = {}
        elif op == "take":
            assert take
            answer = timed(take, request["start"], request["count"])
        elif op == "tensors":
            door = request["mount"], request["stream"], request["door"]
            if door not in doors:
                doors[door] = Open(*door)
            answer = timed(doors[door], request["start"], request["count"])
        else:
            answer = mount(**request)
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
