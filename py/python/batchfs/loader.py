"""The loader: sampled batches of aligned streams, one after the other."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from ._native import Pipeline
from ._numbers import MOST_THREADS, integer

__all__ = ["Loader"]


# Seconds that a forgotten loader, or the end of the interpreter, waits for a transform.
_PATIENCE = 5.0


class _Held:
    """What keeps a transform, for the threads to know it weakly."""

    __slots__ = ("__weakref__", "call")

    def __init__(self, call: Callable[[list[dict[str, Any]]], Any]) -> None:
        self.call = call


def _end(
    pipeline: Pipeline, threads: list[threading.Thread], patience: float | None = _PATIENCE
) -> None:
    pipeline.stop()
    if threading.current_thread() in threads:
        # A transform lets go of its loader, or is where the garbage collector runs.
        return
    end = None if patience is None else time.monotonic() + patience
    for thread in threads:
        # A child made by fork has none of them.
        if thread.is_alive():
            thread.join(None if end is None else max(0.0, end - time.monotonic()))


class Loader:
    """Gathers the batches that a sampler draws, without end, in the background or at once.

    ``streams`` maps names to lists of views: one view per position, the same number for each name,
    all with the same number of records. The sampled batch is cut into equal contiguous parts, one
    for each position, and a step is a list with a ``{name: batch}`` per position: a ``DLTensor``
    for dense streams, a ``RaggedBatch`` for ragged ones.

    ``sampler`` is a :class:`~batchfs.sampler.Sampler` or any object whose ``next()`` returns record
    indices; ``StopIteration`` from it ends the loader. It may draw from fewer records than there
    are, the first ones. ``transform`` gets the list of a step, and what it returns is delivered.

    With ``workers=0`` all of it happens in ``next()``. Otherwise ``workers`` threads draw, gather
    and transform ahead; at most ``workers + prefetch`` batches are alive that were not delivered.
    ``transform`` is then called from several threads. Batches come in the sampler's order, or with
    ``ordered=False`` as they are ready.

    An exception, of ``transform`` or for a damaged record, is raised by the ``next()`` whose batch
    it was. That batch counts as delivered, and the loader goes on with the one after it. Ctrl-C
    while ``next()`` waits or works is no such error: its batch is the next one again.

    ``state_dict()`` says how many batches were *delivered*; what was made ahead does not count.

    The loader closes neither sampler nor views. It ends its threads when it is closed, forgotten,
    or the interpreter ends. After a ``fork`` it works in the child with ``workers=0``, unless
    another thread was in ``next()`` then, and raises ``RuntimeError`` otherwise.
    """

    def __init__(
        self,
        streams: dict[str, list[Any]],
        sampler: Any,
        *,
        workers: int = 4,
        prefetch: int = 4,
        transform: Callable[[list[dict[str, Any]]], Any] | None = None,
        ordered: bool = True,
    ) -> None:
        self.streams = {name: _views(name, views) for name, views in dict(streams).items()}
        self.sampler = sampler
        self.transform = transform
        self.workers = integer(workers, "workers", most=MOST_THREADS)
        self.prefetch = integer(prefetch, "prefetch", 1)
        self.ordered = bool(ordered)
        if transform is not None and not callable(transform):
            raise TypeError("transform is a callable that takes the list of shards")
        # The threads know the pipeline, and it neither the loader nor, but weakly, the transform,
        # so that a forgotten loader can end them.
        self._held = None if transform is None else _Held(transform)
        self._pipeline = Pipeline(
            self.streams,
            sampler,
            workers=self.workers,
            prefetch=self.prefetch,
            transform=None if transform is None else weakref.ref(self._held),
            ordered=self.ordered,
        )
        self.shard_count = self._pipeline.shard_count
        """Positions: the length of the list of a step."""
        self.threads = [
            threading.Thread(target=self._pipeline.work, name=f"batchfs-loader-{i}", daemon=True)
            for i in range(self.workers)
        ]
        self._finalizer = weakref.finalize(self, _end, self._pipeline, self.threads)
        for thread in self.threads:
            thread.start()

    def __iter__(self) -> Loader:
        return self

    def __next__(self) -> Any:
        batch = self._pipeline.next()
        if batch is None:
            raise StopIteration
        return batch

    def __len__(self) -> int:
        raise TypeError("a Loader has no length, as it has no end")

    def state_dict(self) -> dict[str, Any]:
        """The position: ``delivered`` batches, and the sampler's ``step`` to go on with.

        ``step`` is ``None`` for samplers of your own; ``seekable`` says whether they can be set
        back to a step by ``seek(delivered)``.

        Raises ``RuntimeError`` with ``ordered=False`` and several workers, which have no position.
        """
        delivered, step = self._pipeline.position()
        seekable = step is not None or hasattr(self.sampler, "seek")
        return {
            "version": 1,
            "delivered": delivered,
            "step": step,
            "seekable": seekable,
            **self._order(),
        }

    def _order(self) -> dict[str, Any]:
        """What a sampler says of its order: its spec and how many records it draws from."""
        spec = getattr(self.sampler, "spec", None)
        if not isinstance(spec, str):
            return {}
        length = getattr(self.sampler, "length", None)
        return {"spec": spec, "length": length} if isinstance(length, int) else {"spec": spec}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state: the next batch is the one after those that were delivered.

        What was made ahead is thrown away. Raises ``ValueError`` for what is no state, and for that
        of another spec or number of records, ``RuntimeError`` if the sampler has no ``seek(step)``.
        """
        if not isinstance(state, Mapping) or state.get("version") != 1:
            raise ValueError(f"this is no state of a Loader: {state!r}")
        own = self._order()
        for key in ("spec", "length"):
            # States of earlier versions have no length.
            if state.get(key) != own.get(key) and (key in state or key == "spec"):
                raise ValueError(
                    f"the state is of a sampler with {key} {state.get(key)!r}, "
                    f"this one's is {own.get(key)!r}"
                )
        delivered, step = (_place(state.get(key), key) for key in ("delivered", "step"))
        if delivered is None:
            raise ValueError(f"this is no state of a Loader: {state!r}")
        self._pipeline.set_position(delivered, step)

    def close(self) -> None:
        """Ends the threads and throws away what was made ahead. A second call does nothing.

        It waits for a ``transform`` that is at work, unless that is who calls it.
        """
        self._finalizer.detach()
        _end(self._pipeline, self.threads, None)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _place(value: Any, name: str) -> int | None:
    if value is None:
        return None
    try:
        return integer(value, name)
    except TypeError as e:
        raise ValueError(f"this is no state of a Loader: {e}") from None


def _views(name: str, views: Any) -> list[Any]:
    if not isinstance(views, list) or not views:
        raise ValueError(f"streams map names to lists of views; {name!r} has {views!r}")
    return list(views)
