"""Token streams straight from Parquet, in this process."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any

from ._native import Pipeline, TokenBatch, TokenSource
from ._native import merge as _merge
from ._numbers import MOST_THREADS, integer
from .loader import _end

__all__ = ["TokenBatch", "TokenLoader", "merge"]

_LOG = logging.getLogger("batchfs")


class TokenLoader:
    """Gives the steps of a token source one after the other, epoch after epoch.

        with TokenLoader("s3://bucket/data", lanes=512, seq_len=2048, rank=3, world=8) as loader:
            while loader.epoch < 3:
                for batch in loader:  # the rest of this epoch
                    train(batch.tokens.torch())

    ``uri`` is a Parquet file, a folder of them, or an address such as ``s3://bucket/prefix``, with
    lists of token ids in ``column``. Each step is a :class:`TokenBatch` of ``lanes / world`` full
    rows of ``seq_len`` tokens; which ones is what ``batchfs mount --spec`` with the same numbers
    gives, on every machine and for any number of ranks.

    ``out="uint32"`` gives tokens out without a sign, the same bits.
    For a mixture ``uri`` maps names to sources, and ``mix`` the same names to weights
    (``{"a": 0.7, "b": 0.3}``, with at most nine digits behind the point): which source each row
    comes from is a function of seed and step.

    ``budget`` bounds the bytes of decoded row groups (48 a document, and 2 a token where all are
    below 65,536, else 4); ``None`` takes what a step needs and a window more to read ahead.
    ``prefetch`` steps are made ahead by a thread; with 0 each is made when it is asked for.
    ``threads`` decode, as many as there are cores if 0. ``storage_options`` (``endpoint``,
    ``region``, ``access_key_id`` …) come before the environment's ``AWS_*`` and the like, and are
    never shown.

    Threads may share a loader: each step is given to one of them. Whatever is made ahead, the
    position is that of the next step that is given. A step that cannot be read raises, and is tried
    again by the next one who asks. The loader ends its threads when it is closed, forgotten, or the
    interpreter ends; in a child made by ``fork`` it raises ``RuntimeError``.

    Raises ``ValueError`` for settings that do not fit, ``StoreError`` for damaged data,
    ``OSError`` for what cannot be read.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]],
        *,
        lanes: int = 256,
        window: int = 64,
        seq_len: int = 2048,
        seed: int = 0,
        rank: int = 0,
        world: int = 1,
        mix: Mapping[str, Any] | None = None,
        out: str = "int32",
        budget: int | None = None,
        column: str = "tokens",
        storage_options: Mapping[str, str] | None = None,
        prefetch: int = 2,
        threads: int = 0,
    ) -> None:
        numbers = {
            "lanes": integer(lanes, "lanes", 1),
            "window": integer(window, "window", 1),
            "seq_len": integer(seq_len, "seq_len", 1),
            "seed": integer(seed, "seed"),
            "rank": integer(rank, "rank"),
            "world": integer(world, "world", 1),
        }
        if out not in ("int32", "uint32"):
            raise ValueError(f"out={out!r}: tokens are given out as 'int32' or 'uint32'")
        ahead = integer(prefetch, "prefetch")
        self._source = TokenSource(
            _places(uri, mix),
            ",".join(f"{key}={value}" for key, value in {**numbers, "out": out}.items()),
            mix=None if mix is None else ",".join(f"{name}={_weight(mix[name])}" for name in mix),
            column=column,
            budget=None if budget is None else integer(budget, "budget"),
            threads=integer(threads, "threads", most=MOST_THREADS),
            storage_options=_storage(storage_options),
        )
        self.rank, self.world = numbers["rank"], numbers["world"]
        self._step: int | None = 0
        self._closed = self._failed = False
        self._lock, self._process = threading.RLock(), os.getpid()
        self._pipeline = Pipeline.tokens(self._source, ahead)
        self._threads = [
            threading.Thread(target=self._pipeline.work, name="batchfs-tokens", daemon=True)
        ]
        self._finalizer = weakref.finalize(self, _end, self._pipeline, self._threads)
        for thread in self._threads:
            thread.start()

    @property
    def spec(self) -> str:
        """The settings that the order depends on, as a mount takes them."""
        return self._source.spec

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of a step's rows: ``(lanes / world, seq_len)``."""
        return self._source.shape

    @property
    def step(self) -> int:
        """The next step."""
        if self._step is None:
            raise RuntimeError("there is no step after 2^64 - 1")
        return self._step

    @property
    def epoch(self) -> int:
        """The epoch of the next step: the one that the step's first token is in."""
        return self._source.epoch_of(self.step)

    @property
    def epoch_tokens(self) -> int:
        """The tokens of an epoch, of all ranks together."""
        return self._source.epoch_tokens

    @property
    def documents(self) -> int:
        """The documents of the dataset."""
        return self._source.documents

    @property
    def figures(self) -> dict[str, int]:
        """What was read and decoded so far, and the bytes of decoded row groups."""
        return self._source.figures()

    def first_step(self, epoch: int) -> int:
        """The first step of an epoch."""
        step = self._source.first_step(integer(epoch, "epoch"))
        if step is None:
            raise ValueError(f"epoch {epoch} begins after the last step that there is, 2^64 - 1")
        return step

    def next(self) -> TokenBatch:
        """The next step, of whatever epoch."""
        with self._turn():
            return self._given(self.step)

    def _given(self, step: int) -> TokenBatch:
        """Gives ``step``, which is the next one; in turn."""
        if self._closed:
            raise RuntimeError("this TokenLoader is closed")
        if self._failed:
            # Not before: what was made ahead meanwhile has failed, too.
            self.seek(step)
        batch = self._made()
        if batch.step != step:
            # A Ctrl-C came when one was made, and before it was given.
            self.seek(step)
            batch = self._made()
        self._step = step + 1 if step + 1 < 2**64 else None
        return batch

    def _made(self) -> TokenBatch:
        try:
            batch = self._pipeline.next()
        except Exception:
            self._failed = True
            raise
        if batch is None:
            raise RuntimeError("this TokenLoader is closed")
        return batch

    def _turn(self) -> contextlib.AbstractContextManager[Any]:
        """One thread at a time, so that the position is that of what was given.

        In a child made by fork the lock can be held for ever; all that it guards raises there.
        """
        return self._lock if self._process == os.getpid() else contextlib.nullcontext()

    def __iter__(self) -> Iterator[TokenBatch]:
        epoch = self.epoch
        while (batch := self._next_of(epoch)) is not None:
            yield batch

    def _next_of(self, epoch: int) -> TokenBatch | None:
        """The next step if it is of this epoch, which another thread may have ended."""
        with self._turn():
            if self._step is None or self._source.epoch_of(self._step) != epoch:
                return None
            return self._given(self._step)

    def seek(self, step: int) -> None:
        """Makes ``step`` (0 to 2^64 - 1) the next one. Nothing before it is read for that."""
        number = integer(step, "step")
        with self._turn():
            if self._closed:
                raise RuntimeError("this TokenLoader is closed")
            self._pipeline.set_position(0, number)
            self._step, self._failed = number, False

    def checkpoint(self) -> bytes:
        """The position, as bytes: the next step of all ranks, and what it is a step of.

        It is the same on all ranks that are at the same step, and good for any number of them.
        """
        return self._source.state(self.step)

    def resume(self, state: bytes, *, force: bool = False) -> None:
        """Goes on from a :meth:`checkpoint`, of this or of any other number of ranks.

        Raises ``ValueError`` for a state of another version, of other settings or of data that have
        changed since, and names what differs; the position is then as it was. With ``force`` the
        step is taken all the same, and a warning is logged. Where the data lie makes no difference.
        """
        step, differs = self._source.read_state(bytes(memoryview(state)))
        if differs is not None:
            if not force:
                raise ValueError(
                    f"{differs}; resume(state, force=True) goes to its step all the same"
                )
            _LOG.warning("%s: forced to step %d of this one", differs, step)
        self.seek(step)

    def close(self) -> None:
        """Ends the threads and throws away what was made ahead. A second call does nothing."""
        self._closed = True
        self._finalizer()

    def __enter__(self) -> TokenLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __reduce__(self) -> tuple:
        raise TypeError(
            "a TokenLoader has threads and does not pickle; make one in each process, "
            "and pass on what checkpoint() gives"
        )

    def __repr__(self) -> str:
        return f"TokenLoader({self._source.origin!r}, {self.spec!r}, step={self._step})"


def _places(uri: Any, mix: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    if isinstance(uri, Mapping) != (mix is not None):
        raise TypeError(
            "a mixture is given as two mappings, uri and mix; without mix, uri is one source"
        )
    if isinstance(uri, Mapping):
        return [(name, os.fspath(place)) for name, place in uri.items()]
    return [("", os.fspath(uri))]


def _storage(options: Mapping[str, str] | None) -> dict[str, str]:
    checked = dict(options or {})
    for key, value in checked.items():
        if not isinstance(key, str) or not isinstance(value, str):
            # Without the value, which may be secret.
            raise TypeError(f"storage_options map names to text; {key!r} does not")
    return checked


def _weight(weight: Any) -> str:
    # A float's shortest spelling is the number that was meant, but without an exponent.
    return f"{Decimal(repr(float(weight))):f}" if isinstance(weight, float) else str(weight)


def merge(parts: Iterable[bytes]) -> bytes:
    """Joins the checkpoints of all ranks into one.

    They have to be at the same step of the same run: ``ValueError`` names the first two that are
    not.
    """
    return _merge([bytes(memoryview(part)) for part in parts])
