"""One pass over documents of tokens with a peer, packed into full rows; answers one JSON line.

`python -m harness.token_peers WHO FOLDER COLUMN LANES SEQ_LEN DOCUMENTS`. Every batch is summed, as uint64 words.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Documents = Iterable[np.ndarray]

# Batches that these are measured over.
LIMITS = {"datasets, streaming": 60}


class Pack:
    """Rows of a batch, filled with one document behind the other."""

    def __init__(self, lanes: int, seq_len: int) -> None:
        self.out = np.empty(lanes * seq_len, np.int32)
        self.sum = 0

    def batches(self, documents: Documents) -> Iterator[None]:
        at, size = 0, len(self.out)
        for document in documents:
            done = 0
            while done < len(document):
                count = min(size - at, len(document) - done)
                self.out[at : at + count] = document[done : done + count]
                at, done = at + count, done + count
                if at == size:
                    self.sum += int(self.out.view(np.uint64).sum())
                    at = 0
                    yield


def by_map(folder: Path, column: str, kind: str, skip: int = 0) -> Documents:
    """Converted to Arrow once, then shuffled by index."""
    import datasets

    files = sorted(str(path) for path in (folder / "parquet").glob("*.parquet"))
    cache = str(folder / "hf-cache")
    data = datasets.load_dataset("parquet", data_files=files, split="train", cache_dir=cache)
    data = data.select_columns(column).shuffle(seed=1, keep_in_memory=True)
    for part in data.skip(skip).with_format(kind).iter(batch_size=1000):
        if kind == "arrow":
            yield part[column].combine_chunks().flatten().to_numpy(zero_copy_only=False)
        else:
            yield from part[column]


def stream(folder: Path, column: str, state: dict[str, Any] | None = None) -> tuple[Any, Documents]:
    """Read from Parquet as it goes, shuffled in a buffer."""
    import datasets

    files = sorted(str(path) for path in (folder / "parquet").glob("*.parquet"))
    data = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    data = data.select_columns(column).shuffle(seed=1, buffer_size=1000).with_format("numpy")
    if state:
        data.load_state_dict(state)
    # Rows are formatted some at a time, which takes half as long as one by one.
    return data, (row for part in data.iter(batch_size=256) for row in part[column])


def mosaic(folder: Path, skip: int = 0) -> Documents:
    from streaming import StreamingDataset
    from streaming.base.util import clean_stale_shared_memory

    clean_stale_shared_memory()
    # Its threads look every 7 ms how far they are ahead, which by default is 8 samples. That they are
    # ahead by a whole epoch costs a while at first, and then nothing waits.
    data = StreamingDataset(
        local=str(folder / "mds"),
        shuffle=True,
        shuffle_seed=1,
        batch_size=1,
        num_canonical_nodes=1,
        predownload=1 << 20,
    )
    if skip:
        data.load_state_dict(data.state_dict(skip, from_beginning=True))
    for row in data:
        yield row["tokens"]


def to_mds(folder: Path, column_name: str) -> None:
    import pyarrow.parquet as pq
    from streaming import MDSWriter

    with MDSWriter(out=str(folder / "mds"), columns={"tokens": "ndarray:int32"}) as out:
        for path in sorted((folder / "parquet").glob("*.parquet")):
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                column = file.read_row_group(group, [column_name]).column(0).combine_chunks()
                offsets, values = (
                    column.offsets.to_numpy(),
                    column.values.to_numpy().astype(np.int32),
                )
                for begin, end in zip(offsets[:-1], offsets[1:], strict=True):
                    if begin < end:
                        out.write({"tokens": values[begin:end]})


def cpu() -> int:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int((used.ru_utime + used.ru_stime) * 1e9)


def main() -> None:
    who, folder, column = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    lanes, seq_len, count_of_documents = map(int, sys.argv[4:7])
    if who == "to mds":
        to_mds(folder, column)
        return
    # Importing takes seconds, and is no part of it.
    if who == "mosaic":
        import streaming  # noqa: F401
    else:
        import datasets

        datasets.disable_progress_bars()
    size, pack = lanes * seq_len, Pack(lanes, seq_len)
    data: Any = None

    def documents(resumed: bool) -> Documents:
        nonlocal data
        half = count_of_documents // 2 if resumed else 0
        if who == "mosaic":
            return mosaic(folder, half)
        if who == "datasets, streaming":
            state = data.state_dict() if resumed else None
            data, rows = stream(folder, column, state)
            return rows
        return by_map(folder, column, who.removeprefix("datasets, "), half)

    start = time.perf_counter_ns()
    batches = pack.batches(documents(False))
    next(batches)
    first, used, begin = time.perf_counter_ns() - start, cpu(), time.perf_counter_ns()
    count = 0
    # Some take minutes for all of it.
    for _ in itertools.islice(batches, LIMITS.get(who)):
        count += 1
    answer = {
        "first": first,
        "ns": time.perf_counter_ns() - begin,
        "cpu": cpu() - used,
        "tokens": count * size,
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "sum": pack.sum % 2**64,
    }
    if who == "datasets, streaming":
        # In the middle of an epoch.
        data, rows = stream(folder, column)
        for _, _ in zip(range(count_of_documents // 3), rows, strict=False):
            pass
    start = time.perf_counter_ns()
    next(pack.batches(documents(True)), None)
    answer["resumed"] = time.perf_counter_ns() - start
    print(json.dumps(answer), flush=True)
    # Threads of some peers that still read end the process with a signal, now and then.
    os._exit(0)


if __name__ == "__main__":
    main()
