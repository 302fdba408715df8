"""The datasets: seeded content, as .npy, as our stores, and as loaderx's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from loaderx.zrecord import DenseWriter, RaggedBatch, RaggedWriter

from .process import Process

BATCH = 256
ID_BATCHES = 500


CODECS = ("raw", "zstd", "zstd_dict")


@dataclass
class Workload:
    name: str
    dtype: type
    item_shape: tuple[int, ...]
    records: int
    folder: Path
    ragged: bool = False
    codecs: tuple[str, ...] = CODECS

    @property
    def npy(self) -> Path:
        return self.folder / f"{self.name}.npy"

    @property
    def offsets(self) -> Path:
        return self.folder / f"{self.name}.cu.npy"

    @property
    def dictionary(self) -> Path:
        return self.folder / f"{self.name}.dict"

    @property
    def store(self) -> Path:
        return self.store_of("raw")

    @property
    def zrecord(self) -> Path:
        return self.zrecord_of("raw")

    def store_of(self, codec: str) -> Path:
        return self.folder / "ours" / codec / self.name

    def zrecord_of(self, codec: str) -> Path:
        return self.folder / "loaderx" / codec / self.name

    def how(self, codec: str) -> dict[str, str]:
        """How our compiled half writes it."""
        return (
            {"codec": codec}
            | ({"dictionary": str(self.dictionary)} if codec == "zstd_dict" else {})
            | ({"offsets": str(self.offsets)} if self.ragged else {})
        )

    @property
    def ids_file(self) -> Path:
        return self.folder / f"{self.name}.ids"

    @property
    def batch_bytes(self) -> int:
        return BATCH * int(np.prod(self.item_shape)) * np.dtype(self.dtype).itemsize

    def array(self) -> np.ndarray:
        return np.asarray(np.load(self.npy, mmap_mode="r"))

    def cu(self) -> np.ndarray:
        return np.load(self.offsets)

    def ids(self) -> np.ndarray:
        return np.fromfile(self.ids_file, np.uint64).reshape(-1, BATCH)


def workloads(folder: Path, quick: bool) -> list[Workload]:
    images, tokens = (300, 4000) if quick else (2500, 200_000)
    return [
        Workload("image", np.uint8, (3, 224, 224), images, folder),
        Workload("token", np.int32, (512,), tokens, folder),
        Workload("ragged", np.int32, (), tokens, folder, ragged=True),
        Workload("small", np.int32, (16,), 20_000, folder, codecs=("raw",)),
    ]


def content(work: Workload, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray | None]:
    """Content that zstd makes about as much smaller as real images and tokens."""
    if work.dtype == np.uint8:
        # Noise of seven bits, as in a photograph's lowest ones.
        return rng.integers(60, 188, (work.records, *work.item_shape), np.uint8), None
    if not work.ragged:
        shape = (work.records, *work.item_shape)
        return text(rng, int(np.prod(shape))).reshape(shape), None
    # Lengths of paragraphs: 16 to 512, half of them below 129.
    lengths = np.exp(rng.normal(np.log(129), 0.8, work.records)).clip(16, 512)
    cu = np.concatenate([[0], np.cumsum(lengths.astype(np.uint64))]).astype(np.uint64)
    return text(rng, int(cu[-1])), cu


def text(rng: np.random.Generator, count: int) -> np.ndarray:
    """Token ids of real text: the docstrings and comments of Python's standard library, the words
    numbered by how often they come, the files in another order each time."""
    known: dict[str, int] = {}
    files = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).rglob("*.py")):
        if "site-packages" in path.parts:
            continue
        source = path.read_text("utf-8", "replace")
        said = re.findall(r'"""([\s\S]*?)"""|#(.*)', source)
        words = re.findall(r" ?\w+| ?[^\w\s]+", " ".join(" ".join(a or b for a, b in said).split()))
        files.append(np.array([known.setdefault(w, len(known)) for w in words], np.int32))
    often = np.bincount(np.concatenate(files), minlength=len(known))
    rank = np.empty(len(known), np.int32)
    rank[np.argsort(-often, kind="stable")] = np.arange(len(known))
    files = [rank[f] for f in files if len(f)]
    out, at = np.empty(count, np.int32), 0
    while at < count:
        for i in rng.permutation(len(files)):
            part = files[i][: count - at]
            out[at : at + len(part)] = part
            at += len(part)
    return out


def make(work: Workload, bench: Process, program: Path) -> None:
    """Makes what is not there yet. Each kind is complete once it has its name."""
    work.folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(20)
    if not work.npy.exists() or (work.ragged and not work.offsets.exists()):
        whole, cu = content(work, rng)
        if cu is not None:
            np.save(work.offsets, cu)
        part = work.npy.with_suffix(".part.npy")
        np.save(part, whole)
        part.rename(work.npy)
    rng = np.random.default_rng(21)
    rng.integers(0, work.records, (ID_BATCHES, BATCH), np.uint64).tofile(work.ids_file)
    for codec in work.codecs:
        if codec == "zstd_dict" and not work.dictionary.exists():
            command = [program, "train-dict", work.store, "-o", work.dictionary]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        if not work.store_of(codec).exists():
            work.store_of(codec).parent.mkdir(parents=True, exist_ok=True)
            bench.ask("write", npy=work.npy, dest=work.store_of(codec), how=work.how(codec))
        if not work.zrecord_of(codec).exists():
            work.zrecord_of(codec).parent.mkdir(parents=True, exist_ok=True)
            part = work.zrecord_of(codec).with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            write_zrecord(work, codec, part)
            part.rename(work.zrecord_of(codec))


def write_zrecord(work: Workload, codec: str, dest: Path) -> None:
    """Writes the whole of it with loaderx."""
    given = {"dict_bytes": work.dictionary.read_bytes()} if codec == "zstd_dict" else {}
    if work.ragged:
        cu = work.cu()
        shapes = np.diff(cu).astype(np.uint32).reshape(-1, 1)
        whole = RaggedBatch(work.array(), cu.astype(np.int32), shapes)
        with RaggedWriter(str(dest), work.dtype, ndim=1, codec=codec, **given) as writer:
            writer.append(whole)
    else:
        with DenseWriter(str(dest), work.dtype, work.item_shape, codec=codec, **given) as writer:
            writer.append(work.array())
