"""The datasets: seeded random content, as .npy, as our store, and as loaderx's."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from loaderx.zrecord import DenseWriter

from .process import Process

BATCH = 256
ID_BATCHES = 500


@dataclass
class Workload:
    name: str
    dtype: type
    item_shape: tuple[int, ...]
    records: int
    folder: Path

    @property
    def npy(self) -> Path:
        return self.folder / f"{self.name}.npy"

    @property
    def store(self) -> Path:
        return self.folder / "ours" / self.name

    @property
    def zrecord(self) -> Path:
        return self.folder / "loaderx" / self.name

    @property
    def ids_file(self) -> Path:
        return self.folder / f"{self.name}.ids"

    @property
    def batch_bytes(self) -> int:
        return BATCH * int(np.prod(self.item_shape)) * np.dtype(self.dtype).itemsize

    def array(self) -> np.ndarray:
        return np.asarray(np.load(self.npy, mmap_mode="r"))

    def ids(self) -> np.ndarray:
        return np.fromfile(self.ids_file, np.uint64).reshape(-1, BATCH)


def workloads(folder: Path, quick: bool) -> list[Workload]:
    images, tokens = (300, 4000) if quick else (2500, 200_000)
    return [
        Workload("image", np.uint8, (3, 224, 224), images, folder),
        Workload("token", np.int32, (512,), tokens, folder),
    ]


def make(work: Workload, bench: Process) -> None:
    """Makes what is not there yet. Each kind is complete once it has its name."""
    work.folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20)
    shape = (work.records, *work.item_shape)
    if not work.npy.exists() or np.load(work.npy, mmap_mode="r").shape != shape:
        for old in (work.store, work.zrecord):
            shutil.rmtree(old, ignore_errors=True)
        most = np.iinfo(work.dtype).max
        whole = rng.integers(0, most, shape, work.dtype, endpoint=True)
        part = work.npy.with_suffix(".part.npy")
        np.save(part, whole)
        part.rename(work.npy)
    rng.integers(0, work.records, (ID_BATCHES, BATCH), np.uint64).tofile(work.ids_file)
    if not work.store.exists():
        work.store.parent.mkdir(parents=True, exist_ok=True)
        bench.ask("write", npy=work.npy, dest=work.store)
    if not work.zrecord.exists():
        work.zrecord.parent.mkdir(parents=True, exist_ok=True)
        part = work.zrecord.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        with DenseWriter(str(part), work.dtype, work.item_shape, codec="raw") as writer:
            writer.append(work.array())
        part.rename(work.zrecord)
