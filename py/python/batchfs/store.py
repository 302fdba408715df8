"""Record stores: writers, stores, views, and what is read from them.

A store is a folder with records in a fixed order, ``0 .. len - 1``. It is written once, is there
whole or not at all, and never changes. Dense records have one shape, ragged ones a shape each.

    >>> with DenseWriter("train/images", dtypes.uint8, (28, 28), codec="raw") as writer:
    ...     writer.append(images)
    >>> with DenseStore("train/images") as store, Allocator("cpu") as allocator:
    ...     view = store.bind(allocator)
    ...     batch = view[0, 5, 2]
"""

from __future__ import annotations

import contextlib
import operator
import os
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from . import _native, dtypes
from ._errors import StoreError
from ._native import Allocator, DenseView, DLTensor, RaggedView
from ._numbers import integer, within

__all__ = [
    "DLTensor",
    "DenseStore",
    "DenseView",
    "DenseWriter",
    "RaggedBatch",
    "RaggedStore",
    "RaggedView",
    "RaggedWriter",
    "StoreError",
    "train_dict",
]

CODECS = ("raw", "zstd", "zstd_dict")
MAX_DATA_SHARDS = 255
_MOST_AXES = 64

ZrecordError = StoreError
"""The name that loaderx has for it."""


class RaggedBatch(_native.RaggedFields):
    """Records of different shapes as three arrays, without padding.

    * ``values``: the records' elements back to back, 1-D, in the store's dtype;
    * ``cu_seqlens``: int32 ``(records + 1,)``, where each record starts in ``values``, and the end;
    * ``shapes``: uint64 ``(records, ndim)``.

    Any DLPack tensors on one device may be passed; what is read has ``DLTensor`` s. Raises
    ``TypeError`` for what has no DLPack, ``ValueError`` for different devices.
    """

    __slots__ = ()

    @classmethod
    def from_records(cls, records: Iterable[Any]) -> RaggedBatch:
        """Packs a finite iterable of NumPy arrays of one dtype and number of axes.

        Raises ``TypeError`` for what is no array or no dtype of ours, ``ValueError`` if they do not
        go together, ``OverflowError`` for more than 2,147,483,647 values.
        """
        return cls(*_native.pack(list(records)))

    def __len__(self) -> int:
        return int(self.shapes.shape[0])

    def to_tensors(self) -> list[DLTensor]:
        """The records one by one, each in its shape. They share the memory of ``values``.

        Records of a GPU stay there, if the batch is one that was read here. Raises ``ValueError``
        for fields of other devices than the processor and GPUs of AMD's.
        """
        return _native.split(self.values, self.cu_seqlens, self.shapes)

    def to_nested(self) -> Any:
        """The records as a jagged nested tensor of PyTorch, without a copy.

        For records of one axis, or of several of which all but the first are the same.
        Raises ``ValueError`` for others.
        """
        import torch

        from ._convert import as_torch

        values, cu, shapes = map(as_torch, (self.values, self.cu_seqlens, self.shapes))
        wide = shapes.element_size() == 8
        shapes = shapes.view(torch.int64) if wide else shapes.to(torch.int64)
        inner = shapes[:, 1:]
        if len(inner) and bool((inner != inner[0]).any()):
            raise ValueError(
                "only records that differ in their first axis alone make a jagged tensor"
            )
        offsets = cu.to(torch.int64)
        if inner.shape[1]:
            shape = [int(n) for n in inner[0]] if len(inner) else [0] * inner.shape[1]
            # Not of cu_seqlens, which tell nothing of records that have another axis of 0.
            offsets = torch.nn.functional.pad(shapes[:, 0].cumsum(0), (1, 0))
            values = values.reshape(int(offsets[-1]), *shape)
        return torch.nested.nested_tensor_from_jagged(values, offsets=offsets)

    def __repr__(self) -> str:
        shape = tuple(self.values.shape)
        return f"RaggedBatch(records={len(self)}, values={shape})"


class _Store:
    """What both kinds of stores have."""

    _dense: bool

    def __init__(self, path: str | os.PathLike[str], *, verify: str = "first") -> None:
        self.path = Path(path)
        """The folder."""
        self._verify = verify
        self._native = _native.Store(os.fspath(path), self._dense, verify)
        self.dtype = self._native.dtype
        """The dtype of the elements."""
        self.codec = self._native.codec
        """``raw``, ``zstd`` or ``zstd_dict``."""
        self.data_shards = self._native.data_shards
        """Files that the records are spread over."""

    def bind(self, allocator: Allocator) -> Any:
        """A view that reads into the memory of ``allocator``.

        Raises ``RuntimeError`` if the store is closed.
        """
        if not isinstance(allocator, Allocator):
            raise TypeError(f"bind takes an Allocator, not {type(allocator).__name__}")
        return self._native.bind(allocator)

    def close(self) -> None:
        """Lets go of the files. Its views read no more; what they have read stays valid."""
        self._native.close()

    @property
    def closed(self) -> bool:
        """Whether it was closed."""
        return self._native.closed

    def __len__(self) -> int:
        return len(self._native)

    def __getitem__(self, index: Any) -> Any:
        if self.closed:
            raise RuntimeError(f"{self.path}: the store is closed")
        raise RuntimeError(
            f"{self.path}: a store is not indexed itself; index store.bind(allocator)"
        )

    __getitems__ = __getitem__

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple:
        return _opened, (type(self), os.path.abspath(self.path), self._verify)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {len(self)} records, {self.path}>"


def _opened(kind: type, path: str, verify: str) -> Any:
    return kind(path, verify=verify)


class DenseStore(_Store):
    """A store of records of one shape, open for reading.

    ``path`` is a store's folder, or another source that is read in place, such as a ``.npy`` file.
    ``verify`` says when a record is held against its checksum: ``first`` time it is read,
    ``always``, or ``never``.

    Raises ``OSError`` if it cannot be opened, ``StoreError`` if it is damaged or no store,
    ``ValueError`` if its records are ragged.
    """

    _dense = True

    @property
    def item_shape(self) -> tuple[int, ...]:
        """The shape of a record."""
        return self._native.geometry


class RaggedStore(_Store):
    """A store of records that have a shape each, open for reading.

    Raises what :class:`DenseStore` does, ``ValueError`` if its records are dense.
    """

    _dense = False

    @property
    def ndim(self) -> int:
        """The number of axes of every record."""
        return self._native.geometry


def _integer(value: Any, name: str) -> int:
    if isinstance(value, bool) or type(value).__name__ in ("bool_", "bool"):
        raise ValueError(f"{name} is an integer, not {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name} is an integer, not {value!r}") from None


class _Writer:
    """What both kinds of writers have."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: Any,
        item_shape: tuple[int, ...] | None,
        ndim: int,
        codec: str,
        dict_bytes: bytes | None,
        data_shards: int,
        level: int,
    ) -> None:
        self._made: list[Path] = []
        if codec not in CODECS:
            raise ValueError(f"unknown codec {codec!r}; there are {', '.join(CODECS)}")
        if codec == "zstd_dict" and not dict_bytes:
            raise ValueError("codec='zstd_dict' needs dict_bytes, which train_dict makes")
        if codec != "zstd_dict" and dict_bytes is not None:
            raise ValueError("dict_bytes are for codec='zstd_dict' alone")
        dictionary = None if dict_bytes is None else bytes(memoryview(dict_bytes))
        shards = _integer(data_shards, "data_shards")
        within(shards, "data_shards", 1, MAX_DATA_SHARDS)
        effort = _integer(level, "level")
        within(effort, "level", -(2**31), 2**31 - 1)
        self.path = Path(path)
        """The folder that the store will be."""
        self.dtype = dtypes._BY_NAME[dtypes._name(dtype)]
        """The dtype of the elements."""
        self.codec = codec
        self.data_shards = shards
        self._make_parents()
        try:
            self._native = _native.Writer(
                os.fspath(path),
                self.dtype.name,
                item_shape=item_shape,
                ndim=ndim,
                codec=codec,
                level=effort,
                dictionary=dictionary,
                shards=shards,
            )
        except BaseException:
            self._remove_parents()
            raise

    def _make_parents(self) -> None:
        parent = self.path.absolute().parent
        missing = []
        while not parent.exists():
            missing.append(parent)
            parent = parent.parent
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                self._made.append(folder)

    def _remove_parents(self) -> None:
        for folder in reversed(self._made):
            with contextlib.suppress(OSError):
                folder.rmdir()

    def close(self) -> None:
        """Publishes the store: it is there, whole and on the disk, when this returns.

        Raises ``FileExistsError`` if ``path`` has come into being meanwhile, ``OSError`` if it
        cannot be written; then nothing is published. A second call does nothing.
        """
        try:
            self._native.finish()
        except BaseException:
            self._remove_parents()
            raise

    def abort(self) -> None:
        """Ends the writer without a store. A writer that is forgotten does the same.

        In a child made by ``fork`` it does nothing: the writer is the parent's.
        """
        if self._native.abort():
            self._remove_parents()

    def __len__(self) -> int:
        """Records appended so far."""
        return self._native.records()

    def __getitem__(self, index: Any) -> Any:
        raise RuntimeError("a writer is not read; close it and open the store")

    __getitems__ = __getitem__

    def __enter__(self) -> Any:
        return self

    def __exit__(self, exc_type: type[BaseException] | None, *exc: object) -> None:
        if exc_type is None:
            self.close()
        else:
            self.abort()


class DenseWriter(_Writer):
    """Writes a store of records of one shape.

    ``codec`` is ``"raw"``, ``"zstd"`` or ``"zstd_dict"``, which needs ``dict_bytes``; ``level`` is
    that of zstd; ``data_shards`` (1 to 255) are files that are written side by side. Folders above
    ``path`` are made.

    Used with ``with``: at its end the store is published, but after an exception nothing is.

    Raises ``FileExistsError`` if there is a ``path``, ``ValueError`` and ``TypeError`` for what
    does not fit, ``OSError`` if nothing can be written there.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: Any,
        item_shape: Iterable[int],
        *,
        codec: str,
        dict_bytes: bytes | None = None,
        data_shards: int = 4,
        level: int = 3,
    ) -> None:
        try:
            shape = tuple(_integer(n, "each number of item_shape") for n in item_shape)
        except TypeError:
            raise ValueError(f"item_shape is a tuple of integers, not {item_shape!r}") from None
        if len(shape) >= _MOST_AXES:
            raise ValueError(f"item_shape has {len(shape)} axes; there are up to 63")
        for n in shape:
            within(n, "each number of item_shape", 0, 2**63 - 1)
        self.item_shape = shape
        """The shape of a record."""
        super().__init__(path, dtype, shape, 0, codec, dict_bytes, data_shards, level)

    def append(self, batch: Any) -> None:
        """Appends records, ``(records, *item_shape)``, and returns when they are written.

        ``batch`` is C-contiguous, of the store's dtype, in the processor's memory: a NumPy array,
        any DLPack tensor, or a read-only buffer. Its memory is read while the call lasts, not
        copied.

        Raises ``TypeError`` and ``ValueError`` for what does not fit, which changes nothing;
        ``OSError`` if it cannot be written: then nothing will be published.
        """
        self._native.append(batch)


class RaggedWriter(_Writer):
    """Writes a store of records of ``ndim`` axes with a shape each. See :class:`DenseWriter`."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        dtype: Any,
        ndim: int,
        *,
        codec: str,
        dict_bytes: bytes | None = None,
        data_shards: int = 4,
        level: int = 3,
    ) -> None:
        axes = _integer(ndim, "ndim")
        within(axes, "ndim", 1, _MOST_AXES)
        self.ndim = axes
        """The number of axes of every record."""
        super().__init__(path, dtype, None, axes, codec, dict_bytes, data_shards, level)

    def append(self, batch: RaggedBatch) -> None:
        """Appends the records of a :class:`RaggedBatch` and returns when they are written.

        ``values`` are 1-D and of the store's dtype, ``cu_seqlens`` int32, ``shapes`` uint64 (or
        uint32), all C-contiguous; offsets start at 0, span all values and agree with each record's
        shape. Records may be empty.

        Raises what :meth:`DenseWriter.append` does.
        """
        if not isinstance(batch, RaggedBatch):
            raise TypeError(
                f"append takes a RaggedBatch, not {type(batch).__name__}; "
                "RaggedBatch.from_records makes one of arrays"
            )
        self._native.append_ragged(batch.values, batch.cu_seqlens, batch.shapes)


def train_dict(
    source: DenseView | RaggedView,
    *,
    path: str | os.PathLike[str] | None = None,
    size: int = 112_640,
) -> bytes:
    """Trains a dictionary of at most ``size`` bytes for ``codec="zstd_dict"`` on records of a view.

    The same records give the same bytes. With ``path`` they are also written there. Warns if the
    dictionary does not pay.

    Raises ``ValueError`` if the records are too few, too short or have nothing in common.
    """
    made, warning = _native.train_dict(source, integer(size, "size", 1))
    if warning:
        warnings.warn(warning, stacklevel=2)
    if path is not None:
        Path(path).write_bytes(made)
    return made
