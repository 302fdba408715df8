"""The order of records: which of them make up the batch of a step."""

from __future__ import annotations

import enum
import operator
from typing import Any

import numpy as np

from . import _native
from ._numbers import MOST, integer

__all__ = ["Sampler"]


class Sampler(_native.Steps):
    """Draws the record ids of one step after the other, without end.

    ``batch_size`` counts the records of all ranks together; this one gets the ``rank`` th of
    ``world`` equal parts, ``local_batch`` records. The order is that of ``batchfs mount --spec``:
    the same spec, length and step give the same ids everywhere, and any step is found at once.

    ``next()`` and iteration return one uint64 array again and again, filled anew: copy what has to
    outlive the next draw. ``at(step)`` gives the ids of any step and changes nothing.

    Modes: ``SEQUENTIAL`` in order, then from the start again; ``IID`` uniform with replacement;
    ``CYCLIC`` a fresh permutation in each cycle, whose remainder is left out (``remainder="drop"``)
    or goes on into the next one (``"carry"``).

    Raises ``ValueError`` for what does not fit, such as a batch larger than ``length`` in another
    mode than ``IID``, which would repeat records within a batch.
    """

    _args: tuple[Any, ...]

    class Mode(enum.IntEnum):
        """How records are chosen."""

        SEQUENTIAL = 0
        IID = 1
        CYCLIC = 2

    def __new__(
        cls,
        length: int,
        batch_size: int,
        mode: int = Mode.CYCLIC,
        seed: int = 42,
        *,
        rank: int = 0,
        world: int = 1,
        remainder: str = "drop",
    ) -> Sampler:
        kind = operator.index(mode)
        if kind not in (0, 1, 2):
            raise ValueError(f"mode {mode!r} is not valid; it is SEQUENTIAL, IID or CYCLIC")
        args = (
            integer(length, "length", 1),
            integer(batch_size, "batch_size", 1),
            kind,
            integer(seed, "seed"),
            integer(rank, "rank"),
            integer(world, "world", 1),
            remainder,
        )
        self = super().__new__(cls, *args)
        self._args = args
        return self

    def at(self, step: int) -> np.ndarray:
        """The record ids of any step (0 to 2^64 - 1), in an array of its own. Changes nothing."""
        return super().at(integer(step, "step"))

    def seek(self, step: int) -> None:
        """Makes ``step`` (0 to 2^64 - 1) the next one, at once."""
        super().seek(integer(step, "step"))

    def state_dict(self) -> dict[str, Any]:
        """The spec, the length and the next step, which is ``None`` after the last one of all."""
        return {"spec": self.spec, "length": self.length, "step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Goes on from a state. Raises ``ValueError`` for that of another spec or length."""
        for key in ("spec", "length"):
            if state[key] != getattr(self, key):
                raise ValueError(
                    f"the state is of a sampler with {key}={state[key]!r}, "
                    f"this one has {getattr(self, key)!r}"
                )
        _go_to(self, state["step"])

    def __reduce__(self) -> tuple:
        return _made, (type(self), self._args, self.step)

    def __repr__(self) -> str:
        return f"Sampler({self.spec!r}, length={self.length}, step={self.step})"


def _made(kind: type, args: tuple, step: int) -> Sampler:
    length, batch, mode, seed, rank, world, remainder = args
    made = kind(length, batch, mode, seed, rank=rank, world=world, remainder=remainder)
    _go_to(made, step)
    return made


def _go_to(sampler: Sampler, step: int | None) -> None:
    if step is None:
        sampler.seek(MOST)
        _native.Steps.next(sampler)
    else:
        sampler.seek(step)
