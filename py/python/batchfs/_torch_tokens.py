"""Token streams for PyTorch, one loader per process of a distributed run."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import distributed
from torch.utils import data

from . import tokens


class TokenStep(NamedTuple):
    """A step of this rank: its rows, and where their tokens come from."""

    tokens: torch.Tensor
    """``(lanes / world, seq_len)``, int32, or uint32 with ``out="uint32"``."""
    cu_seqlens: torch.Tensor
    """Where each piece of a document begins in the rows joined, and the end: int32."""
    document_ids: torch.Tensor
    """The document of each piece: int64."""
    document_offsets: torch.Tensor
    """Where each piece begins in its document: int64."""
    step: int
    epoch: int


def _place(rank: int | None, world: int | None) -> tuple[int, int]:
    if (rank is None) != (world is None):
        raise ValueError("rank and world are given together, or both taken from torch.distributed")
    if rank is not None and world is not None:
        return rank, world
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    if os.environ.get("WORLD_SIZE", "1") != "1":
        # Else each process would silently read everything.
        raise RuntimeError(
            f"WORLD_SIZE is {os.environ['WORLD_SIZE']} and torch.distributed is not initialized: "
            "call torch.distributed.init_process_group() first, or give rank= and world="
        )
    return 0, 1


class TokenDataset(data.IterableDataset):
    """An iterable Dataset over a :class:`batchfs.TokenLoader`: each item is one step.

        dataset = TokenDataset("s3://bucket/fineweb-edu", lanes=512, seq_len=2048)
        loader = DataLoader(dataset, batch_size=None, num_workers=0)
        while dataset.epoch < 3:
            for batch in loader:  # the rest of this epoch
                train(batch.tokens)
            save(dataset.state_dict())  # on every rank

    Settings are those of ``TokenLoader``. Rank and world are those of ``torch.distributed``'s
    default group when this is made, unless both are given; without it there is one rank.

    ``state_dict()`` is the state of all ranks together, and is called on every one of them.
    ``load_state_dict()`` takes it on any number of ranks that divides the lanes. The position is
    that of the next item that the dataset gives.

    The parallelism is in the loader: workers of a ``DataLoader`` are refused.
    """

    def __init__(
        self, uri: Any, *, rank: int | None = None, world: int | None = None, **settings: Any
    ) -> None:
        # Given by hand, the ranks need not be those of the group, and are not gathered from it.
        self._alone = rank is not None
        place, size = _place(rank, world)
        self._loader = tokens.TokenLoader(uri, rank=place, world=size, **settings)

    @property
    def loader(self) -> tokens.TokenLoader:
        """The loader below."""
        return self._loader

    @property
    def step(self) -> int:
        """The next step."""
        return self._loader.step

    @property
    def epoch(self) -> int:
        """The epoch of the next step."""
        return self._loader.epoch

    def seek(self, step: int) -> None:
        """Makes ``step`` the next one; on every rank the same."""
        self._loader.seek(step)

    def __iter__(self) -> Iterator[TokenStep]:
        if data.get_worker_info() is not None:
            raise RuntimeError(
                "a TokenDataset has threads of its own: "
                "use DataLoader(dataset, batch_size=None, num_workers=0)"
            )
        for batch in self._loader:
            yield TokenStep(
                batch.tokens.torch(),
                batch.cu_seqlens.torch(),
                batch.document_ids.torch(),
                batch.document_offsets.torch(),
                batch.step,
                batch.epoch,
            )

    def state_dict(self) -> dict[str, Any]:
        """The state of all ranks together. To be called on every rank: it gathers what they say.

        Raises ``RuntimeError`` on all of them if they are at different steps, or of different data.
        """
        state = self._loader.checkpoint()
        if self._loader.world > 1 and not self._alone:
            # Equal states are one; a hash of it is enough to tell.
            own = (self._loader.step, hashlib.sha256(state).hexdigest())
            all_ranks: list[Any] = [None] * distributed.get_world_size()
            distributed.all_gather_object(all_ranks, own)
            for rank, other in enumerate(all_ranks):
                if other[0] != all_ranks[0][0]:
                    raise RuntimeError(
                        f"the ranks are at different steps: rank 0 at {all_ranks[0][0]}, "
                        f"rank {rank} at {other[0]}; call state_dict() on all after the same step"
                    )
                if other != all_ranks[0]:
                    raise RuntimeError(
                        f"rank {rank} has other data or other settings than rank 0; "
                        "all have to read the same"
                    )
        return {"batchfs.tokens": state.decode()}

    def load_state_dict(self, state: dict[str, Any], *, force: bool = False) -> None:
        """Goes on from a state, on this rank. Raises what ``TokenLoader.resume`` does."""
        try:
            kept = state["batchfs.tokens"]
        except (KeyError, TypeError):
            raise ValueError("this is no state of a TokenDataset") from None
        self._loader.resume(kept.encode() if isinstance(kept, str) else kept, force=force)

    def close(self) -> None:
        """Ends the loader's threads."""
        self._loader.close()

    def __repr__(self) -> str:
        return f"TokenDataset({self._loader!r})"
