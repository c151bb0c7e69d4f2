"""Which sample is where: pure arithmetic over NumPy arrays, with no state and no random generator.

Read the modules in this order: ``numbers`` (positions, ordinals, indices), ``permutation`` (one epoch), ``shuffle``
(its modes), ``cycle`` (one source, epoch after epoch), ``even`` and ``mixture`` (many sources), ``order`` (all of it
composed), ``layout``, ``remaining``, ``assignment`` and ``partition`` (which rank reads which part of an epoch),
``skips`` (what is left out), ``masks`` (what is marked invalid), ``continuous``, ``aligned`` and ``schedule`` (step by
step). ``blocks`` and ``apportion`` load older mixtures.
"""

from __future__ import annotations

from holdfast.order.keys import derive_key
from holdfast.order.mixture import ARRANGEMENTS, Mixture
from holdfast.order.order import Located, Order, SourceSpec
from holdfast.order.partition import Adaptive, Contiguous, HashBased, Partition, RangeBased, RoundRobin, Stratified
from holdfast.order.permutation import Permutation
from holdfast.order.schedule import Schedule
from holdfast.order.segment import Segment
from holdfast.order.shuffle import FullShuffle, NoShuffle, Shuffle, WindowShuffle
from holdfast.order.skips import Skips
from holdfast.order.walk import Assigned

__all__ = [
    "ARRANGEMENTS",
    "Adaptive",
    "Assigned",
    "Contiguous",
    "FullShuffle",
    "HashBased",
    "Located",
    "Mixture",
    "NoShuffle",
    "Order",
    "Partition",
    "Permutation",
    "RangeBased",
    "RoundRobin",
    "Schedule",
    "Segment",
    "Shuffle",
    "Skips",
    "SourceSpec",
    "Stratified",
    "WindowShuffle",
    "derive_key",
]
