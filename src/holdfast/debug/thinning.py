"""Remembering a run of any length in bounded memory: the newest points in full, the rest evenly spread.

Dropping every second point of the older half, again and again, would forget the beginning: what is oldest is halved
every time. Here the points that stay are those nearest to evenly spaced places over all that came before, so that the
older half is always the whole story, only coarser.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["kept_rows", "spread"]

Rows = NDArray[np.int64]


def spread(places: NDArray[np.float64], most: int) -> Rows:
    """Which of some rising places stay, so that at most ``most`` do: the first, the last, and evenly in between."""
    if len(places) <= most:
        return np.arange(len(places))
    wanted = np.linspace(float(places[0]), float(places[-1]), max(2, most))
    return np.unique(np.minimum(np.searchsorted(places, wanted), len(places) - 1))


def kept_rows(
    origins: Sequence[int] | Rows, fields: Sequence[Sequence[int] | Rows], precious: Sequence[int] | Rows = ()
) -> Rows:
    """Which rows of a table outlive one thinning: its newer half, and half of the older one.

    Args:
        origins: for each row held now, which row of the log it was.
        fields: for each field, the rows it stands in: rows with the same fields are of one kind (training, evaluation)
            and each kind is thinned by itself.
        precious: rows that must stay, unless they are many.
    """
    count, old = len(origins), len(origins) // 2
    kinds = np.zeros(count, dtype=np.uint64)
    keys = np.random.default_rng(20240521).integers(1, 2**63, size=len(fields), dtype=np.uint64)
    for rows, key in zip(fields, keys, strict=True):
        kinds[np.asarray(rows, dtype=np.int64)] ^= key
    if len(np.unique(kinds[:old])) > old // 4:  # Hardly two rows are alike: there is no kind to go by.
        kinds[:] = 0
    places = np.asarray(origins, dtype=np.float64)
    keep = np.ones(count, dtype=bool)
    keep[:old] = False
    for kind in np.unique(kinds[:old]):
        own = np.flatnonzero(kinds[:old] == kind)
        keep[own[spread(places[own], (len(own) + 1) // 2)]] = True
    if 0 < len(precious) < count // 4:
        keep[np.asarray(precious, dtype=np.int64)] = True
    return np.flatnonzero(keep)
