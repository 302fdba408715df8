"""Parquet files of tokens, and the rows that they should make by the second implementation."""

import pyarrow as pa
import pyarrow.parquet as pq
from token_rows import Expected, documents

__all__ = ["SETTINGS", "SPEC", "Expected", "dataset", "documents", "write"]

SETTINGS = {"lanes": 6, "window": 3, "seq_len": 16, "seed": 7}
SPEC = "lanes=6,window=3,seq_len=16,seed=7"


def write(path, docs, group=20, column="tokens", kind=None, **options):
    """Writes a file, and gives its row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    values = pa.array(docs, pa.list_(kind or pa.int32()))
    pq.write_table(pa.table({column: values}), path, row_group_size=group, **options)
    return [docs[i : i + group] for i in range(0, len(docs), group)]


def dataset(folder, files=4, count=80, first=0, **options):
    """A folder of files, and the row groups of all. `first` tells the tokens of two apart."""
    groups = []
    for i in range(files):
        docs = documents(first + i, count, first=first + count * i)
        groups += write(folder / f"{i}.parquet", docs, **options)
    return groups
