"""The integers of the order, distinguished by type: a position is not an ordinal, and an ordinal is not an index.

At run time they are arrays of int64, or an int for a single one. The type checker proves that a source's cycle takes
only what a mixture returns for a position, and that no step is used as a position.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import index
from typing import Any, NewType

import numpy as np

from holdfast.errors import ConfigError

__all__ = [
    "MAX_STEP",
    "Bool",
    "Index",
    "Indices",
    "Int64",
    "Ordinal",
    "Ordinals",
    "Position",
    "Positions",
    "one_position",
    "whole_number",
    "whole_numbers",
]

Int64 = np.ndarray[tuple[Any, ...], np.dtype[np.int64]]
Bool = np.ndarray[tuple[Any, ...], np.dtype[np.bool_]]

Positions = NewType("Positions", Int64)
"""Places in the endless order of the whole stream."""

Ordinals = NewType("Ordinals", Int64)
"""A source's samples counted from its start, over all epochs."""

Indices = NewType("Indices", Int64)
"""Samples' numbers inside their source, 0 … N-1."""


Position = NewType("Position", int)
Ordinal = NewType("Ordinal", int)
Index = NewType("Index", int)


def one_position(position: Position) -> Positions:
    """Return an array of one position."""
    return Positions(np.array([position], dtype=np.int64))


MAX_STEP = 1 << 60  # no step is beyond this: three times as much must still fit into 64 bits


def whole_number(value: Any, what: str) -> int:
    """Return the value as an int, or raise ``ConfigError``: a truncated float would name another sample."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return index(value)
    except TypeError:
        raise ConfigError(f"{what} must be a whole number", found=f"{value!r}"[:80]) from None


def whole_numbers(values: Iterable[Any], what: str) -> set[int]:
    """Return the numbers as ints, or raise ``ConfigError``."""
    try:
        each = list(values)
    except TypeError:
        raise ConfigError(f"{what} must be a list or another iterable", found=f"{values!r}"[:80]) from None
    return {whole_number(value, f"each of {what}") for value in each}
