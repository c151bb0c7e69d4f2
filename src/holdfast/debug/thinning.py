"""Keeps a run of any length in bounded memory: the newest rows in full, the rest evenly spread.

Repeatedly dropping every second row of the older half would lose the beginning, because the oldest rows are halved
every time. Here the rows nearest to evenly spaced points over the whole past are kept, so that the older half always
covers all of it, only more coarsely. Rows with a non-finite value are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Held", "thin"]

Rows = NDArray[np.int64]

MAX_PRECIOUS_SHARE = 4
"""Rows that must be kept are, unless they are more than one in this many: then they are common, and thinned too."""
MAX_KINDS_SHARE = 4
"""If there are more kinds of rows than one per this many rows, kinds are meaningless."""


class Held(Protocol):
    """Stored rows that can be thinned."""

    def __len__(self) -> int:
        """Return the number of stored rows."""
        ...

    def origins(self) -> Rows:
        """Return the row of the log that each stored row was."""
        ...

    def fields(self) -> Sequence[Rows]:
        """Return the rows that contain each field."""
        ...

    def odd(self) -> Rows:
        """Return the rows with a non-finite value."""
        ...

    def keep(self, rows: Rows) -> None:
        """Keep only these rows, renumbered."""
        ...


def thin(held: Held, most: int) -> bool:
    """Thin the older rows until at most ``most`` are kept; return whether any were dropped."""
    before = len(held)
    while len(held) > most:
        held.keep(_kept(held.origins(), held.fields(), held.odd()))
    return len(held) < before


def _kept(origins: Rows, fields: Sequence[Rows], precious: Rows) -> Rows:
    """Return the rows that survive one thinning: the newer half, and half of the older one.

    Rows with the same fields are of one kind (training, evaluation), and each kind is thinned separately.
    """
    count, old = len(origins), len(origins) // 2
    kinds = np.zeros(count, dtype=np.uint64)
    keys = np.random.default_rng(20240521).integers(1, 2**63, size=len(fields), dtype=np.uint64)
    for rows, key in zip(fields, keys, strict=True):
        kinds[rows] ^= key
    if len(np.unique(kinds[:old])) > old // MAX_KINDS_SHARE:
        kinds[:] = 0
    places = origins.astype(np.float64)
    keep = np.ones(count, dtype=bool)
    keep[:old] = False
    for kind in np.unique(kinds[:old]):
        own = np.flatnonzero(kinds[:old] == kind)
        keep[own[_spread(places[own], (len(own) + 1) // 2)]] = True
    if 0 < len(precious) < count // MAX_PRECIOUS_SHARE:
        keep[precious] = True
    return np.flatnonzero(keep)


def _spread(places: NDArray[np.float64], most: int) -> Rows:
    """Return at most ``most`` indices: the first, the last, and evenly spaced ones in between."""
    if len(places) <= most:
        return np.arange(len(places))
    wanted = np.linspace(float(places[0]), float(places[-1]), max(2, most))
    return np.unique(np.minimum(np.searchsorted(places, wanted), len(places) - 1))
