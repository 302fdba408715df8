"""Which bytes of files of tokens are read: those of the token column, and these not too often."""

import json
import re
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import s3
from token_data import batches, documents

TAIL = 64 << 10


def wide(path: Path, seed: int, groups: int = 6) -> None:
    """Tokens between two columns of which each takes some times as much."""
    random = np.random.default_rng(seed)
    text = lambda: pa.array([random.bytes(2000) for _ in range(20 * groups)])  # noqa: E731
    tokens = pa.array(documents(seed, 20 * groups), pa.list_(pa.int32()))
    table = pa.table({"before": text(), "tokens": tokens, "after": text()})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=20)


def chunks(path: Path) -> list[tuple[int, int]]:
    """Where PyArrow says that the pages of the token column lie."""
    found = []
    meta = pq.ParquetFile(path).metadata
    for group in range(meta.num_row_groups):
        column = meta.row_group(group).column(1)
        assert column.path_in_schema == "tokens.list.element"
        begin = column.dictionary_page_offset or column.data_page_offset
        found.append((begin, begin + column.total_compressed_size))
    return found


def test_of_a_file_with_more_columns_the_tokens_alone_are_read(box, bucket, front):
    folder = bucket[0].parent / "wide"
    keys = [f"wide/{name}.parquet" for name in "ab"]
    for seed, key in enumerate(keys):
        wide(folder.parent / key, seed)
    want = sorted((key, *chunk) for key in keys for chunk in chunks(folder.parent / key))
    size = sum(end - begin for _, begin, end in want)
    whole = {key: (folder.parent / key).stat().st_size for key in keys}
    assert size < sum(whole.values()) / 10
    env = s3.environment(front.port)
    spec = "lanes=2,window=64,seq_len=32"
    # For the index, the end of each file, where the footer is; then nothing of it any more.
    told = json.loads(box.run("index", "s3://bucket/wide", "--json", env=env).stdout)
    assert told["row_groups"] == len(want) == 12
    assert sorted(front.ranges()) == [(key, whole[key] - TAIL, whole[key]) for key in keys]
    front.asked.clear()
    box.run("index", folder)
    rows = []
    for source in ("s3://bucket/wide", folder):
        with box.mount(source, spec=spec, env=env) as m:
            # All is one window, which stays in memory.
            rows.append(batches(m, range(2 * m.config()["steps_per_cycle"])))
            m.settle()
            assert m.metrics()["row_groups_decoded_total"] == len(want)
            assert m.metrics()["source_received_bytes_total"] == size
    assert sorted(front.ranges()) == want
    assert rows[0] == rows[1]


def at_rest(m) -> int:
    """Bytes received from the source, once nothing more is read ahead."""
    seen, since = m.metrics(), time.monotonic()
    names = ("source_received_bytes_total", "row_groups_decoded_total", "prefetches_total")
    while time.monotonic() - since < 1:
        time.sleep(0.02)
        now = m.metrics()
        if any(now[name] != seen[name] for name in names):
            seen, since = now, time.monotonic()
    return seen["source_received_bytes_total"]


@pytest.mark.parametrize(("world", "window"), [(1, 4), (2, 4), (2, 6)])
def test_ranks_together_read_little_more_than_the_data(box, bucket, front, world, window):
    folder, groups, epochs = bucket[0].parent / "shared", 48, 3
    path = folder / "x.parquet"
    if not path.exists():
        # Of even sizes, so that row groups are in proportion to their tokens.
        docs = [[d * 100 + i for i in range(1 + d * 17 % 60)] for d in range(40 * groups)]
        tokens = pa.table({"before": docs, "tokens": pa.array(docs, pa.list_(pa.int32()))})
        folder.mkdir()
        pq.write_table(tokens, path, row_group_size=40, use_dictionary=False)
    once = sum(end - begin for begin, end in chunks(path))
    env = s3.environment(front.port)
    source, received = "s3://bucket/shared", 0
    for rank in range(world):
        spec = f"lanes=16,window={window},seq_len=8,seed=5,rank={rank},world={world}"
        told = json.loads(box.run("index", source, "--spec", spec, "--json", env=env).stdout)
        first = told["first_steps_of_epochs"]
        args = (source, box.folder(), "--spec", spec, "--budget", "1KB")
        said = box.fails("mount", *args, env=env, names=["--budget"])
        # As much as a step needs and half of that: nothing stays until the next epoch.
        budget = int(re.search(r"needs (\d+) bytes", said)[1]) * 3 // 2
        with box.mount(source, "--budget", budget, spec=spec, env=env) as m:
            # What is read ahead of the first epoch is as much as what is read ahead of the last.
            batches(m, range(first[1] - 2, first[1]))
            before = at_rest(m)
            front.asked.clear()
            batches(m, range(first[1], first[1] + epochs * (first[2] - first[1])))
            here = at_rest(m) - before
            assert here == sum(end - begin for _, begin, end in front.ranges())
        received += here
    bound = 1 + (world - 1) * -(-groups // window) / groups + 0.02
    factor = received / (epochs * once)
    # Not less because something was left out, or all of it fitted into the budget.
    assert 0.8 < factor <= bound, f"{factor} of at most {bound}"
