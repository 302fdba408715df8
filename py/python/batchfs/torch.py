"""PyTorch Datasets over both doors.

They work with ``torch.utils.data.DataLoader`` (no workers, or workers by fork, spawn or forkserver)
and with ``torchdata``'s ``StatefulDataLoader``. A stream is a view of a store or a stream of a
mount.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from torch.utils import data

from . import _native, _pinned
from ._convert import as_torch
from ._numbers import integer
from ._torch_tokens import TokenDataset, TokenStep
from .mounted import Dataset, Stream
from .sampler import Sampler
from .store import RaggedBatch

__all__ = ["Batches", "Records", "TokenDataset", "TokenStep", "as_is", "on_device"]


def as_is(batch: Any) -> Any:
    """The ``collate_fn`` for Datasets that give whole batches."""
    return batch


def _tensors(value: Any) -> Any:
    """A batch of a stream as PyTorch's tensors: one, or a dict of three for ragged records."""
    if isinstance(value, RaggedBatch):
        fields = ("values", "cu_seqlens", "shapes")
        return {name: as_torch(getattr(value, name)) for name in fields}
    return as_torch(value)


def _streams(source: Any) -> dict[str, Any]:
    if isinstance(source, Dataset):
        return dict(source.streams)
    if not isinstance(source, Mapping) or not source:
        raise TypeError("streams are a mounted Dataset or a dict from names to views")
    lengths = {name: len(stream) for name, stream in source.items()}
    if len(set(lengths.values())) != 1:
        raise ValueError(f"streams have as many records as one another, these have {lengths}")
    return dict(source)


def on_device(batches: Iterable[Any], device: Any) -> Iterator[Any]:
    """The batches of ``Batches``, or of a ``DataLoader`` over it, as tensors on ``device``.

    For a GPU of CUDA or ROCm the pages of a batch are pinned where they are, copied from there
    without waiting, and let go when the copy is done. Where the GPU's runtime refuses to pin them,
    they are copied as other tensors are. For ``"cpu"`` the batches come as they are.

    The GPU's current stream sees the batch whole. Use it in the process that trains, and not in
    workers.
    """
    return _pinned.on_device(batches, device)


class Records(data.Dataset):
    """A map-style Dataset: item ``i`` is a dict with record ``i`` of each stream.

    ``streams`` is a mounted :class:`batchfs.Dataset` or a dict from names to views. Ragged records
    are tensors of their own shape.

    A ``DataLoader`` asks for the records of a batch together, which are gathered at once. With
    ``whole=True`` it gets them as one batch, a dict of stacked tensors (ragged streams as a dict of
    ``values``, ``cu_seqlens``, ``shapes``), without a copy: pass ``collate_fn=as_is`` then. That
    needs views, as a mount has only its own batches.
    """

    def __init__(
        self,
        streams: Any,
        *,
        whole: bool = False,
        transform: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self._streams = _streams(streams)
        if whole and any(isinstance(s, Stream) for s in self._streams.values()):
            raise ValueError("whole=True needs views of stores; take Batches over a mount")
        self._whole = whole
        self._transform = transform

    def __len__(self) -> int:
        return len(next(iter(self._streams.values())))

    def __getitem__(self, index: int) -> Any:
        record = {name: self._record(stream, index) for name, stream in self._streams.items()}
        return record if self._transform is None else self._transform(record)

    def _record(self, stream: Any, index: int) -> Any:
        if isinstance(stream, Stream):
            at = index + len(stream) if index < 0 else index
            return as_torch(stream.record[at])
        found = stream[index]
        return as_torch(found.to_tensors()[0] if isinstance(found, RaggedBatch) else found)

    def __getitems__(self, indices: list[int]) -> Any:
        if any(isinstance(s, Stream) for s in self._streams.values()):
            return [self[i] for i in indices]
        found = {name: view.__getitems__(indices) for name, view in self._streams.items()}
        if self._whole:
            batch = {name: _tensors(value) for name, value in found.items()}
            return batch if self._transform is None else self._transform(batch)
        split = {
            name: value.to_tensors() if isinstance(value, RaggedBatch) else value.torch()
            for name, value in found.items()
        }
        records = [
            {name: as_torch(values[i]) for name, values in split.items()}
            for i in range(len(indices))
        ]
        if self._transform is None:
            return records
        return [self._transform(record) for record in records]


class Batches(data.IterableDataset):
    """An iterable Dataset of whole batches, step by step: a dict of tensors by stream.

    Over a mounted :class:`batchfs.Dataset` the order is the mount's; over a dict of views it is
    that of ``spec`` (``batch=256,seed=42``). It goes from step ``start`` up to ``stop``, one cycle
    if not given; ``stop=None`` is without end.

    Use it with ``batch_size=None``. With workers, worker ``w`` of ``W`` makes every ``W`` th step,
    so that the ``DataLoader`` delivers all steps in order. ``state_dict()`` and
    ``load_state_dict()`` are for ``StatefulDataLoader``; with a plain one, go on with another
    ``start``.
    """

    def __init__(
        self,
        streams: Any,
        spec: str | None = None,
        *,
        start: int = 0,
        stop: int | None = -1,
        transform: Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        self._source = streams if isinstance(streams, Dataset) else _streams(streams)
        self._sampler: Sampler | None = None
        if isinstance(self._source, Dataset):
            if spec is not None:
                raise ValueError("a mount has its spec; take ds.view(…) for another one")
            cycle = self._source.steps_per_cycle
        else:
            length = len(next(iter(self._source.values())))
            self._sampler = _sampler(spec or "batch=256", length)
            cycle = self._sampler.steps_per_cycle
        self._start = integer(start, "start")
        if stop == -1:
            stop = self._start + cycle
        # The last step is 2^64 - 1.
        self._stop = None if stop is None else integer(stop, "stop", most=2**64)
        self._transform = transform
        self._done = self._resumed = 0

    def _batch(self, step: int) -> dict[str, Any]:
        if isinstance(self._source, Dataset):
            return {name: _tensors(value) for name, value in self._source.batch(step).items()}
        assert self._sampler is not None
        ids = self._sampler.at(step)
        return {name: _tensors(view.__getitems__(ids)) for name, view in self._source.items()}

    def __iter__(self) -> Iterator[Any]:
        info = data.get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        # A state is for the iteration that follows it, and others begin at the start.
        self._done, self._resumed = self._resumed, 0
        for done in itertools.count(self._done):
            step = self._start + done * workers + worker
            if self._stop is not None and step >= self._stop:
                return
            batch = self._batch(step)
            self._done = done + 1
            yield batch if self._transform is None else self._transform(batch)

    def __len__(self) -> int:
        if self._stop is None:
            raise TypeError("without stop there is no length")
        return max(0, self._stop - self._start)

    def state_dict(self) -> dict[str, Any]:
        """Batches that this worker has made."""
        return {"done": self._done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on after them."""
        self._done = self._resumed = state["done"]


_MODES = {"sequential": 0, "iid": 1, "cyclic": 2}


def _sampler(spec: str, length: int) -> Sampler:
    _, canonical = _native.parse_spec(spec)
    keys = dict(part.split("=") for part in canonical.split(","))
    return Sampler(
        length,
        int(keys["batch"]),
        _MODES[keys["mode"]],
        int(keys.get("seed", 0)),
        rank=int(keys.get("rank", 0)),
        world=int(keys.get("world", 1)),
        remainder=keys.get("remainder", "drop"),
    )
