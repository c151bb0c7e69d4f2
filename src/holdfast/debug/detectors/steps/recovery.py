"""Whether what rose came back: shares of a rise that is gone again, and of progress that was given up."""

from __future__ import annotations

__all__ = ["given_up", "recovered_share"]


def recovered_share(*, before: float, peak: float, after: float) -> float:
    """Return how much of a rise is gone again, from 0 (nothing) to 1 (all of it).

    >>> recovered_share(before=1.0, peak=5.0, after=2.0)
    0.75
    """
    height = peak - before
    return min(1.0, max(0.0, (peak - after) / height)) if height > 0 else 0.0


def given_up(*, start: float, best: float, end: float) -> float:
    """Return how much of the progress from ``start`` to ``best`` the end has lost.

    1 is all of it, more is worse than ever.

    >>> given_up(start=4.0, best=2.0, end=3.0)
    0.5
    """
    progress = start - best
    return (end - best) / progress if progress > 0 else float("inf")
