"""Remembering a run of any length in bounded memory: the newest rows in full, the rest evenly spread.

Dropping every second row of the older half, again and again, would forget the beginning: what is oldest is halved
every time. Here the rows that stay are those nearest to evenly spaced places over all that came before, so that the
older half is always the whole story, only coarser. Rows with a value that is not finite stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Held", "thin"]

Rows = NDArray[np.int64]

MAX_PRECIOUS_SHARE = 4
"""Rows that must stay do so unless they are more than one in this many: then they are the rule, and thinned too."""
MAX_KINDS_SHARE = 4
"""Where there are more kinds of rows than one per this many rows, hardly two are alike: kinds say nothing."""


class Held(Protocol):
    """Rows that are held, and can be held more coarsely."""

    def __len__(self) -> int:
        """Return how many rows are held."""
        ...

    def origins(self) -> Rows:
        """Return, for each row held, which row of the log it was."""
        ...

    def fields(self) -> Sequence[Rows]:
        """Return, for each field, the rows it is in."""
        ...

    def odd(self) -> Rows:
        """Return the rows with a value that is not finite."""
        ...

    def keep(self, rows: Rows) -> None:
        """Hold these rows only, renumbered."""
        ...


def thin(held: Held, most: int) -> bool:
    """Hold the older rows more coarsely until no more than ``most`` are held; whether any went."""
    before = len(held)
    while len(held) > most:
        held.keep(_kept(held.origins(), held.fields(), held.odd()))
    return len(held) < before


def _kept(origins: Rows, fields: Sequence[Rows], precious: Rows) -> Rows:
    """Return the rows that outlive one thinning: the newer half, and half of the older one.

    Rows with the same fields are of one kind (training, evaluation), and each kind is thinned by itself.
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
    """Return which places stay, so that at most ``most`` do: the first, the last, and evenly in between."""
    if len(places) <= most:
        return np.arange(len(places))
    wanted = np.linspace(float(places[0]), float(places[-1]), max(2, most))
    return np.unique(np.minimum(np.searchsorted(places, wanted), len(places) - 1))
