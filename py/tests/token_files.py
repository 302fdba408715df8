"""Parquet files of tokens, and the rows that they should make by the second implementation."""

import importlib.util
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROOT = Path(__file__).parents[2]
_spec = importlib.util.spec_from_file_location(
    "order_reference", ROOT / "sampler/tests/order_reference.py"
)
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


def documents(seed, count, first=0):
    """Documents of log-normal lengths, some of them empty. Every token says where it belongs."""
    random = np.random.default_rng(seed)
    lengths = random.lognormal(np.log(30), 0.9, count).astype(int)
    lengths[random.random(count) < 0.05] = 0
    return [[(first + d) * 10_000 + i for i in range(n)] for d, n in enumerate(lengths)]


def write(path, docs, group=20, column="tokens", kind=None, **options):
    """Writes a file, and gives its row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = pa.array(docs, pa.list_(kind or pa.int32()))
    pq.write_table(pa.table({column: values}), path, row_group_size=group, **options)
    return [docs[i : i + group] for i in range(0, len(docs), group)]


def dataset(folder, files=4, count=80, **options):
    """A folder of files, and the row groups of all."""
    groups = []
    for i in range(files):
        docs = documents(i, count, first=count * i)
        groups += write(folder / f"{i}.parquet", docs, **options)
    return groups


class Expected:
    """The rows that a dataset of these row groups should make."""

    def __init__(self, spec, groups):
        self.documents = [doc for group in groups for doc in group]
        self.run = reference.Run(spec, [[len(doc) for doc in group] for group in groups])

    def pieces(self, step):
        rows = self.run.rows(step).split("; ")
        return [[tuple(map(int, p.split(":"))) for p in row.split()] for row in rows]

    def rows(self, step):
        rows = [
            [token for d, at, n in row for token in self.documents[d][at : at + n]]
            for row in self.pieces(step)
        ]
        return np.array(rows, np.int32)
