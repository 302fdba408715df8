"""Documents of tokens, Parquet files of them by several writers, and the rows they should make."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from harness import errno_of
from token_rows import Expected, documents, reference

__all__ = [
    "AWKWARD",
    "DAMAGES",
    "Expected",
    "batches",
    "by_duckdb",
    "by_polars",
    "by_pyarrow",
    "damage",
    "documents",
    "meets",
    "reference",
    "row_group_at",
    "table",
]


AWKWARD = [
    "lang=zh%2FCN/a b.parquet",
    "t=2023-10-08T20%3A54/x.parquet",
    "c#1?.parquet",
    "a+b&c.parquet",
    "na\u00efve.parquet",
    "nai\u0308ve.parquet",
    "tokens=1/x.parquet",
    "10.parquet",
    "9.parquet",
]
"""Names that are escaped, normalized or ordered in one place and not in another."""


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


def row_group_at(path: Path, byte: int) -> int:
    """The row group whose column of tokens has this byte of the file."""
    file = pq.ParquetFile(path)
    leaf = file.schema_arrow.get_field_index("tokens")
    for number in range(file.num_row_groups):
        chunk = file.metadata.row_group(number).column(leaf)
        begin = chunk.dictionary_page_offset or chunk.data_page_offset
        if begin <= byte < begin + chunk.total_compressed_size:
            return number
    raise AssertionError(f"byte {byte} of {path} is of no token")


def meets(expected: Expected, step: int, group: int) -> bool:
    """Whether a step has to read this row group, counted through the dataset."""
    return any(group in window[4] for window in expected.run.windows(step))


def check(m, step: int, expected, fails: bool) -> None:
    """A step of a mount is EIO, or has the rows that are expected."""
    path = m / f"tokens/batch/{step}"
    if fails:
        assert errno_of(path.read_bytes) == "EIO", f"step {step}"
        return
    want = np.asarray(expected.rows(step))
    got = np.frombuffer(path.read_bytes(), "<i4").reshape(want.shape)
    np.testing.assert_array_equal(got, want, err_msg=f"step {step}")


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


def batches(m, steps) -> list[bytes]:
    return [m.read(f"tokens/batch/{step}") for step in steps]


DAMAGES = {
    "cut": "remove it or write it again",
    "footer": "remove it or write it again",
    "html": "remove it or write it again",
    "encrypted": "write it without encryption",
    "empty": "remove it or write it again",
}
"""What can be done to a whole file, and what is said that can be done about it."""


def damage(path: Path, how: str) -> None:
    """One of `DAMAGES`, or `flipped`: a bit in a page."""
    raw = bytearray(path.read_bytes())
    if how == "flipped":
        raw[len(raw) // 3] ^= 0x10
    elif how == "cut":
        raw = raw[:-100]
    elif how == "footer":
        raw[-8:-4] = (len(raw) * 2).to_bytes(4, "little")
    elif how == "html":
        raw = bytearray(b"<html>404</html> PAR1")
    elif how == "encrypted":
        raw[-4:] = b"PARE"
    elif how == "empty":
        raw.clear()
    path.write_bytes(raw)
