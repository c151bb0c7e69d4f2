"""Shares in proportion to speed, and one decision for all ranks.

The model: at every ``interval`` steps there is one decision, a record in the store that is created once. Rank 0 creates
it ahead of time, when it finds that a rank's throughput has strayed from its share; every rank asks for it just before
it delivers that step, and a rank that finds nothing creates "no change". Whoever comes first decides, all others read
the same record, nobody waits, and so every rank adopts the same shares at the same step.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from holdfast.coordinate.protocol import KeyValue

__all__ = ["agreed_shares", "balanced_shares", "propose_shares", "stray"]


def balanced_shares(throughputs: Sequence[float], global_batch_size: int) -> tuple[float, ...]:
    """Return the shares at which every rank is done with its part of a step at the same time.

    The shares are whole numbers of samples over the global batch size, at least one sample a rank: of the parts that
    remain, each goes to the rank that would finish it first, which makes the slowest rank's time the least possible.
    """
    speed = np.asarray(throughputs, dtype=np.float64)
    spare = global_batch_size - len(speed)
    sizes = 1 + np.floor(spare * speed / speed.sum()).astype(np.int64)
    left = int(global_batch_size - sizes.sum())
    for _ in range(left):
        sizes[int(np.argmin((sizes + 1) / speed))] += 1
    # Taking one from the last and giving it to the first, while that helps, undoes what rounding down spoiled.
    while True:
        times = np.where(sizes > 1, sizes / speed, 0.0)
        slow, quick = int(np.argmax(times)), int(np.argmin((sizes + 1) / speed))
        if slow == quick or (sizes[quick] + 1) / speed[quick] >= times[slow]:
            break
        sizes[slow] -= 1
        sizes[quick] += 1
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
