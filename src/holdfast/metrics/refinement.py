"""Where the values of a bucket lie, estimated from linear counters, so that every merge still gives the same bits.

A sketch's bucket may hold much of the mass if a narrow range of values, or one repeated value, lies amid many others. A
refinement tracks every value down to its last bit, in bounded memory, with counters that only ever grow:

- The 52 bits below an octave are thirteen digits of four bits. A **node** is a sequence of leading digits of a key; its
  children differ in the next digit.
- For each of the thirteen levels there are two tables of 256 rows by 16 columns. A key adds one to each table: in the
  row that its node is hashed to, in the column of its next digit.
- A row counts the children of a node, plus those of other nodes that share the row: on average 1/256 of all other
  values. Two nodes seldom meet in both tables, so the smaller of a child's two counts is closer to the truth; the
  expected number of foreign values still in it is subtracted.

Descending from a bucket, whose count is exact, finds the value of a rank. No child has more values than either row
says, so the answer comes with a bound that is never exceeded; the error itself is far smaller. Everything is a sum, so
nothing depends on the order of values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from holdfast.metrics.grid import MANTISSA_BITS, Integers
from holdfast.metrics.packing import damaged, pack, unpack

DIGIT_BITS = 4
LEVELS = MANTISSA_BITS // DIGIT_BITS
_DIGITS = 1 << DIGIT_BITS
_ROW_BITS = 8
_TABLES = 2
_SHAPE = (LEVELS, _TABLES, 1 << _ROW_BITS, _DIGITS)
# Odd multipliers, one per level and table, from a fixed generator: every process hashes the same way.
_SEED = 0x9E3779B97F4A7C15
# Values per pass: their temporaries stay in the processor's cache.
_CHUNK = 1 << 13
# A node with at most this share of all values is not worth descending into.
_SMALL_NODE = 1 / 2048


@dataclass(frozen=True, slots=True, eq=False)
class Refinement:
    """Counters of the digits of every value.

    Args:
        tables: counts by level, table, row and digit; None while there is no value.
    """

    tables: Integers | None = None

    @property
    def count(self) -> int:
        """Number of values added."""
        return 0 if self.tables is None else int(self.tables[0, 0].sum())

    def add(self, keys: Integers, counts: Integers | None = None) -> Refinement:
        """Return the refinement with keys added, each ``counts`` times (None for once)."""
        tables = np.zeros(_SHAPE, dtype=np.int64) if self.tables is None else self.tables.copy()
        size = tables[0, 0].size
        for begin in range(0, len(keys), _CHUNK):
            chunk = keys[begin : begin + _CHUNK]
            weights = None if counts is None else counts[begin : begin + _CHUNK]
            for level in range(LEVELS):
                nodes, digits = _split(chunk, level)
                for table in range(_TABLES):
                    cells = _row_starts(nodes, level, table)
                    cells |= digits
                    found = np.bincount(cells, weights, size)
                    tables[level, table] += found.astype(np.int64, copy=False).reshape(_SHAPE[2:])
        return Refinement(tables)

    @staticmethod
    def merge(parts: Sequence[Refinement]) -> Refinement:
        """Return the refinement of all the parts' values together."""
        tables: Integers | None = None
        for part in parts:
            if part.tables is not None:
                tables = part.tables.copy() if tables is None else np.add(tables, part.tables, out=tables)
        return Refinement(tables)

    def descend(self, node: int, level: int, count: int, rank: int, total: int) -> tuple[int, int]:
        """Return the key of a rank inside a node, and the maximum error of its rank.

        Args:
            node: the node's leading bits: the key without its last ``52 - 4 * level`` bits.
            level: number of known digits of the node.
            count: exact number of values in the node.
            rank: rank to find among them, from 1.
            total: total number of values.
        """
        found = _Found(node, float(count), float(rank), (0, 0), (count, count))
        while level < LEVELS and found.estimate > total * _SMALL_NODE:
            found = self._step(found, level)
            level += 1
        remaining = MANTISSA_BITS - DIGIT_BITS * level
        before, inside = found.before, found.count
        if remaining == 0:
            return found.node, max(0, before[1] + 1 - rank, rank - (before[0] + inside[0]))
        # Spread the remaining values evenly over the node's floats.
        share = min(max(found.wanted / found.estimate, 0.0), 1.0) if found.estimate > 0.0 else 0.5
        place = min(int((1 << remaining) * share), (1 << remaining) - 1)
        return (found.node << remaining) + place, max(0, before[1] + inside[1] - rank, rank - before[0])

    def serialize(self) -> str | None:
        """Return text for JSON."""
        return None if self.tables is None else pack(self.tables.reshape(-1))

    @staticmethod
    def deserialize(payload: Any) -> Refinement:
        """Undo ``serialize``."""
        if payload is None:
            return Refinement()
        (flat,) = unpack(payload, 1)
        if flat.size != np.prod(_SHAPE):
            raise damaged("its refinement has the wrong size")
        return Refinement(flat.reshape(_SHAPE))

    def _step(self, at: _Found, level: int) -> _Found:
        """Descend by one digit."""
        assert self.tables is not None
        node = np.array([at.node], dtype=np.int64)
        places = [int(_row_starts(node, level, table)[0]) >> DIGIT_BITS for table in range(_TABLES)]
        rows = [self.tables[level, table, place] for table, place in enumerate(places)]
        # No child has more values than either row says; foreign values in both rows are distributed like all other
        # values.
        most = np.minimum.reduce(rows)
        others = self.tables[level, 0].sum(axis=0) - most
        strangers = max(0.0, int(most.sum()) - at.estimate) / max(1, int(others.sum()))
        children = np.maximum(most - others * strangers, 0.0)
        children *= at.estimate / max(float(children.sum()), 1.0)
        ends = np.cumsum(children)
        digit = min(int(np.searchsorted(ends, at.wanted)), _DIGITS - 1)
        # Certain bounds follow from that, and because all children together have the node's values.
        left, here, right = int(most[:digit].sum()), int(most[digit]), int(most[digit + 1 :].sum())
        least, largest = at.count
        return _Found(
            node=(at.node << DIGIT_BITS) | digit,
            estimate=float(children[digit]),
            wanted=at.wanted - float(ends[digit] - children[digit]),
            before=(at.before[0] + max(0, least - here - right), at.before[1] + min(left, largest)),
            count=(max(0, least - left - right), min(here, largest)),
        )


@dataclass(frozen=True, slots=True)
class _Found:
    """The state of a descent: its estimate, and what is certain (from, to)."""

    node: int
    estimate: float
    wanted: float
    before: tuple[int, int]
    count: tuple[int, int]


def _split(keys: Integers, level: int) -> tuple[Integers, Integers]:
    """Return the keys' nodes at a level, and their next digits."""
    nodes = keys >> (MANTISSA_BITS - DIGIT_BITS * (level + 1))
    digits = nodes & (_DIGITS - 1)
    nodes >>= DIGIT_BITS
    return nodes, digits


def _row_starts(nodes: Integers, level: int, table: int) -> Integers:
    """Return the cell at which each node's row starts, by multiply-shift hashing."""
    cells = nodes.view(np.uint64) * _multiplier(level, table)
    cells >>= np.uint64(64 - _ROW_BITS)
    cells <<= np.uint64(DIGIT_BITS)
    return cells.view(np.int64)


def _multiplier(level: int, table: int) -> np.uint64:
    # Steps of a Weyl sequence, mixed as in SplitMix64: fixed, odd, and unrelated from one table to the next.
    mixed = (_SEED * (level * _TABLES + table + 1)) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & (2**64 - 1)
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & (2**64 - 1)
    return np.uint64((mixed ^ (mixed >> 31)) | 1)
