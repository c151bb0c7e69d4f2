"""The order of a stream never changes between releases: what a resumed run has read must stay read.

Every digest here was computed by release 0.2. A change that alters one breaks every saved stream of that kind: it needs
a new version of the order instead.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from hashlib import blake2b
from typing import Any

import numpy as np
import pytest

from holdfast.order import (
    Adaptive,
    Contiguous,
    FullShuffle,
    HashBased,
    NoShuffle,
    Order,
    Partition,
    RangeBased,
    RoundRobin,
    Schedule,
    Skips,
    SourceSpec,
    Stratified,
    WindowShuffle,
)

FAR = 10**12
POSITIONS = np.concatenate([np.arange(6_000), FAR + np.arange(500), 50_000 + 997 * np.arange(500)])
LABELS = np.arange(500) * 7 % 11 % 4


def digest(*columns: Any) -> str:
    found = blake2b(digest_size=6)
    for column in columns:
        found.update(np.ascontiguousarray(column, dtype="<i8").tobytes())
    return found.hexdigest()


def one(length: int, **options: Any) -> Order:
    return Order([SourceSpec("a", length, seed=7, **options)])


def mixed(weights: list[Any], **options: Any) -> Order:
    names = [f"source-{number}" for number in range(len(weights))]
    specs = [SourceSpec(name, 300 + 41 * number, seed=number) for number, name in enumerate(names)]
    return Order(specs, weights=dict(zip(names, weights, strict=True)), seed=3, **options)


def scheduled() -> Order:
    specs = [SourceSpec("a", 900, seed=1), SourceSpec("b", 500, seed=2), SourceSpec("c", 200, seed=3)]
    return Order(
        specs,
        weights=[(0, {"a": 5, "b": 1, "c": 1}), (1_003, {"a": 1, "b": 1}), (2_501, {"a": 2, "b": 3, "c": 7})],
        seed=3,
    )


def grown() -> Order:
    specs = [SourceSpec("a", 60, seed=1, growth=((2, 75), (5, 90))), SourceSpec("b", 45, seed=2)]
    return Order(specs, weights={"a": 0.6, "b": 0.4})


ORDERS: dict[str, tuple[Callable[[], Order], str]] = {
    "one sample": (lambda: one(1), "c6e505ec3cff"),
    "a table": (lambda: one(1_000), "182976bb6222"),
    "a network": (lambda: one(70_000), "b49d80c5db65"),
    "a billion": (lambda: one(10**9), "b9d87bdbfa86"),
    "shards of equal size": (lambda: one(5_000, shuffle=WindowShuffle(13, 4)), "916e22f5be2e"),
    "shards of their own sizes": (
        lambda: one(1_000, shuffle=WindowShuffle((100, 1, 299, 350, 250), 2)),
        "0788a3d48b6b",
    ),
    "no shuffle": (lambda: one(700, shuffle=NoShuffle()), "94cd596d96f8"),
    "growing": (grown, "fd88e11e5542"),
    "two sources": (lambda: mixed([0.7, 0.3]), "3296ed6266f4"),
    "three sources": (lambda: mixed([5, 3, 2]), "8852a4a21b96"),
    "a rare source": (lambda: mixed([1, 1e-4, 0.3]), "4f28435d0cf9"),
    "a very rare source": (lambda: mixed([1, 1e-9]), "1121e175cea5"),
    "a source left out": (lambda: mixed([1, 0, Fraction(1, 3)]), "1a8dce7c9cd8"),
    "sources by rank": (lambda: mixed([1 / (1 + number) for number in range(24)]), "8c3c9a2c491b"),
    "heavy and light ones": (lambda: mixed([30, 30, 30, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]), "5f0762d74fbe"),
    "squares": (lambda: mixed([(1 + number) ** 2 for number in range(20)]), "636b08a0c0f6"),
    "many sources": (lambda: mixed([1 + number % 7 for number in range(150)]), "a78f62fb7994"),
    "weights that change": (scheduled, "2749440f4ac5"),
    "in blocks": (lambda: mixed([5, 3, 2, 0.01], arrangement="blocks"), "f61f684e3f07"),
}


@pytest.mark.parametrize("name", ORDERS)
def test_every_release_locates_the_same_samples(name: str) -> None:
    make, expected = ORDERS[name]
    assert digest(*make().locate(POSITIONS)) == expected


SHARES = (0.5, 0.2, 0.3)
PARTITIONS: dict[str, tuple[Partition, tuple[float, ...] | None, str]] = {
    "round robin": (RoundRobin(), None, "fdb892a42942"),
    "round robin that ends epochs together": (RoundRobin(align_epochs=True), None, "fd4223cf1ef0"),
    "contiguous": (Contiguous(), None, "6101381ac951"),
    "hashed": (HashBased(37, 5), None, "69c7b55f9500"),
    "hashed by key": (HashBased(11, 2, key=LABELS * 3), None, "06c78322c80f"),
    "ranges": (RangeBased(((200, 500), (0, 50), (50, 200))), None, "6c2a65f2c087"),
    "stratified": (Stratified(LABELS, 4), None, "7d74dfff9b23"),
    "adaptive": (Adaptive(RoundRobin()), SHARES, "9c03eba9ff29"),
    "adaptive and contiguous": (Adaptive(Contiguous()), SHARES, "64d622cf3652"),
    "adaptive and hashed": (Adaptive(HashBased(37, 5)), SHARES, "a9df0e798456"),
    "adaptive and stratified": (Adaptive(Stratified(LABELS, 4)), SHARES, "cf0c1ceb4221"),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_every_release_gives_every_rank_the_same_positions_through_skips_and_resizes(name: str) -> None:
    partition, shares, expected = PARTITIONS[name]
    order = Order([SourceSpec("a", 500, seed=7, shuffle=FullShuffle())], partition=partition)
    schedule = Schedule.start(order, world_size=3, global_batch_size=37, shares=shares, epochs=5)
    schedule = schedule.skipping(6, Skips.of([(300, 340), (900, 1_100)], {"a": [3, 77, 401]}))
    schedule = schedule.resized(9, world_size=2, global_batch_size=20, shares=None if shares is None else (0.25, 0.75))
    schedule = schedule.resized(40, world_size=4, global_batch_size=16)
    steps = range(schedule.total_steps or 0)
    read = [schedule.positions(step, r) for step in steps for r in range(schedule.segment_at(step).world_size)]
    assert digest(np.concatenate(read), [len(part) for part in read]) == expected
