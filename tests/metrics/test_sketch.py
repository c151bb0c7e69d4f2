"""Quantiles: a function of the values alone, exact up to 4,096 distinct values, and within a bound it knows beyond."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.metrics.strategies import finite_floats, floats

from holdfast.errors import MetricError
from holdfast.metrics.grid import Grid, ordered
from holdfast.metrics.packing import pack
from holdfast.metrics.sketch import BUCKETS, QuantileSketch

Values = NDArray[np.float64]
PERCENTS = (1, 5, 25, 50, 75, 95, 99)


def rank_error(values: Values, estimate: float, percent: int) -> float:
    """How far the estimate's ranks are from the one asked for, as a share of all values."""
    ascending = np.sort(values)
    first = np.searchsorted(ascending, estimate, side="left") / len(values)
    last = np.searchsorted(ascending, estimate, side="right") / len(values)
    wanted = percent / 100
    return float(max(0.0, first - wanted, wanted - last))


def state_of(sketch: QuantileSketch) -> str:
    return json.dumps(sketch.serialize())


def wide(count: int, seed: int = 3) -> Values:
    """Values that force cuts: many octaves, both signs, all distinct."""
    generator = np.random.default_rng(seed)
    return generator.normal(size=count) * np.exp(generator.normal(size=count) * 20)


# ---- the same bits however the values come


@pytest.mark.parametrize("pieces", [1, 2, 3, 7, 40])
def test_splitting_the_values_changes_no_bit_even_after_cuts(pieces: int) -> None:
    values = wide(30_000)
    whole = QuantileSketch().add(values)
    assert whole.cap < BUCKETS
    parts = [QuantileSketch().add(part) for part in np.array_split(values[::-1], pieces)]
    assert state_of(QuantileSketch.merge(parts)) == state_of(whole)


def test_merging_in_a_tree_in_a_chain_or_at_once_changes_no_bit() -> None:
    parts = [QuantileSketch().add(wide(3_000, seed)) for seed in range(8)]
    at_once = QuantileSketch.merge(parts)
    chain = parts[7]
    for part in parts[:7]:
        chain = QuantileSketch.merge([part, chain])
    tree = parts
    while len(tree) > 1:
        tree = [QuantileSketch.merge(tree[place : place + 2]) for place in range(0, len(tree), 2)]
    assert state_of(at_once) == state_of(chain) == state_of(tree[0])


@given(
    st.integers(0, 2**32),
    st.lists(st.integers(1, 3000), min_size=2, max_size=4),
    st.lists(st.sampled_from(["narrow", "wide", "few"]), min_size=4, max_size=4),
)
def test_merge_of_any_split_is_the_sketch_of_the_whole(seed: int, sizes: list[int], shapes: list[str]) -> None:
    generator = np.random.default_rng(seed)
    made: dict[str, Callable[[int], Values]] = {
        "narrow": lambda size: 1.0 + generator.random(size) * 2.0**-30,
        "wide": lambda size: wide(size, seed),
        "few": lambda size: generator.integers(-3, 3, size).astype(np.float64),
    }
    pieces = [made[shape](size) for size, shape in zip(sizes, shapes, strict=False)]
    whole = QuantileSketch().add(np.concatenate(pieces))
    one_by_one = QuantileSketch()
    for piece in reversed(pieces):
        one_by_one = one_by_one.add(piece)
    merged = QuantileSketch.merge([QuantileSketch().add(piece) for piece in pieces])
    assert state_of(whole) == state_of(one_by_one) == state_of(merged)


@given(seed=st.integers(0, 2**32), octaves=st.integers(1, 40), digits=st.integers(1, 16))
def test_however_many_values_come_at_once_the_sketch_is_the_same(seed: int, octaves: int, digits: int) -> None:
    """Many at once are counted by a guess at what will be cut; few at a time are sorted. Wrong guesses included."""
    generator = np.random.default_rng(seed)
    size = int(generator.integers(9_000, 30_000))
    values = np.exp2(generator.integers(0, octaves, size)) * (1.0 + generator.random(size).round(digits))
    values[: size // 3] *= -1.0
    at_once = QuantileSketch().add(values)
    by_turns = QuantileSketch()
    for part in np.array_split(values, 12):
        by_turns = by_turns.add(part)
    assert state_of(at_once) == state_of(by_turns)
    grid = at_once.grid
    assert state_of(at_once) == state_of(
        QuantileSketch.merge([QuantileSketch().add(part) for part in np.array_split(values, 7)])
    )
    assert np.array_equal(at_once.keys, np.unique(on_grid(ordered(values), grid)))


@given(pairs=st.integers(BUCKETS // 2 + 1, BUCKETS - 1), others=st.integers(1, 300), together=st.integers(0, 300))
def test_an_octave_that_was_cut_counts_as_full_however_few_buckets_it_kept(
    pairs: int, others: int, together: int
) -> None:
    """Pairs of neighbouring floats: one cut halves them, so their octave looks as if it had room to spare."""
    firsts = 1.0 + np.arange(pairs, dtype=np.float64) * 2.0**-30
    crowd = np.concatenate([firsts, np.nextafter(firsts, 2.0)])
    elsewhere = 4.0 + np.arange(others, dtype=np.float64) * 2.0**-30
    whole = QuantileSketch().add(np.concatenate([crowd, elsewhere]))
    cut_first = QuantileSketch().add(np.concatenate([crowd, elsewhere[:together]]))
    assert (cut_first.grid.shifts > 0).any()
    assert state_of(cut_first.add(elsewhere[together:])) == state_of(whole)
    parts = [cut_first, QuantileSketch().add(elsewhere[together:])]
    assert state_of(QuantileSketch.merge(parts)) == state_of(whole)


def on_grid(keys: NDArray[np.int64], grid: Grid) -> NDArray[np.int64]:
    shifts = grid.shifts_of(keys >> 52)
    return (keys >> shifts) << shifts


def test_adding_values_with_counts_is_adding_them_so_often() -> None:
    generator = np.random.default_rng(0)
    values = generator.integers(0, 9000, 40_000)
    distinct, counts = np.unique(values, return_counts=True)
    counted = QuantileSketch().add(distinct.astype(np.float64), counts)
    assert state_of(counted) == state_of(QuantileSketch().add(values.astype(np.float64)))


# ---- how good the quantiles are


@given(st.lists(finite_floats, min_size=1, max_size=200))
def test_quantiles_of_up_to_4096_distinct_values_are_exact(values: list[float]) -> None:
    sketch = QuantileSketch().add(floats(values))
    for percent in PERCENTS:
        exact = np.quantile(floats(values), percent / 100, method="inverted_cdf") if percent != 100 else max(values)
        # ⌈p·n⌉ in integers; NumPy's p·n in floats may fall one rank beside it when it is a whole number.
        assert sketch.quantile(percent) == sorted(values)[max(0, -(-percent * len(values) // 100) - 1)]
        assert rank_error(floats(values), float(exact), percent) <= 1e-12
        assert sketch.rank_error(percent) == 0.0


def test_exactly_4096_distinct_values_are_still_exact_and_one_more_is_cut() -> None:
    full = QuantileSketch().add(np.arange(0.5, BUCKETS))
    assert full.cap == BUCKETS
    assert len(full.keys) == BUCKETS
    cut = full.add(floats([1e9]))
    assert cut.cap < BUCKETS
    assert len(cut.keys) <= BUCKETS


@pytest.mark.parametrize("copies", [1, 2, 8])
def test_4096_distinct_values_of_one_octave_are_exact_however_often_each_comes(copies: int) -> None:
    """With many at once, a guess at their buckets leaves just as many as are allowed, and must still be undone."""
    values = np.nextafter(1.0 + np.arange(BUCKETS) / BUCKETS, 2.0)
    sketch = QuantileSketch().add(np.repeat(values, copies))
    assert np.array_equal(sketch.keys, ordered(values))
    assert sketch.quantile(50) == values[BUCKETS // 2 - 1]


@given(st.integers(0, 2**32), st.floats(0.0, 1000.0), st.integers(1, 20_000))
def test_the_rank_error_is_never_above_the_bound_the_sketch_states(seed: int, spread: float, count: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=count) * np.exp2(generator.uniform(-spread, spread, count))
    sketch = QuantileSketch().add(values)
    assert sketch.count == len(values)
    for percent in PERCENTS:
        # Half a rank of slack: the rank asked for is itself rounded up to a whole one.
        allowed = sketch.rank_error(percent) + 1 / len(values)
        assert rank_error(values, sketch.quantile(percent), percent) <= allowed


def zoom(count: int) -> Values:
    """Largest, smallest, second largest …: every value new at an end, then in the middle."""
    values = np.empty(count)
    values[0::2] = np.arange(count, count // 2, -1)[: len(values[0::2])]
    values[1::2] = -np.arange(count, count // 2, -1)[: len(values[1::2])]
    return values + 1e-3 * np.sin(np.arange(count))


def streams() -> dict[str, Values]:
    generator = np.random.default_rng(11)
    count = 200_000
    cluster = 1e6 + generator.random(count)
    scattered = generator.choice([-1.0, 1.0], count) * 2.0 ** generator.uniform(-1000, 1000, count)
    return {
        "normal": generator.normal(size=count),
        "heavy-tailed (Pareto 0.5)": generator.pareto(0.5, size=count),
        "heavy-tailed (Cauchy)": generator.standard_cauchy(size=count),
        "log-normal over 60 octaves": np.exp(generator.normal(size=count) * 10),
        "constant": np.full(count, 0.1),
        "two values": generator.choice([0.1, 0.1 + 2.0**-50], count, p=[0.3, 0.7]),
        "sorted": np.sort(generator.normal(size=count)),
        "sorted backwards": np.sort(generator.exponential(size=count))[::-1],
        "zoom from both ends": zoom(count),
        "half zeros": np.where(generator.random(count) < 0.5, 0.0, generator.normal(size=count)),
        "a cluster far from zero": cluster,
        "a cluster and outliers in other octaves": np.where(generator.random(count) < 0.05, scattered % 1e3, cluster),
        "every magnitude of float64": scattered,
        "geometric": 0.9999 ** np.arange(float(count)),
        "alternating signs": np.arange(float(count)) * np.where(np.arange(count) % 2, 1.0, -1.0),
        "denormals": generator.integers(1, 2**52, count).view(np.float64),
        "whole numbers up to a million": generator.integers(0, 10**6, count).astype(np.float64),
    }


@pytest.mark.parametrize("name", list(streams()))
def test_quantiles_after_merging_1000_sketches_have_rank_error_below_1_5_percent(name: str) -> None:
    values = streams()[name]
    # 1,000 ranks with neighbouring stretches of the stream: the harshest split, since no rank sees the distribution.
    merged = QuantileSketch.merge([QuantileSketch().add(part) for part in np.array_split(values, 1000)])
    assert merged.count == len(values)
    for percent in PERCENTS:
        assert rank_error(values, merged.quantile(percent), percent) <= 0.015
        assert merged.rank_error(percent) <= 0.015


def sliver_in_a_crowd() -> Values:
    """The worst case: most values in a sliver of an octave that also holds many thousands of others."""
    generator = np.random.default_rng(5)
    return np.concatenate([1.5 + generator.random(100_000) * 1e-9, 1.0 + generator.random(20_000)])


def test_where_the_bound_cannot_hold_the_sketch_says_so() -> None:
    assert QuantileSketch().add(sliver_in_a_crowd()).rank_error(50) > 0.5


@given(st.integers(0, 2**32), st.integers(5_000, 20_000), st.floats(0.1, 1000.0), st.booleans())
def test_a_quantile_is_never_further_from_the_exact_one_than_a_2_over_cap_part_of_it(
    seed: int, count: int, spread: float, with_sliver: bool
) -> None:
    generator = np.random.default_rng(seed)
    values = np.exp2(generator.uniform(-spread, spread, count)) * generator.choice([-1.0, 1.0], count)
    if with_sliver:
        values[::2] = 1.5 + values[::2] * 1e-12 / np.abs(values).max()
    sketch = QuantileSketch().add(values)
    for percent in PERCENTS:
        exact = np.sort(values)[max(0, -(-percent * count // 100) - 1)]
        assert abs(sketch.quantile(percent) - exact) <= abs(exact) * 2 / sketch.cap


def test_a_sketch_never_holds_more_than_its_buckets() -> None:
    generator = np.random.default_rng(1)
    everything = generator.integers(-(2**63), 2**63 - 1, 500_000).view(np.float64)
    sketch = QuantileSketch().add(everything[np.isfinite(everything)])
    assert len(sketch.keys) <= BUCKETS
    assert len(sketch.grid.octaves) == 4094


@pytest.mark.parametrize(("octaves", "cap"), [(1, 4096), (2, 2048), (3, 1024), (5, 512), (33, 64), (64, 64)])
def test_crowded_octaves_share_all_the_buckets_there_are(octaves: int, cap: int) -> None:
    crowd = 1.0 + np.random.default_rng(0).random(10_000)
    values = np.concatenate([np.ldexp(crowd, octave) for octave in range(octaves)])
    assert QuantileSketch().add(values).cap == cap  # the largest power of two of which so many fit into 4,096


def test_counts_beyond_2_to_the_53_are_added_exactly() -> None:
    values, counts = 1.0 + np.arange(9_000.0) / 9_000, np.full(9_000, (1 << 60) // 9_000 + 1)
    sketch = QuantileSketch().add(values, counts)
    assert sketch.count == 9_000 * ((1 << 60) // 9_000 + 1)
    assert QuantileSketch.merge([sketch, QuantileSketch().add(values)]).count == sketch.count + 9_000


# ---- states


def test_a_state_comes_back_whole() -> None:
    sketch = QuantileSketch().add(wide(20_000))
    again = QuantileSketch.deserialize(json.loads(state_of(sketch)))
    assert state_of(again) == state_of(sketch)
    assert [again.quantile(percent) for percent in PERCENTS] == [sketch.quantile(percent) for percent in PERCENTS]


def test_an_empty_sketch_merges_and_comes_back() -> None:
    empty = QuantileSketch.merge([QuantileSketch(), QuantileSketch().add(floats([]))])
    assert QuantileSketch.deserialize(empty.serialize()).count == 0


def _cut(payload: dict[str, Any]) -> None:
    payload["buckets"] = payload["buckets"][:-8]


def _foreign(payload: dict[str, Any]) -> None:
    payload["buckets"] = "not base64!"


def _too_few_counts(payload: dict[str, Any]) -> None:
    payload["buckets"] = pack(*map(np.array, ([4096], [0], [2], [5, 1], [1])))


def _impossible_shift(payload: dict[str, Any]) -> None:
    payload["buckets"] = pack(*map(np.array, ([4096], [77], [2], [5, 1], [1, 1])))


def _empty_octave(payload: dict[str, Any]) -> None:
    payload["buckets"] = pack(*map(np.array, ([4096, 4097], [0, 0], [2, 0], [5, 1], [1, 1])))


def _out_of_order(payload: dict[str, Any]) -> None:
    payload["buckets"] = pack(*map(np.array, ([4097, 4096], [0, 0], [1, 1], [5, 1], [1, 1])))


def _beyond_its_octave(payload: dict[str, Any]) -> None:
    payload["buckets"] = pack(*map(np.array, ([4096], [50], [1], [9], [1])))


def _impossible_cap(payload: dict[str, Any]) -> None:
    payload["cap"] = 100


@pytest.mark.parametrize(
    "damage",
    [
        _cut,
        _foreign,
        _too_few_counts,
        _impossible_shift,
        _empty_octave,
        _out_of_order,
        _beyond_its_octave,
        _impossible_cap,
    ],
)
def test_a_damaged_state_is_refused(damage: Callable[[dict[str, Any]], None]) -> None:
    payload = QuantileSketch().add(wide(100)).serialize()
    damage(payload)
    with pytest.raises(MetricError, match="damaged"):
        QuantileSketch.deserialize(payload)
