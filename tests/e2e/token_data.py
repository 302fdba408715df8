"""Documents of tokens, Parquet files of them by several writers, and the rows they should make."""

import importlib.util
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import REPO

_spec = importlib.util.spec_from_file_location(
    "order_reference", REPO / "sampler/tests/order_reference.py"
)
reference = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(reference)


def documents(seed: int, count: int, mean: int = 30, first: int = 0) -> list[list[int]]:
    """Documents of log-normal lengths, a few of them empty. Every token says where it belongs."""
    random = np.random.default_rng(seed)
    lengths = random.lognormal(np.log(mean), 0.9, count).astype(int)
    lengths[random.random(count) < 0.05] = 0
    return [[(first + d) * 10_000 + i for i in range(n)] for d, n in enumerate(lengths)]


def table(docs: list, kind: pa.DataType | None = None, column: str = "tokens") -> pa.Table:
    kind = kind or pa.list_(pa.int32())
    names = pa.array([f"doc {i}" for i in range(len(docs))])
    return pa.table({"id": names, column: pa.array(docs, type=kind)})


def by_pyarrow(path: Path, docs: list, kind=None, group: int = 20, **options) -> list[list]:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(docs, kind), path, row_group_size=group, **options)
    return [docs[i : i + group] for i in range(0, len(docs), group)]


def by_duckdb(path: Path, docs: list, codec: str = "zstd") -> list[list]:
    import duckdb

    with duckdb.connect() as connection:
        connection.register("source", table(docs))
        connection.execute(
            f"COPY (SELECT * FROM source) TO '{path}' (FORMAT parquet, COMPRESSION {codec})"
        )
    return split(path, docs)


def by_polars(path: Path, docs: list, group: int = 25) -> list[list]:
    import polars as pl

    pl.from_arrow(table(docs)).write_parquet(path, row_group_size=group, compression="lz4")
    return split(path, docs)


def split(path: Path, docs: list) -> list[list]:
    """The documents of each row group, as the file has them."""
    meta = pq.ParquetFile(path).metadata
    groups, at = [], 0
    for i in range(meta.num_row_groups):
        count = meta.row_group(i).num_rows
        groups.append(docs[at : at + count])
        at += count
    assert at == len(docs)
    return groups


class Expected:
    """The rows that a dataset of these row groups should make."""

    def __init__(self, spec: str, groups: list[list]):
        self.documents = [doc or [] for group in groups for doc in group]
        lengths = [[len(doc or []) for doc in group] for group in groups]
        self.run = reference.Run(spec, lengths)

    def pieces(self, step: int) -> list[list[tuple[int, int, int]]]:
        rows = self.run.rows(step).split("; ")
        return [[tuple(map(int, p.split(":"))) for p in row.split()] for row in rows]

    def rows(self, step: int) -> np.ndarray:
        rows = [
            [token for d, at, n in row for token in self.documents[d][at : at + n]]
            for row in self.pieces(step)
        ]
        return np.array(rows, np.int64)
