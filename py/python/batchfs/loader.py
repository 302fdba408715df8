"""The loader: sampled batches of aligned streams, one after the other."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any

from ._native import Pipeline
from ._numbers import MOST_THREADS, integer

__all__ = ["Loader"]


def _end(pipeline: Pipeline, threads: list[threading.Thread]) -> None:
    pipeline.stop()
    for thread in threads:
        # A child made by fork has none of them; a transform that lets go of its loader is one.
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join()


class Loader:
    """Gathers the batches that a sampler draws, without end, in the background or at once.

    ``streams`` maps names to lists of views: one view per position, the same number for each name,
    all with the same number of records. The sampled batch is cut into equal contiguous parts, one
    for each position, and a step is a list with a ``{name: batch}`` per position: a ``DLTensor``
    for dense streams, a ``RaggedBatch`` for ragged ones.

    ``sampler`` is a :class:`~batchfs.sampler.Sampler` or any object whose ``next()`` returns record
    indices; ``StopIteration`` from it ends the loader. ``transform`` gets the list of a step, and
    what it returns is delivered.

    With ``workers=0`` all of it happens in ``next()``. Otherwise ``workers`` threads draw, gather
    and transform ahead; at most ``workers + prefetch`` batches are alive that were not delivered.
    ``transform`` is then called from several threads. Batches come in the sampler's order, or with
    ``ordered=False`` as they are ready.

    An exception, of ``transform`` or for a damaged record, is raised by the ``next()`` whose batch
    it was. That batch counts as delivered, and the loader goes on with the one after it.

    ``state_dict()`` says how many batches were *delivered*; what was made ahead does not count.

    The loader closes neither sampler nor views. It ends its threads when it is closed, forgotten,
    or the interpreter ends. After a ``fork`` it works in the child with ``workers=0`` and raises
    ``RuntimeError`` otherwise.
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
        self._pipeline = Pipeline(
            self.streams,
            sampler,
            workers=self.workers,
            prefetch=self.prefetch,
            transform=transform,
            ordered=self.ordered,
        )
        self.shard_count = self._pipeline.shard_count
        """Positions: the length of the list of a step."""
        # The threads know the pipeline and not the loader, so that a forgotten one can end them.
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
        state = {"version": 1, "delivered": delivered, "step": step, "seekable": seekable}
        spec = getattr(self.sampler, "spec", None)
        return {**state, "spec": spec} if isinstance(spec, str) else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state: the next batch is the one after those that were delivered.

        What was made ahead is thrown away. Raises ``ValueError`` for the state of another spec,
        ``RuntimeError`` if the sampler has no ``seek(step)``.
        """
        if state.get("version") != 1:
            raise ValueError(f"this is no state of a Loader: version {state.get('version')!r}")
        spec = getattr(self.sampler, "spec", None)
        if "spec" in state and state["spec"] != spec:
            raise ValueError(f"the state is of spec {state['spec']!r}, the sampler's is {spec!r}")
        step = state["step"]
        delivered = integer(state["delivered"], "delivered")
        self._pipeline.set_position(delivered, None if step is None else integer(step, "step"))

    def close(self) -> None:
        """Ends the threads and throws away what was made ahead. A second call does nothing."""
        self._finalizer()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _views(name: str, views: Any) -> list[Any]:
    if not isinstance(views, list) or not views:
        raise ValueError(f"streams map names to lists of views; {name!r} has {views!r}")
    return list(views)
