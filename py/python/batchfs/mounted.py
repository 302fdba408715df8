"""Datasets that are mounted: the batches of a mount as tensors.

Nothing runs in this process for it: a batch is a file that is mapped. A small one is copied from
the records themselves where this process can read them, which takes less time than to open a file.
"""

from __future__ import annotations

import errno
import functools
import json
import operator
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from . import _native, dtypes
from .store import RaggedBatch

__all__ = ["Dataset", "Stream", "open"]


def open(path: str | os.PathLike[str], *, writable: bool = True, local: bool = True) -> Dataset:
    """Opens a mount that anyone has made.

    With ``writable`` the tensors may be written to: pages that are become this process's own, and
    nobody else sees it. Otherwise they are read-only, which consumers of DLPack 1.x are told.

    With ``local`` batches of up to 1 MiB of uncompressed records are copied from the mount's
    source, if this process finds it and may read it: they are the same, sooner. Otherwise all
    come from the mount.

    Raises ``FileNotFoundError`` if no mount is there, ``OSError`` if its daemon is gone.
    """
    return Dataset(path, writable=writable, local=local)


def _number(value: Any) -> int:
    number = operator.index(value)
    if not 0 <= number < 2**64:
        raise IndexError(f"{number} is out of range; steps and ids are 0 to 2^64 - 1")
    return number


class Dataset:
    """The streams of a mount, under one spec.

    ``ds["images"]`` is a :class:`Stream`, ``ds.batch(17)["images"]`` the batch of step 17,
    ``len(ds)`` the number of records. It pickles, and is as good in a child made by ``fork``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        writable: bool = True,
        local: bool = True,
        _spec: str | None = None,
    ) -> None:
        self.path = Path(path)
        """The folder that the dataset is mounted on."""
        self.writable = writable
        self.local = local
        """Whether small batches are read from the records themselves, where that is possible."""
        config = self.path / ".batchfs" / "config.json"
        try:
            self.config: dict[str, Any] = json.loads(config.read_bytes())
        except FileNotFoundError:
            raise FileNotFoundError(
                errno.ENOENT, "no batchfs mount is there; `batchfs mount` makes one", str(path)
            ) from None
        except OSError as e:
            raise self._explain(e, "") from None
        self._view = _spec
        # Cached mode copies, and what the kernel passes through is in new memory each time. The
        # service hands out the pages themselves, and fills them again.
        link = self.path / ".batchfs" / "service.sock"
        self._service = _native.Service(link) if self.config.get("service") else None
        self.spec: str = _spec or self.config["spec"]
        """The order, in its canonical spelling."""
        self._tokens: int | None = self.config.get("epoch_tokens")
        # The mount's own spec may be of a kind that only the daemon knows.
        given = self._parse(_spec)[0] if _spec else self.config["local_batch"]
        self.local_batch: int = given
        """Records, or rows of tokens, in a batch of this rank."""
        self._root = self.path / "view" / _spec if _spec else self.path
        self._streams = {name: Stream(self, name) for name in self.config["streams"]}

    @property
    def streams(self) -> Mapping[str, Stream]:
        """The streams by name."""
        return dict(self._streams)

    @property
    def steps_per_cycle(self) -> int:
        """Steps that have every record, or for ``remainder=drop`` nearly every one, once; of tokens
        those of the first epoch."""
        if self._view is None:
            return self.config["steps_per_cycle"]
        if self._tokens is not None:
            return -(-self._tokens // self._step_tokens)
        fields = dict(part.split("=") for part in self.spec.split(","))
        batch = int(fields["batch"])
        exact = fields["mode"] != "sequential" and fields.get("remainder") != "carry"
        return max(1, len(self) // batch if exact else -(-len(self) // batch))

    def batch(self, step: int) -> Batch:
        """The batch of a step: from streams to tensors, each mapped when it is asked for."""
        kind = Batch if self._tokens is None else TokenStep
        return kind(self, _number(step))

    def _handed(self, stream: str, step: int) -> list[Any] | None:
        """The tensors of a batch, from the service; ``None`` if it has to be read as a file."""
        if self._service is None:
            return None
        tensors = self._service.batch(self._view or "", stream, step, self.writable)
        return tensors and [tensor for _, tensor in tensors]

    def index(self, step: int) -> np.ndarray:
        """The record ids of a step, uint64.

        Of tokens its pieces, int64 ``(n, 3)``: document, place in it and length of each.
        """
        if self._tokens is not None:
            name = self._root / "index" / f"{_number(step)}.npy"
            try:
                pieces = np.load(name)
            except OSError as e:
                raise self._explain(e, str(name.relative_to(self.path))) from None
            return pieces[pieces[:, 0] >= 0]
        handed = self._handed("index", _number(step))
        if handed:
            return handed[0].numpy()
        path = self._root / "index" / str(_number(step))
        shape = [self.local_batch]
        return self._map(_native.map_dense, path, "uint64", shape, self.writable).numpy()

    def batches(self, start: int = 0, stop: int | None = None) -> Iterator[Batch]:
        """The batches of the steps from ``start`` on, without end if there is no ``stop``."""
        step = _number(start)
        while stop is None or step < stop:
            yield self.batch(step)
            step += 1

    def view(self, spec: str | None = None, **keys: Any) -> Dataset:
        """The same records under another spec, as keys (``batch=64, rank=3, world=8``) or as text.

        Keys that are left out have the product's defaults, not those of the mount.
        Raises ``ValueError`` for what is no spec, ``OSError`` if it does not fit the data.
        """
        text = spec if spec is not None else ",".join(f"{k}={v}" for k, v in keys.items())
        if spec is not None and keys:
            raise TypeError("view takes a spec as text or as keys, not both")
        _, canonical = self._parse(text)
        made = Dataset(self.path, writable=self.writable, local=self.local, _spec=canonical)
        try:
            os.stat(made._root)
        except OSError as e:
            raise self._explain(e, f"view/{canonical}") from None
        return made

    def _parse(self, spec: str) -> tuple[int, str]:
        """The local batch of a spec and its canonical spelling."""
        if self._tokens is None:
            return _native.parse_spec(spec)
        rows, _, _, canonical = _native.parse_lanes(spec)
        return rows, canonical

    @property
    def _step_tokens(self) -> int:
        _, seq_len, lanes, _ = _native.parse_lanes(self.spec)
        return lanes * seq_len

    def _map(self, how: Any, path: Path, *args: Any) -> Any:
        try:
            return how(path, *args)
        except OSError as e:
            raise self._explain(e, str(path.relative_to(self.path))) from None

    def _explain(self, error: OSError, item: str) -> OSError:
        """The error with the mount's own reason."""
        if error.errno == errno.ENOTCONN:
            why = "the daemon of this mount is gone; mount it again"
        else:
            why = error.strerror or str(error)
            reason = self._reason(item)
            why = f"{why}: {reason}" if reason else why
        return type(error)(error.errno, why, error.filename)

    def _reason(self, item: str) -> str | None:
        try:
            lines = (self.path / ".batchfs" / "errors").read_text().splitlines()
        except (OSError, UnicodeDecodeError):
            return None
        found = (line for line in reversed(lines) if item and f"{item}:" in line)
        line = next(found, None)
        return line and line.split(" ", 1)[-1]

    def __getitem__(self, name: str) -> Stream:
        try:
            return self._streams[name]
        except KeyError:
            there = ", ".join(self._streams)
            raise KeyError(f"there is no stream {name!r}; there are {there}") from None

    def __contains__(self, name: object) -> bool:
        return name in self._streams

    def __iter__(self) -> Iterator[str]:
        return iter(self._streams)

    def __len__(self) -> int:
        return self.config["records"]

    def __reduce__(self) -> tuple:
        return _opened, (os.path.abspath(self.path), self.writable, self.local, self._view)

    def __repr__(self) -> str:
        names = ", ".join(self._streams)
        return f"<Dataset {self.path}: {names}; {len(self)} records, {self.spec}>"


def _opened(path: str, writable: bool, local: bool, spec: str | None) -> Dataset:
    return Dataset(path, writable=writable, local=local, _spec=spec)


class Batch(Mapping):
    """The batch of a step, by stream."""

    def __init__(self, dataset: Dataset, step: int) -> None:
        self._dataset = dataset
        self.step = step
        """The step."""

    @property
    def ids(self) -> np.ndarray:
        """The record ids, uint64."""
        return self._dataset.index(self.step)

    def __getitem__(self, name: str) -> Any:
        return self._dataset[name].batch[self.step]

    def __iter__(self) -> Iterator[str]:
        return iter(self._dataset)

    def __len__(self) -> int:
        return len(self._dataset.streams)

    def __repr__(self) -> str:
        return f"<Batch {self.step} of {self._dataset!r}>"


class TokenStep(Batch):
    """The rows of a step of tokens, and where the tokens come from.

    A *piece* is a run of tokens of a row that follow each other in one document; each row begins a
    piece. All of it lies in one file, which is mapped when it is first asked for.
    """

    def __init__(self, dataset: Dataset, step: int) -> None:
        super().__init__(dataset, step)
        self._parts: dict[str, Any] | None = None

    @property
    def epoch(self) -> int:
        """The epoch that the step's first token is in."""
        assert self._dataset._tokens is not None
        return self.step * self._dataset._step_tokens // self._dataset._tokens

    @property
    def tokens(self) -> Any:
        """The tokens, ``(lanes / world, seq_len)``."""
        return self["tokens"]

    @property
    def cu_seqlens(self) -> Any:
        """Where each piece begins in the rows put one behind the other, and the end: int32."""
        return self._part("cu_seqlens", 1)

    @property
    def document_ids(self) -> Any:
        """The document of each piece, counted through the dataset: int64."""
        return self._part("document_ids", 0)

    @property
    def document_offsets(self) -> Any:
        """Where each piece begins in its document, in tokens: int64."""
        return self._part("document_offsets", 0)

    def _part(self, name: str, more: int) -> Any:
        if self._parts is None:
            self._parts = self._read()
        count = int(self._parts["pieces"].numpy()[0])
        # Behind what there is lies room for more.
        return self._parts[name][: count + more]

    def _read(self) -> dict[str, Any]:
        dataset = self._dataset
        path = dataset._root / "tokens" / "batch" / f"{self.step}.safetensors"
        try:
            with path.open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(length))
        except OSError as e:
            raise dataset._explain(e, str(path.relative_to(dataset.path))) from None
        kinds = {"I32": "int32", "I64": "int64", "U32": "uint32"}
        found = {name: told for name, told in header.items() if not name.startswith("__")}
        parts = [
            (kinds[told["dtype"]], told["shape"], 8 + length + told["data_offsets"][0])
            for told in found.values()
        ]
        mapped = dataset._map(_native.map_parts, path, parts, dataset.writable)
        return dict(zip(found, mapped, strict=True))


class _Files:
    """Batches by step or records by id."""

    def __init__(self, read: Any) -> None:
        self._read = read

    def __getitem__(self, number: int) -> Any:
        return self._read(_number(number))


class Stream:
    """A stream of a mount.

    ``stream.batch[17]`` is the batch of step 17: a ``DLTensor`` ``(B, *item_shape)``, or a
    ``RaggedBatch``. ``stream.record[5]`` is record 5. Both are mappings of files, without a copy.
    """

    def __init__(self, dataset: Dataset, name: str) -> None:
        self._dataset = dataset
        self.name = name
        """Its name."""
        self._root = dataset._root / name
        self._loaded: dict[str, Any] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """What ``schema.json`` says."""
        if self._loaded is None:
            path = self._root / "schema.json"
            try:
                self._loaded = json.loads(path.read_bytes())
            except OSError as e:
                raise self._dataset._explain(e, self.name) from None
        return self._loaded

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the elements, one of ``batchfs.dtypes``."""
        return dtypes._BY_NAME[self.schema["dtype"]]

    @property
    def ragged(self) -> bool:
        """Whether every record has a shape of its own."""
        return self.schema["layout"] == "ragged"

    @property
    def item_shape(self) -> tuple[int, ...] | None:
        """The shape of dense records."""
        return None if self.ragged else tuple(self.schema["item_shape"])

    @property
    def ndim(self) -> int:
        """The number of axes of a record."""
        shape = self.item_shape
        return self.schema["ndim"] if shape is None else len(shape)

    @property
    def batch(self) -> _Files:
        """Batches by step."""
        return _Files(self._batch)

    @property
    def record(self) -> _Files:
        """Records by id."""
        return _Files(self._record)

    @functools.cached_property
    def _local(self) -> Any:
        """The records themselves, if it is these that small batches are made of."""
        ds, schema = self._dataset, self.schema
        if not ds.local or ds._tokens is not None or "stamp" not in schema:
            return None
        told = (schema["source"], schema["stamp"], schema["dtype"], schema["records"])
        return _native.Local.of(ds.path, *told, ds.spec)

    def _batch(self, step: int) -> Any:
        ds = self._dataset
        local = self._local
        if local is not None:
            read = local.batch(step, ds.writable)
            if read is not None:
                return read
        name = self.schema["dtype"]
        handed = ds._handed(self.name, step)
        if handed and len(handed) == (3 if self.ragged else 1):
            return RaggedBatch(*handed) if self.ragged else handed[0]
        path = self._root / "batch" / str(step)
        shape = self.item_shape
        if ds._tokens is not None:
            # The records are documents of any length and the column's dtype, batches rows of one.
            name = self.schema["batch"]["dtype"]
            shape = (_native.parse_lanes(ds.spec)[1],)
        if shape is not None:
            whole = [ds.local_batch, *shape]
            return ds._map(_native.map_dense, path, name, whole, ds.writable)
        args = (name, ds.local_batch, self.ndim, ds.writable)
        return RaggedBatch(*ds._map(_native.map_ragged, path, *args))

    def _record(self, number: int) -> Any:
        ds, name = self._dataset, self.schema["dtype"]
        if number >= len(ds):
            raise IndexError(
                f"{self._root}: record {number} is out of range; there are {len(ds)} records"
            )
        path = ds.path / self.name / "record" / str(number)
        shape = self.item_shape
        if shape is None:
            shape = self._ragged_shape(path)
        if 0 in shape:
            empty = np.empty(shape, self.dtype)
            return _native.as_tensor(empty)
        return ds._map(_native.map_dense, path, name, list(shape), ds.writable)

    def _ragged_shape(self, path: Path) -> tuple[int, ...]:
        try:
            if self.ndim == 1:
                return (os.stat(path).st_size // self.dtype.itemsize,)
            # Of several axes, the shape is in the faces that have a header.
            with path.with_suffix(".safetensors").open("rb") as file:
                length = int.from_bytes(file.read(8), "little")
                return tuple(json.loads(file.read(length))["data"]["shape"])
        except OSError as e:
            raise self._dataset._explain(e, f"{self.name}/record/{path.name}") from None

    def __len__(self) -> int:
        return len(self._dataset)

    def __repr__(self) -> str:
        return f"<Stream {self.name} of {self._dataset!r}>"
