"""The even arrangement: at every place, not only at some, each column is within one sample of its weight.

The model: a tree of splits (``split_tree``). A node numbers its own places 0, 1, 2, … and gives a fraction f ≤ 1/2 of
them to its lighter side: the m-th of those is the place at which n · f passes m + t(m). The threshold t(m), between 0
and 1, is one half moved a little by a keyed hash of m; it stays f/2 away from 0 and from 1, so no two thresholds meet
in one place. The lighter side then has n · f of the places before place n, off by at most max(t, 1 - t), and the
heavier side the others.

So finding a place's column takes one multiplication and one hash per level of the tree, counting takes the same, and
the inverse takes one division per level. Nothing is stored, and there are no blocks. Fractions are integers out of
2^64, and all of it is exact integer arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.order.arrangement import Arrangement
from holdfast.order.keys import derive_key
from holdfast.order.numbers import Int64
from holdfast.order.split_tree import Split, plan

__all__ = ["EvenArrangement"]

UInt64 = NDArray[np.uint64]

FARTHEST = 1 << 62  # places beyond are out of reach
_ONE, _32 = np.uint64(1), np.uint64(32)
_LOW = np.uint64((1 << 32) - 1)


@dataclass(slots=True)
class _Nodes:
    """The numbers of one node (scalars), or of each place's node (arrays); ``_split`` takes both."""

    half: Any  # f / 2, out of 2^64
    key: Any
    lowest: Any  # the lowest threshold, minus f / 2
    spread: Any  # the highest minus the lowest, out of 2^32

    def at(self, which: Any) -> _Nodes:
        return _Nodes(self.half[which], self.key[which], self.lowest[which], self.spread[which])


class EvenArrangement(Arrangement):
    """Columns arranged evenly by weight.

    Args:
        weights: positive integers, one per column.
        key: decides what is left to chance.
    """

    def __init__(self, weights: tuple[int, ...], key: bytes) -> None:
        planned = plan(weights)
        self.max_deviation = planned.max_deviation
        nodes: list[tuple[int, int, int, int]] = []
        # child[2 i] is the heavier side of node i and child[2 i + 1] the lighter: a node's number, or ~column.
        children: list[int] = []
        self._paths: list[tuple[tuple[int, bool], ...]] = [()] * len(weights)
        waiting: list[tuple[Split | int, tuple[tuple[int, bool], ...]]] = [(planned.root, ())]
        while waiting:
            split, path = waiting.pop(0)
            if path:
                node, light = path[-1]
                children[2 * node + light] = ~split if isinstance(split, int) else len(nodes)
            if isinstance(split, int):
                self._paths[split] = path
                continue
            number = len(nodes)
            nodes.append(_numbers(split, derive_key("split", key, number)))
            children += [0, 0]
            waiting += [(split.heavy, (*path, (number, False))), (split.light, (*path, (number, True)))]
        self._children = np.array(children, dtype=np.intp)
        table = np.array(nodes, dtype=np.uint64).reshape(-1, 4)
        self._nodes = _Nodes(*(np.ascontiguousarray(column) for column in table.T))

    def locate(self, places: Int64) -> tuple[NDArray[np.intp], Int64]:
        """Return column and count by going down the tree, all places one level at a time."""
        numbers = places.astype(np.uint64)
        if not len(self._children):
            return np.zeros(places.shape, dtype=np.intp), numbers.astype(np.int64)
        before, light = _split(numbers, self._nodes.at(0))  # all places are in the root
        numbers = np.where(light, before, numbers - before)
        node = self._children[light.view(np.int8)]
        while (active := np.flatnonzero(node >= 0)).size:
            here, number = node[active], numbers[active]
            before, light = _split(number, self._nodes.at(here))
            numbers[active] = np.where(light, before, number - before)
            node[active] = self._children[2 * here + light]
        return ~node, numbers.astype(np.int64)

    def count(self, column: int, places: Int64) -> Int64:
        """Return how many of the column come before each place, by going down its path."""
        numbers = places.astype(np.uint64)
        for node, light in self._paths[column]:
            before, _ = _split(numbers, self._nodes.at(node))
            numbers = before if light else numbers - before
        return numbers.astype(np.int64)

    def place_of(self, column: int, counts: Int64) -> Int64:
        """Return the places by going up the column's path."""
        reached = np.ones(counts.shape, dtype=np.bool_)
        numbers = counts.astype(np.uint64)
        for node, light in reversed(self._paths[column]):
            climb = _place_of_light if light else _place_of_heavy
            numbers = climb(numbers, self._nodes.at(node), reached)
        return np.where(reached, numbers.astype(np.int64), -1)


def _numbers(split: Split, key: bytes) -> tuple[int, int, int, int]:
    light, heavy = split.weights
    half = max(1, (light << 63) // (light + heavy))
    room = (1 << 64) - 2 * half
    spread = int(split.jitter * (room >> 32))
    return half, int.from_bytes(key[:8], "little"), (room - (spread << 32)) >> 1, spread


def _crossed(numbers: UInt64, nodes: _Nodes) -> tuple[UInt64, UInt64]:
    """Return (n + 1/2) · f as its whole part and its fraction out of 2^64: a product of 64-bit words, all 128 bits."""
    odd = (numbers << _ONE) | _ONE
    high, low = odd >> _32, odd & _LOW
    half_high, half_low = nodes.half >> _32, nodes.half & _LOW
    middle = low * half_low
    middle >>= _32
    middle += high * half_low
    other = middle & _LOW
    other += low * half_high
    middle >>= _32
    middle += other >> _32
    middle += high * half_high
    odd *= nodes.half
    return middle, odd


def _threshold(whole: UInt64, nodes: _Nodes) -> UInt64:
    """Return the threshold of each of the lighter side's samples, minus f/2."""
    mixed: UInt64 = whole ^ nodes.key
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> _32
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed >>= _32
    mixed *= nodes.spread
    mixed += nodes.lowest
    return mixed


def _split(numbers: UInt64, nodes: _Nodes) -> tuple[UInt64, NDArray[np.bool_]]:
    """Return how many of a node's places before each of these go to its lighter side, and whether this one does."""
    whole, fraction = _crossed(numbers, nodes)
    threshold = _threshold(whole, nodes)
    passed = fraction >= threshold
    fraction -= threshold
    light = fraction < nodes.half << _ONE
    whole += passed ^ light
    return whole, light


def _place_of_light(numbers: UInt64, node: _Nodes, reached: NDArray[np.bool_]) -> UInt64:
    """Return the node's places of these samples of its lighter side."""
    step = float(node.half) * 2.0**-63
    threshold = _threshold(numbers, node)
    found = _start((numbers + threshold * 2.0**-64) / step, reached)
    while True:
        whole, fraction = _crossed(found, node)
        hit = (whole == numbers) & (fraction - threshold < node.half << _ONE) & (fraction >= threshold)
        if (hit | ~reached).all():
            return found
        # The distance in samples; the move is at least one place in its direction.
        apart = (numbers - whole).astype(np.int64) + (threshold * 2.0**-64 - fraction * 2.0**-64)
        move = np.where(apart > 0, np.ceil(apart / step), np.minimum(np.ceil(apart / step), -1.0))
        found += np.where(hit | ~reached, 0, move).astype(np.int64).astype(np.uint64)


def _place_of_heavy(numbers: UInt64, node: _Nodes, reached: NDArray[np.bool_]) -> UInt64:
    """Return the node's places of these samples of its heavier side."""
    found = _start(numbers / (1 - float(node.half) * 2.0**-63), reached)
    while True:
        before, light = _split(found, node)
        short = numbers - (found - before)  # never more than the places left to go: each holds at most one sample
        if not (((short != 0) | light) & reached).any():
            return found
        found += np.where(reached, np.where(short == 0, light.astype(np.uint64), short), np.uint64(0))


def _start(estimate: NDArray[np.float64], reached: NDArray[np.bool_]) -> UInt64:
    """Return where to begin the search: an estimate that is right up to float64 rounding."""
    reached &= estimate < FARTHEST
    return np.where(reached, estimate, 0.0).astype(np.uint64)
