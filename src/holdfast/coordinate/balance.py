"""Shares in proportion to speed, and one decision for all ranks.

The model: every ``interval`` steps there is one decision, a record in the store that is created once. Rank 0 creates it
ahead of time if a rank's throughput no longer matches its share. Every rank asks for it just before it delivers that
step, and a rank that finds none creates "no change". The first to create the record decides and all others read it.
Nobody waits, and every rank adopts the same shares at the same step.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence

import numpy as np

from holdfast.coordinate.stores.contract import KeyValue

__all__ = ["agreed_shares", "balanced_shares", "propose_shares", "stray"]


def balanced_shares(throughputs: Sequence[float], global_batch_size: int) -> tuple[float, ...]:
    """Return the shares at which all ranks finish their part of a step at the same time.

    Each share is a whole number of samples, at least one, divided by the global batch size. Samples left over after
    rounding down go, one by one, to the rank that would finish first, which minimises the slowest rank's time.
    """
    speed = np.asarray(throughputs, dtype=np.float64)
    sizes = np.maximum(1, np.floor(global_batch_size * speed / speed.sum())).astype(np.int64)
    left = int(global_batch_size - sizes.sum())
    if left >= 0:
        soonest = [((size + 1) / fast, rank) for rank, (size, fast) in enumerate(zip(sizes, speed, strict=True))]
        heapq.heapify(soonest)
        for _ in range(left):
            _, rank = soonest[0]
            sizes[rank] += 1
            heapq.heapreplace(soonest, ((sizes[rank] + 1) / speed[rank], rank))
    else:  # ranks too slow for even one sample got one anyway: those that finish last give samples back
        latest = [(-size / fast, rank) for rank, (size, fast) in enumerate(zip(sizes, speed, strict=True)) if size > 1]
        heapq.heapify(latest)
        for _ in range(-left):
            _, rank = heapq.heappop(latest)
            sizes[rank] -= 1
            if sizes[rank] > 1:
                heapq.heappush(latest, (-sizes[rank] / speed[rank], rank))
    return tuple((sizes / global_batch_size).tolist())


def stray(throughputs: Sequence[float], shares: Sequence[float]) -> float:
    """Return how much longer the slowest rank takes than it would with shares in proportion to speed, as a fraction.

    0.2 means that a step takes 20% longer than it would with the best shares.
    """
    speed = np.asarray(throughputs, dtype=np.float64)
    return float((np.asarray(shares) / speed).max() * speed.sum() - 1.0)


def _key(step: int, world_size: int) -> str:
    return f"shares/{world_size}/{step}"


def propose_shares(store: KeyValue, step: int, shares: Sequence[float]) -> bool:
    """Propose shares for a step; return whether they are the decision."""
    wanted = json.dumps(list(shares), separators=(",", ":")).encode()
    return store.compare_set(_key(step, len(shares)), b"", wanted) == wanted


def agreed_shares(store: KeyValue, step: int, world_size: int) -> tuple[float, ...] | None:
    """Return the decision for the step, None for no change; this call makes it final."""
    decision = json.loads(store.compare_set(_key(step, world_size), b"", b"null"))
    return None if decision is None else tuple(decision)
