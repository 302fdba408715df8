#!/usr/bin/env python3
"""Certifies batchfs on a machine with a GPU of AMD's.

    pip install ./py torch      # a PyTorch for ROCm
    python tests/rocm/certify.py [--device 0] [--out report.md] [--runtime-first]

Tries delivery to the GPU and appending from it, for dense and ragged records, with PyTorch, and
prints a report: what was tried, what came out, how fast. Exits with 1 if anything is wrong. Needs
the device's render node and /dev/kfd; `batchfs doctor` says what is missing.

By default PyTorch is imported first and its runtime is used. With --runtime-first batchfs loads the
runtime, and PyTorch has to live with it.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from batchfs import Allocator, Loader, dtypes
from batchfs.sampler import Sampler
from batchfs.store import DenseStore, DenseWriter, RaggedBatch, RaggedStore, RaggedWriter

RECORDS = 2000
DTYPES = ("uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64", "bool")


class Report:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.failed = 0

    def say(self, text: str = "") -> None:
        print(text, flush=True)
        self.lines.append(text)

    def check(self, name: str, work: Callable[[], str | None]) -> None:
        started = time.perf_counter()
        try:
            said = work()
            word = "ok"
        except Exception as e:
            said = f"{type(e).__name__}: {e}"
            word = "FAILED"
            self.failed += 1
            traceback.print_exc()
        took = time.perf_counter() - started
        self.say(f"| {name} | {word} | {said or ''} | {took:.2f} s |")


def rate(work: Callable[[], int], times: int = 20) -> float:
    """Bytes per second, the median of some runs; the first ones are not counted."""
    rates = []
    for i in range(times + 3):
        started = time.perf_counter()
        size = work()
        took = time.perf_counter() - started
        if i >= 3:
            rates.append(size / took)
    return statistics.median(rates)


def gigabytes(n: float) -> str:
    return f"{n / 1e9:.2f} GB/s"


class Certify:
    def __init__(self, torch: Any, root: Path, device: int) -> None:
        self.torch, self.root, self.id = torch, root, device
        self.device = torch.device("cuda", device)
        random = np.random.default_rng(7)
        self.images = random.integers(0, 256, (RECORDS, 3, 224, 224), np.uint8)
        self.tokens = [
            random.integers(0, 50_000, n).astype(np.int32) for n in random.integers(0, 512, RECORDS)
        ]
        with DenseWriter(root / "images", np.uint8, (3, 224, 224), codec="raw") as w:
            w.append(self.images)
        with RaggedWriter(root / "tokens", np.int32, 1, codec="raw") as w:
            w.append(RaggedBatch.from_records(self.tokens))
        self.memory = Allocator("amdgpu", device)
        self.dense = DenseStore(root / "images").bind(self.memory)
        self.ragged = RaggedStore(root / "tokens").bind(self.memory)

    def same(self, tensor: Any, want: np.ndarray) -> None:
        torch = self.torch
        assert tensor.device == self.device, f"it is on {tensor.device}"
        # Compared by the GPU, and by the processor after a copy.
        there = torch.from_numpy(np.ascontiguousarray(want)).to(self.device)
        assert bool((tensor == there).all()), "the GPU reads other values"
        assert np.array_equal(tensor.cpu().numpy(), want), "a copy has other values"

    def ids(self, step: int, batch: int = 256) -> np.ndarray:
        return Sampler(RECORDS, batch, seed=1).at(step).astype(np.int64)

    def dense_delivery(self) -> str:
        for step in range(20):
            ids = self.ids(step)
            batch = self.dense[ids]
            assert batch.device == (10, self.id)
            self.same(batch.torch(), self.images[ids])
        return f"20 batches of {batch.nbytes >> 20} MiB, from {self.memory.node}"

    def ragged_delivery(self) -> str:
        for step in range(20):
            ids = self.ids(step)
            batch = self.ragged[ids]
            self.same(batch.values.torch(), np.concatenate([self.tokens[i] for i in ids]))
            lengths = [len(self.tokens[i]) for i in ids]
            self.same(batch.cu_seqlens.torch(), np.cumsum([0, *lengths]).astype(np.int32))
            shapes = batch.shapes.torch().cpu().numpy().reshape(-1)
            assert np.array_equal(shapes, np.array(lengths, np.uint64))
        return "20 batches: values, cu_seqlens, shapes"

    def through_the_loader(self) -> str:
        streams = {"images": [self.dense], "tokens": [self.ragged]}
        with Loader(streams, Sampler(RECORDS, 64, seed=3), workers=2, prefetch=4) as loader:
            for step in range(60):
                shard = next(loader)[0]
                ids = Sampler(RECORDS, 64, seed=3).at(step).astype(np.int64)
                self.same(shard["images"].torch(), self.images[ids])
        return "60 steps, 2 workers"

    def reuse(self) -> str:
        """Tensors are dropped while work with them is queued."""
        torch = self.torch
        stream = torch.cuda.Stream(self.device)
        wanted, sums = [], []
        with torch.cuda.stream(stream):
            for step in range(100):
                ids = self.ids(step, 64)
                tensor = self.dense[ids].torch()
                for _ in range(5):
                    torch.cuda._sleep(2_000_000)
                sums.append(tensor.to(torch.int64).sum())
                wanted.append(int(self.images[ids].astype(np.int64).sum()))
                del tensor
        stream.synchronize()
        got = [int(s) for s in sums]
        wrong = sum(a != b for a, b in zip(got, wanted, strict=True))
        assert wrong == 0, f"{wrong} of {len(got)} sums are of bytes that came later"
        return "100 tensors dropped under work on another stream"

    def given_back(self) -> str:
        memory = Allocator("amdgpu", self.id, pool_size=0)
        view = DenseStore(self.root / "images").bind(memory)
        view[0]
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for step in range(200):
            view[self.ids(step, 16)].torch()
        gc.collect()
        after = len(os.listdir("/proc/self/fd"))
        assert after <= before, f"{after - before} descriptors are left"
        memory.close()
        return "200 batches, no descriptor left"

    def dense_append(self) -> str:
        torch = self.torch
        for name in DTYPES:
            dtype = getattr(torch, name)
            source = torch.randint(0, 100, (64, 33), device=self.device).to(dtype)
            path = self.root / f"append-{name}"
            with DenseWriter(path, getattr(dtypes, name), (33,), codec="raw") as w:
                w.append(source)
                # A part of an allocation, written on another stream just before.
                stream = torch.cuda.Stream(self.device)
                with torch.cuda.stream(stream):
                    torch.cuda._sleep(50_000_000)
                    part = (source[32:] == source[32:]).to(dtype)
                    w.append(part)
            with DenseStore(path) as store:
                got = store.bind(Allocator("cpu"))[:].torch()
                assert torch.equal(got[:64], source.cpu()), name
                assert torch.equal(got[64:], part.cpu()), f"{name}: part"
        return ", ".join(DTYPES)

    def ragged_append(self) -> str:
        torch = self.torch
        lengths = [5, 0, 300, 17]
        values = torch.rand(sum(lengths), device=self.device)
        cu = torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32, device=self.device)
        shapes = torch.tensor(lengths, device=self.device).reshape(-1, 1).view(torch.uint64)
        with RaggedWriter(self.root / "append-ragged", np.float32, 1, codec="zstd") as w:
            w.append(RaggedBatch(values, cu, shapes))
        with RaggedStore(self.root / "append-ragged") as store:
            batch = store.bind(Allocator("cpu"))[:]
            assert torch.equal(batch.values.torch(), values.cpu())
        return f"{len(lengths)} records"

    def rates(self) -> str:
        torch = self.torch
        ids = [self.ids(step) for step in range(7)]
        state = {"step": 0}

        def next_ids() -> np.ndarray:
            state["step"] += 1
            return ids[state["step"] % len(ids)]

        def delivered() -> int:
            tensor = self.dense[next_ids()].torch()
            (tensor[:, 0, 0, 0] + 1).sum().item()
            return tensor.nbytes

        def read_whole() -> int:
            tensor = self.dense[next_ids()].torch()
            tensor.view(torch.int32).sum().item()
            return tensor.nbytes

        cpu = DenseStore(self.root / "images").bind(Allocator("cpu"))

        def copied() -> int:
            tensor = cpu[next_ids()].torch().to(self.device)
            tensor.view(torch.int32).sum().item()
            return tensor.nbytes

        return (
            f"delivered {gigabytes(rate(delivered))}; delivered and read by the GPU "
            f"{gigabytes(rate(read_whole))}; gathered on the processor, copied and read "
            f"{gigabytes(rate(copied))}"
        )

    def append_rate(self) -> str:
        torch = self.torch
        source = torch.zeros((256, 3, 224, 224), dtype=torch.uint8, device=self.device)
        state = {"n": 0}

        def one(value: Any) -> int:
            state["n"] += 1
            path = self.root / f"rate-{state['n']}"
            with DenseWriter(path, np.uint8, (3, 224, 224), codec="raw") as w:
                w.append(value)
            return source.nbytes

        direct = rate(lambda: one(source), 5)
        by_cpu = rate(lambda: one(source.cpu()), 5)
        return f"as it is {gigabytes(direct)}; by .cpu() {gigabytes(by_cpu)}"

    def pinned(self) -> str:
        from batchfs import _pinned, mount
        from batchfs.torch import Batches, on_device

        with mount(self.root / "images", batch=256, seed=1) as ds:
            source = Batches(ds, start=0, stop=20)
            for step, batch in enumerate(on_device(source, self.device)):
                self.same(batch["images"], self.images[self.ids(step)])
            copies = _pinned.copier(self.device)
            for batch in Batches(ds, start=0, stop=3):
                copies.copy(batch)
            copies.close()
            refused = copies._pins.refused
            started = time.perf_counter()
            size = sum(b["images"].nbytes for b in on_device(Batches(ds, stop=30), self.device))
            self.torch.cuda.synchronize()
            pinned = size / (time.perf_counter() - started)
            started = time.perf_counter()
            size = sum(b["images"].to(self.device).nbytes for b in Batches(ds, stop=30))
            plain = size / (time.perf_counter() - started)
        how = "pinned" if refused is None else f"not pinned (error {refused})"
        return f"{how}: {gigabytes(pinned)}; by .to(): {gigabytes(plain)}"


def machine(torch: Any, device: int) -> list[str]:
    found = [
        f"* kernel {platform.release()}, Python {platform.python_version()}",
        f"* NumPy {np.__version__}",
        f"* PyTorch {torch.__version__}, HIP {torch.version.hip}",
        f"* {torch.cuda.get_device_name(device)}, of {torch.cuda.device_count()}",
    ]
    doctor = subprocess.run(
        [sys.executable, "-m", "batchfs", "doctor"], capture_output=True, text=True, check=False
    )
    return [*found, "", "```", doctor.stdout.rstrip(), "```"]


def main() -> int:
    parser = argparse.ArgumentParser(description="Certifies batchfs on a GPU of AMD's.")
    parser.add_argument("--device", type=int, default=0, help="HIP's number of the GPU")
    parser.add_argument("--out", type=Path, help="a file for the report")
    parser.add_argument("--runtime-first", action="store_true", help="batchfs loads the runtime")
    args = parser.parse_args()
    if args.runtime_first:
        Allocator("amdgpu", args.device).close()
    try:
        import torch
    except ImportError:
        print("certify.py: needs PyTorch for ROCm; nothing was tried", file=sys.stderr)
        return 2
    if not getattr(torch.version, "hip", None) or not torch.cuda.is_available():
        print("certify.py: this PyTorch sees no GPU of AMD's; nothing was tried", file=sys.stderr)
        return 2

    report = Report()
    report.say("# batchfs on a GPU of AMD's")
    report.say()
    for line in machine(torch, args.device):
        report.say(line)
    report.say()
    with tempfile.TemporaryDirectory(prefix="batchfs-certify-") as root:
        try:
            tests = Certify(torch, Path(root), args.device)
        except RuntimeError as e:
            report.say(f"No memory for the GPU can be had: {e}")
            report.failed += 1
        else:
            report.say("| what | | | |")
            report.say("|---|---|---|---|")
            for name in (
                "dense_delivery",
                "ragged_delivery",
                "through_the_loader",
                "reuse",
                "given_back",
                "dense_append",
                "ragged_append",
                "rates",
                "append_rate",
                "pinned",
            ):
                report.check(name.replace("_", " "), getattr(tests, name))
    report.say()
    report.say("Certified." if report.failed == 0 else f"Not certified: {report.failed} failed.")
    if args.out:
        args.out.write_text("\n".join(report.lines) + "\n")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
