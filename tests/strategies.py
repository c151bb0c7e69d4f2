"""What the property tests draw from: lengths, seeds, weights, partitions with their labels and ranges, a job's life."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from holdfast.order import (
    Adaptive,
    Contiguous,
    FullShuffle,
    HashBased,
    NoShuffle,
    Partition,
    RangeBased,
    RoundRobin,
    Shuffle,
    Skips,
    Stratified,
    WindowShuffle,
)

__all__ = [
    "Resize",
    "Skip",
    "lengths",
    "partitions",
    "ranges",
    "resizes",
    "seeds",
    "shares",
    "shuffles",
    "skips",
    "weights",
]

# Lengths at which something changes: one bit more, the table's end, square and nearly square rectangles.
EDGES = (1, 2, 3, 4, 5, 255, 256, 257, 65_535, 65_536, 65_537, 66_049, 66_050)

PARTITIONS = ("round_robin", "contiguous", "hash_index", "hash_key", "ranges", "stratified", "adaptive")


def lengths(most: int = 70_000) -> st.SearchStrategy[int]:
    """Draw a source's length, often one at which the arithmetic changes."""
    edges = [edge for edge in EDGES if edge <= most]
    return st.one_of(st.sampled_from(edges), st.integers(1, most))


def seeds() -> st.SearchStrategy[int]:
    """Draw a seed: any integer, negative and huge ones too."""
    return st.one_of(st.integers(0, 10), st.integers(-(2**70), 2**70))


@st.composite
def weights(draw: st.DrawFn, most: int = 12) -> list[float]:
    """Draw weights, unnormalised, some of them zero or tiny, at least one positive."""
    weight = st.one_of(
        st.sampled_from([0.0, 1.0, 1e-9, 0.5, 1 / 3, 1e6]), st.floats(1e-6, 1e6), st.integers(0, 100).map(float)
    )
    drawn = draw(st.lists(weight, min_size=1, max_size=most))
    return drawn if any(drawn) else [*drawn[1:], 1.0]


@st.composite
def ranges(draw: st.DrawFn, length: int, most: int = 5) -> tuple[tuple[int, int], ...]:
    """Draw ranges that cover 0 … length-1 exactly, in any order."""
    cuts = draw(st.lists(st.integers(1, max(1, length - 1)), max_size=most - 1, unique=True))
    bounds = [0, *sorted(cut for cut in cuts if cut < length), length]
    pairs = list(pairwise(bounds))
    return tuple(draw(st.permutations(pairs)))


@st.composite
def partitions(draw: st.DrawFn, length: int, kind: str | None = None) -> Partition:
    """Draw any of the six partitions, with the labels, keys or ranges it needs for a source of this length."""
    chosen = kind if kind is not None else draw(st.sampled_from(PARTITIONS))
    if chosen == "contiguous":
        return Contiguous()
    if chosen == "hash_index":
        return HashBased(draw(st.integers(1, max(1, length))), draw(st.integers(0, 5)))
    if chosen == "hash_key":
        keys = draw(st.lists(st.integers(-5, 40), min_size=length, max_size=length))
        return HashBased(draw(st.integers(1, 16)), draw(st.integers(0, 5)), key=np.array(keys))
    if chosen == "ranges":
        return RangeBased(draw(ranges(length)))
    if chosen == "stratified":
        labels = draw(st.lists(st.integers(0, 3), min_size=length, max_size=length))
        return Stratified(np.array(labels), draw(st.sampled_from([None, 4, 6])))
    if chosen == "adaptive":
        return Adaptive(draw(partitions(length, draw(st.sampled_from(PARTITIONS[:-1])))))
    return RoundRobin()


@st.composite
def shares(draw: st.DrawFn, world_size: int) -> tuple[float, ...]:
    """Draw each rank's share of a step: positive, adding up to 1, no two further apart than 1 to 4."""
    parts = draw(st.lists(st.integers(1, 4), min_size=world_size, max_size=world_size))
    return tuple(part / sum(parts) for part in parts)


@st.composite
def shuffles(draw: st.DrawFn, length: int) -> Shuffle:
    """Draw a shuffle mode that fits the length."""
    mode = draw(st.sampled_from(["full", "none", "window", "shards"]))
    if mode == "full":
        return FullShuffle()
    if mode == "none":
        return NoShuffle()
    group = draw(st.integers(1, 5))
    if mode == "window":
        return WindowShuffle(draw(st.integers(1, min(length, 20))), group)
    sizes = tuple(stop - start for start, stop in sorted(draw(ranges(length, most=20))))
    return WindowShuffle(sizes, group)


@dataclass(frozen=True, slots=True)
class Resize:
    """After ``after`` more steps the job goes on with another world size, batch size or shares."""

    after: int
    world_size: int
    global_batch_size: int
    shares: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True)
class Skip:
    """After ``after`` more steps these positions and samples are left out."""

    after: int
    skips: Skips


@st.composite
def _resize(draw: st.DrawFn, length: int, adaptive: bool) -> Resize:
    world = draw(st.integers(1, min(length, 6)))
    after = draw(st.integers(0, 6))
    if adaptive:
        # At 8 samples per rank even the smallest share drawn here (1 part of 1 + 4·5) is a whole sample; so it must be
        # without new shares too, as a resize to the same world size keeps the ones there were.
        return Resize(after, world, 8 * world, draw(st.none() | shares(world)))
    return Resize(after, world, draw(st.integers(world, 4 * world)))


def resizes(length: int, *, adaptive: bool = False, most: int = 6) -> st.SearchStrategy[list[Resize]]:
    """Draw a chain of topologies, the first of them the one the job begins with."""
    return st.lists(_resize(length, adaptive), min_size=1, max_size=most)


@st.composite
def skips(draw: st.DrawFn, total: int, sources: dict[str, int]) -> Skips:
    """Draw intervals of positions below ``total`` and samples of the sources, by name and length."""
    start = st.integers(0, max(0, total - 1))
    intervals = draw(st.lists(st.tuples(start, st.integers(0, 12)), max_size=3))
    samples = {
        name: draw(st.lists(st.integers(0, length - 1), max_size=min(4, length - 1)))
        for name, length in sources.items()
    }
    return Skips.of([(low, min(total, low + size)) for low, size in intervals], samples)
