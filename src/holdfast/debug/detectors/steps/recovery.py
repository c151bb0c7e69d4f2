"""Whether a rise recovered: the fraction of a rise that is gone, and of the progress that was lost."""

from __future__ import annotations

__all__ = ["given_up", "recovered_share"]


def recovered_share(*, before: float, peak: float, after: float) -> float:
    """Return the fraction of a rise that is gone, from 0 (none) to 1 (all of it).

    >>> recovered_share(before=1.0, peak=5.0, after=2.0)
    0.75
    """
    height = peak - before
    return min(1.0, max(0.0, (peak - after) / height)) if height > 0 else 0.0


def given_up(*, start: float, best: float, end: float) -> float:
    """Return the fraction of the progress from ``start`` to ``best`` that was lost at the end.

    1 is all of it; more means worse than at the start.

    >>> given_up(start=4.0, best=2.0, end=3.0)
    0.5
    """
    progress = start - best
    return (end - best) / progress if progress > 0 else float("inf")
