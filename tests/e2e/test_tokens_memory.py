"""How much memory a mount of tokens takes."""

import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

GROUPS, TOKENS, LENGTH = 64, 1 << 20, 1024
MIB = 1 << 20


def resident(pid: int) -> int:
    """Bytes that are the process's own: decoded row groups, batches, and all else."""
    text = Path(f"/proc/{pid}/status").read_text()
    return sum(int(n) << 10 for n in re.findall(r"Rss(?:Anon|Shmem):\s+(\d+) kB", text))


def test_a_small_budget_is_kept_over_an_epoch(box):
    """The bound is that of docs/tokens.md; all of the data would be 256 MiB."""
    path = box.path / "data/x.parquet"
    path.parent.mkdir()
    schema = pa.schema([("tokens", pa.list_(pa.int32()))])
    offsets = np.arange(0, TOKENS + 1, LENGTH, dtype=np.int32)
    random = np.random.default_rng(1)
    options = {"compression": "zstd", "use_dictionary": False}
    with pq.ParquetWriter(path, schema, **options) as writer:
        for _ in range(GROUPS):
            # Of 17 bits, so that each takes 4 bytes.
            values = pa.array(random.integers(0, 100_000, TOKENS, np.int32))
            lists = pa.ListArray.from_arrays(pa.array(offsets), values)
            writer.write_table(pa.table([lists], schema=schema))
    budget, memory, threads = 40_000_000, 16 * MIB, 2
    chunk = max(
        meta.row_group(group).column(0).total_uncompressed_size
        for meta in [pq.ParquetFile(path).metadata]
        for group in range(GROUPS)
    )
    most = budget + memory + threads * 2 * chunk + 64 * MIB
    assert most < 4 * GROUPS * TOKENS * 2 // 3, "or nothing would be tested"
    args = ("--budget", str(budget), "--threads", str(threads))
    spec = "lanes=64,window=4,seq_len=2048"
    with box.mount(path.parent, *args, spec=spec, memory="16MiB") as m:
        steps = m.config()["steps_per_cycle"]
        assert steps == GROUPS * TOKENS // (64 * 2048)
        seen = []
        for step in range(steps + steps // 4):
            assert os.stat(m / f"tokens/batch/{step}").st_size == len(
                m.read(f"tokens/batch/{step}")
            )
            seen.append(resident(m.pid))
        figures = m.metrics()
        # Those that were still there need not be decoded again.
        there = budget // (4 * TOKENS)
        assert figures["row_groups_decoded_total"] >= GROUPS + GROUPS // 4 - there
        assert max(seen) < most, f"{max(seen) >> 20} MiB"
        # And it is used.
        assert max(seen) > budget // 2, f"{max(seen) >> 20} MiB"
