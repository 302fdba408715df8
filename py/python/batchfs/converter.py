"""From Hugging Face datasets to stores: one per column, published together."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from . import _native, dtypes

__all__ = ["convert"]

_RECORDS = 32_768
_BYTES = 64 << 20


def convert(dataset: Any, output: str | os.PathLike[str], *, codec: str) -> Path:
    """Writes an Arrow-backed Hugging Face ``Dataset`` as a dataset of stores, ``output/<column>``.

    ``codec`` is ``"raw"`` or ``"zstd"``. Rows come in the dataset's order, that of its indices
    after ``select``, ``shuffle`` and so on. All columns are published together, or nothing is.

    Columns of numbers and bools, and fixed-size lists of these, become dense stores; lists of
    numbers become ragged ones of one axis; structs of ``values`` (a list of numbers) and ``shape``
    (a fixed-size list of uint64 or uint32) ragged ones of several. Nulls, strings, binary and other
    columns are refused: ``Dataset.map`` makes numbers of them first.

    Raises ``TypeError`` for what is no ``Dataset``, ``ValueError`` naming the column for what
    cannot be stored, ``FileExistsError`` if there is an ``output``, ``ImportError`` without
    ``datasets``.
    """
    if codec not in ("raw", "zstd"):
        raise ValueError(f"codec {codec!r} is not valid here; it is 'raw' or 'zstd'")
    try:
        import datasets
    except ImportError as e:
        raise ImportError("convert needs `pip install 'batchfs[converter]'`") from e
    if isinstance(dataset, datasets.DatasetDict):
        splits = ", ".join(dataset)
        raise TypeError(
            f"convert takes one split, and this DatasetDict has {splits}: "
            f"convert(dataset[{next(iter(dataset), 'train')!r}], …)"
        )
    if not isinstance(dataset, datasets.Dataset):
        raise TypeError(
            f"convert takes an Arrow-backed Dataset, not {type(dataset).__name__}; "
            "of an IterableDataset, Dataset.from_generator makes one"
        )
    output = Path(output)
    if output.exists():
        raise FileExistsError(f"{output}: exists already; choose another name or remove it")
    if len(dataset) == 0 or not dataset.column_names:
        raise ValueError("the dataset is empty")
    output.absolute().parent.mkdir(parents=True, exist_ok=True)
    writer = _native.DatasetWriter(output)
    try:
        _write(dataset, writer, codec)
        writer.publish()
    finally:
        writer.abort()
    return output


def _write(dataset: Any, writer: Any, codec: str) -> None:
    columns: dict[str, _Column] | None = None
    for batch in _batches(dataset):
        if columns is None:
            columns = {field.name: _Column(field.name, field.type) for field in batch.schema}
            for name, column in columns.items():
                column.open(writer, name, codec)
        for name, column in columns.items():
            column.append(batch.column(batch.schema.get_field_index(name)))
    for column in (columns or {}).values():
        column.close()


def _batches(dataset: Any) -> Iterator[Any]:
    for table in dataset.with_format("arrow").iter(batch_size=_RECORDS):
        for batch in table.to_batches():
            rows = len(batch) if batch.nbytes <= _BYTES else len(batch) * _BYTES // batch.nbytes
            for start in range(0, len(batch), max(rows, 1)):
                yield batch.slice(start, max(rows, 1))


def _number(kind: Any) -> str | None:
    """The name of our dtype for an Arrow type, if there is one."""
    import pyarrow.types as types

    if types.is_boolean(kind):
        return "bool"
    if not (types.is_integer(kind) or types.is_floating(kind)):
        return None
    return dtypes._name(kind.to_pandas_dtype())


class _Column:
    """A column and the store that it becomes."""

    def __init__(self, name: str, kind: Any) -> None:
        import pyarrow.types as types

        self.name = name
        self.shape: list[int] | None = None
        self.ndim = 0
        self.struct = False
        inner = getattr(kind, "storage_type", kind)
        if types.is_struct(inner) and [f.name for f in inner] == ["values", "shape"]:
            shape = inner.field("shape").type
            fits = types.is_fixed_size_list(shape) and _number(shape.value_type) in (
                "uint64",
                "uint32",
            )
            if not fits:
                raise self.refused(kind, "its shape is a fixed-size list of uint64")
            self.struct, self.ndim, inner = True, shape.list_size, inner.field("values").type
        else:
            self.shape = []
            while types.is_fixed_size_list(inner):
                self.shape.append(inner.list_size)
                inner = inner.value_type
        if types.is_list(inner) or types.is_large_list(inner):
            if self.shape:
                raise self.refused(kind, "lists within fixed-size lists have no place")
            self.shape, self.ndim, inner = None, self.ndim or 1, inner.value_type
        elif self.struct:
            raise self.refused(kind, "its values are a list of numbers")
        dtype = _number(inner)
        if dtype is None:
            raise self.refused(kind, "numbers and bools, and lists of them, can be stored")
        self.dtype = dtype

    def refused(self, kind: Any, why: str) -> ValueError:
        return ValueError(
            f"column {self.name!r} is of Arrow type {kind}: {why}; "
            "Dataset.map makes something else of it, remove_columns leaves it out"
        )

    def open(self, writer: Any, name: str, codec: str) -> None:
        self.writer = writer.stream(name, self.dtype, self.shape, self.ndim, codec)

    def close(self) -> None:
        self.writer.finish()

    def append(self, array: Any) -> None:
        array = getattr(array, "storage", array)
        if self.shape is not None:
            self.writer.append(self._fixed(array, self.shape, self.dtype))
            return
        shapes = None
        self._no_nulls(array)
        if self.struct:
            shape = array.field("shape")
            kind = _number(shape.type.value_type)
            shapes = self._fixed(shape, [self.ndim], kind or "uint64").astype(np.uint64)
            array = array.field("values")
            self._no_nulls(array)
        offsets = array.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0])
        offsets -= offsets[0]
        if offsets[-1] > np.iinfo(np.int32).max:
            raise ValueError(f"column {self.name!r} has a record of more than 2,147,483,647 values")
        if shapes is None:
            shapes = np.diff(offsets).astype(np.uint64).reshape(-1, 1)
        flat = self._flat(values, self.dtype)
        self.writer.append_ragged(flat, offsets.astype(np.int32), np.ascontiguousarray(shapes))

    def _fixed(self, array: Any, shape: list[int], dtype: str) -> np.ndarray:
        count = len(array)
        for _ in shape:
            self._no_nulls(array)
            array = array.flatten()
        return self._flat(array, dtype).reshape((count, *shape))

    def _flat(self, array: Any, dtype: str) -> np.ndarray:
        self._no_nulls(array)
        numbers = array.to_numpy(zero_copy_only=False)
        return np.ascontiguousarray(numbers, dtype=dtypes._BY_NAME[dtype])

    def _no_nulls(self, array: Any) -> None:
        if array.null_count:
            raise ValueError(f"column {self.name!r} has nulls; fill or filter them first")
