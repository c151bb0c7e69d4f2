"""Which ranks share what they read: compared between all ranks of a load before any of them waits for another.

A rank that shares waits in its group for ranks that would never come if they were called without ``share_within``, or
with another group. So each rank tells all others which group it was given, and every rank draws the same conclusion.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from holdfast.checkpoint.sharing import check_group, naming_peers
from holdfast.errors import ConfigError

__all__ = ["Given", "agree_on_sharing", "check_given", "given_to"]

_DIGEST_BYTES = 7
"""Fits into a positive 64-bit integer."""


class Given(NamedTuple):
    """The group that a rank was given."""

    group: int
    """A digest of its name and ranks; 0 without a group."""
    members: tuple[int, ...]
    """Its ranks, numbered as in the default group."""
    rank: int
    """The rank that was given it, numbered likewise."""


def given_to(sharing: dist.ProcessGroup | None) -> Given:
    """Return what this rank was given."""
    if sharing is None:
        return Given(0, (), dist.get_rank() if dist.is_initialized() else 0)
    members = tuple(dist.get_process_group_ranks(sharing))
    digest = hashlib.blake2b(repr((sharing.group_name, members)).encode(), digest_size=_DIGEST_BYTES).digest()
    return Given(int.from_bytes(digest, "big"), members, dist.get_rank())


def check_given(given: Sequence[Given]) -> None:
    """Raise if a member of a group, among the ranks that load together, was given another group or none."""
    loading = {one.rank for one in given}
    _check((one.group, len(loading.intersection(one.members))) for one in given)


def agree_on_sharing(sharing: Any, group: dist.ProcessGroup | None) -> None:
    """Raise the same error on every rank of a load if they were not given the same groups; all ranks call it.

    Args:
        sharing: the group that this rank was given, or ``None``.
        group: the ranks that load together; the default group when ``None``.
    """
    group = group or dist.distributed_c10d._get_default_group()
    usable = sharing is None or (isinstance(sharing, dist.ProcessGroup) and dist.get_rank(sharing) >= 0)
    own = given_to(sharing) if usable else Given(-1, (), dist.get_rank())
    expected = len(set(own.members).intersection(dist.get_process_group_ranks(group)))
    device = dist.distributed_c10d._get_object_coll_device(group)
    told = [torch.zeros(2, dtype=torch.int64, device=device) for _ in range(group.size())]
    with naming_peers():
        work = dist.all_gather(told, torch.tensor([own.group, expected], device=device), group=group, async_op=True)
        assert work is not None
        work.wait(*_timeout(sharing))
    if not usable:
        check_group(sharing)  # raises
    _check((int(one[0]), int(one[1])) for one in told)


def _timeout(sharing: Any) -> tuple[timedelta, ...]:
    """Return how long the ranks of a group wait for each other; nothing without one, for which torch's own applies."""
    try:
        return (sharing._get_backend(torch.device("cpu")).options._timeout,)
    except (RuntimeError, AttributeError):
        return ()


def _check(given: Iterable[tuple[int, int]]) -> None:
    """Raise unless as many ranks were given each group as it has members."""
    groups = Counter(given)
    if any(count != members for (group, members), count in groups.items() if group):
        raise ConfigError(
            "the ranks disagree on share_within",
            hint="pass the same group on all of its ranks, such as that of holdfast.checkpoint.node_group()",
        )
