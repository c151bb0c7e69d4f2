"""Shares in proportion to speed, and one decision for all ranks.

The model: at every ``interval`` steps there is one decision, a record in the store that is created once. Rank 0 creates
it ahead of time, when it finds that a rank's throughput has strayed from its share; every rank asks for it just before
it delivers that step, and a rank that finds nothing creates "no change". Whoever comes first decides, all others read
the same record, nobody waits, and so every rank adopts the same shares at the same step.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence

import numpy as np

from holdfast.coordinate.stores.contract import KeyValue

__all__ = ["agreed_shares", "balanced_shares", "propose_shares", "stray"]


def balanced_shares(throughputs: Sequence[float], global_batch_size: int) -> tuple[float, ...]:
    """Return the shares at which every rank is done with its part of a step at the same time.

    The shares are whole numbers of samples over the global batch size, at least one sample a rank: of the parts that
    remain, each goes to the rank that would finish it first, which makes the slowest rank's time the least possible.
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
    else:  # many ranks too slow for even one sample got one all the same: those that finish last give it back
        latest = [(-size / fast, rank) for rank, (size, fast) in enumerate(zip(sizes, speed, strict=True)) if size > 1]
        heapq.heapify(latest)
        for _ in range(-left):
            _, rank = heapq.heappop(latest)
            sizes[rank] -= 1
            if sizes[rank] > 1:
                heapq.heappush(latest, (-sizes[rank] / speed[rank], rank))
    return tuple((sizes / global_batch_size).tolist())


def stray(throughputs: Sequence[float], shares: Sequence[float]) -> float:
    """Return how far the slowest rank's time for its share lies above that of shares in proportion to speed.

    0.2 means that a step takes 20% longer than it would with the best shares.
    """
    speed = np.asarray(throughputs, dtype=np.float64)
    return float((np.asarray(shares) / speed).max() * speed.sum() - 1.0)


def _key(step: int, world_size: int) -> str:
    return f"shares/{world_size}/{step}"


def propose_shares(store: KeyValue, step: int, shares: Sequence[float]) -> bool:
    """Put shares forward for a step; say whether they are the decision."""
    wanted = json.dumps(list(shares), separators=(",", ":")).encode()
    return store.compare_set(_key(step, len(shares)), b"", wanted) == wanted


def agreed_shares(store: KeyValue, step: int, world_size: int) -> tuple[float, ...] | None:
    """Return the decision for the step, None for no change; from this call on it stands."""
    decision = json.loads(store.compare_set(_key(step, world_size), b"", b"null"))
    return None if decision is None else tuple(decision)
