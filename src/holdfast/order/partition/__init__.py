"""Partitions: which samples of an epoch go to which rank.

Six strategies, each a small frozen description. A partition says how the epoch is laid out (``layout``, for partitions
by index) and how what remains of it is assigned at a given world size (``assign``). ``RoundRobin``, the default, is the
only one whose steps cross the end of an epoch; with the others all ranks finish an epoch together.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.errors import ConfigError
from holdfast.order.partition.adaptive import Adaptive, check_shares
from holdfast.order.partition.base import Partition
from holdfast.order.partition.by_index import HashBased, RangeBased, Stratified
from holdfast.order.partition.positional import Contiguous, RoundRobin

__all__ = [
    "Adaptive",
    "Contiguous",
    "HashBased",
    "Partition",
    "RangeBased",
    "RoundRobin",
    "Stratified",
    "check_shares",
    "parse_partition",
]


def parse_partition(value: Partition | Mapping[str, Any]) -> Partition:
    """Read a partition from its JSON form; labels and keys come back as digests to be checked against real data."""
    if isinstance(value, Partition):
        return value
    kind = value.get("kind")
    if kind == "round_robin":
        return RoundRobin(align_epochs=value.get("align_epochs", False))
    if kind == "contiguous":
        return Contiguous()
    if kind == "hash_based":
        return HashBased(value["num_partitions"], value["hash_seed"], digest=value["digest"])
    if kind == "range_based":
        return RangeBased(tuple((start, stop) for start, stop in value["ranges"]))
    if kind == "stratified":
        return Stratified(None, value["num_classes"], digest=value["digest"])
    if kind == "adaptive":
        return Adaptive(parse_partition(value["base"]), value["rebalance_threshold"])
    raise ConfigError("unknown partition", kind=kind)
