"""Integers that are given, within their range."""

from __future__ import annotations

import operator
from typing import Any

MOST = 2**64 - 1
"""Steps, seeds, counts and bytes are 64 bits everywhere."""
MOST_THREADS = 1024
"""More would only wait for each other."""


def integer(value: Any, name: str, least: int = 0, most: int = MOST) -> int:
    """``value`` as an int from ``least`` to ``most``.

    Raises ``TypeError`` for what is none, ``ValueError`` with name and range for others.
    """
    if isinstance(value, bool):
        raise TypeError(f"{name} is an integer, not {value!r}")
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} is an integer, not {value!r}") from None
    within(number, name, least, most)
    return number


def within(number: int, name: str, least: int, most: int) -> None:
    """Raises ``ValueError`` for a number that is not in its range."""
    if not least <= number <= most:
        raise ValueError(f"{name}={_shown(number)} is not valid; it is {least} to {_shown(most)}")


def _shown(number: int) -> str:
    if number == MOST:
        return "2^64 - 1"
    # Python spells no integers of thousands of digits.
    return str(number) if number.bit_length() <= 256 else f"({number.bit_length()} bits)"
