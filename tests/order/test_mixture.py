"""A mixture deals positions to sources by weight, exactly, with random access both ways."""

from __future__ import annotations

import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.strategies import seeds, weights

from holdfast.errors import MixtureError
from holdfast.order import Mixture, Order, SourceSpec
from holdfast.order.mixture import nest


def _names(count: int) -> list[str]:
    return [f"s{number}" for number in range(count)]


def _mixture(drawn: list[float], seed: int = 0, **options: Any) -> Mixture:
    names = _names(len(drawn))
    return Mixture(names, dict(zip(names, drawn, strict=True)), seed=seed, **options)


@given(weights(), seeds())
def test_every_prefix_of_whole_blocks_holds_each_source_within_one(drawn: list[float], seed: int) -> None:
    mixture = _mixture(drawn, seed)
    source, _ = mixture.locate(np.arange(6 * mixture.block) if mixture.block <= 4_096 else np.arange(mixture.block))
    total = sum(Fraction(weight) for weight in drawn)
    for stop in range(mixture.block, len(source) + 1, mixture.block):
        counts = np.bincount(source[:stop], minlength=len(drawn))
        for count, weight in zip(counts.tolist(), drawn, strict=True):
            assert abs(count - stop * Fraction(weight) / total) <= mixture.max_deviation


@given(weights(), seeds(), st.integers(0, 10**12))
def test_each_source_keeps_its_own_order_without_gaps(drawn: list[float], seed: int, start: int) -> None:
    mixture = _mixture(drawn, seed)
    positions = np.arange(start, start + 3_000)
    source, ordinal = mixture.locate(positions)
    for number in range(len(drawn)):
        own = ordinal[source == number]
        before, after = mixture.count(number, np.array([start, start + 3_000]))
        assert np.array_equal(own, np.arange(before, after))


@given(weights(), seeds(), st.lists(st.integers(0, 10**13), min_size=1, max_size=40))
def test_random_access_equals_sequential(drawn: list[float], seed: int, chosen: list[int]) -> None:
    one_by_one = [_mixture(drawn, seed).locate(np.array([position])) for position in chosen[:5]]
    together = _mixture(drawn, seed).locate(np.array(chosen))
    for number, (source, ordinal) in enumerate(one_by_one):
        assert (int(source[0]), int(ordinal[0])) == (int(together[0][number]), int(together[1][number]))
    mixture = _mixture(drawn, seed)
    first = min(chosen)
    walked = mixture.locate(np.arange(first, first + 2_000))
    inside = np.array([position for position in chosen if position < first + 2_000])
    again = mixture.locate(inside)
    assert np.array_equal(again[0], walked[0][inside - first])
    assert np.array_equal(again[1], walked[1][inside - first])


@given(weights(), seeds(), st.lists(st.integers(0, 10**13), min_size=1, max_size=20))
def test_position_of_inverts_locate_however_far_out(drawn: list[float], seed: int, chosen: list[int]) -> None:
    mixture = _mixture(drawn, seed)
    positions = np.array(chosen)
    source, ordinal = mixture.locate(positions)
    for number in np.unique(source).tolist():
        mine = source == number
        assert np.array_equal(mixture.position_of(number, ordinal[mine]), positions[mine])


@given(weights(), seeds(), st.integers(0, 10**12))
def test_counts_are_monotone_and_add_up_to_the_position(drawn: list[float], seed: int, start: int) -> None:
    mixture = _mixture(drawn, seed)
    positions = np.arange(start, start + 1_500)
    counts = np.array([mixture.count(number, positions) for number in range(len(drawn))])
    assert np.array_equal(counts.sum(axis=0), positions)
    assert (np.diff(counts, axis=1) >= 0).all()


def test_a_thousand_sources_each_get_their_share() -> None:
    drawn = (np.random.default_rng(3).random(1_000) + 0.01).tolist()
    mixture = _mixture(drawn)
    source, ordinal = mixture.locate(np.arange(4 * mixture.block))
    total = sum(Fraction(weight) for weight in drawn)
    for blocks in range(1, 5):
        counts = np.bincount(source[: blocks * mixture.block], minlength=1_000)
        worst = max(
            abs(count - blocks * mixture.block * Fraction(weight) / total)
            for count, weight in zip(counts.tolist(), drawn, strict=True)
        )
        assert worst <= 1
    assert np.array_equal(mixture.position_of(777, ordinal[source == 777]), np.flatnonzero(source == 777))


def test_places_inside_a_block_are_mixed() -> None:
    mixture = _mixture([1.0, 1.0])
    source, _ = mixture.locate(np.arange(mixture.block))
    changes = int(np.count_nonzero(np.diff(source)))
    assert abs(changes - mixture.block / 2) < 5 * np.sqrt(mixture.block / 4)


def test_blocks_seeds_and_names_are_arranged_differently() -> None:
    base = _mixture([1.0, 1.0], 0)
    block = base.block
    first = base.locate(np.arange(block))[0]
    others = [
        base.locate(np.arange(block, 2 * block))[0],
        _mixture([1.0, 1.0], 1).locate(np.arange(block))[0],
        _mixture([1.0, 1.0], 0, name="other").locate(np.arange(block))[0],
    ]
    for other in others:
        assert abs(int(np.count_nonzero(first == other)) - block / 2) < 5 * np.sqrt(block / 4)


# Weights: which are taken, and which are refused by name.


def test_a_weight_of_zero_leaves_the_source_out() -> None:
    source, _ = _mixture([1.0, 0.0, 2.0]).locate(np.arange(5_000))
    assert set(source.tolist()) == {0, 2}
    assert _mixture([1.0, 0.0]).position_of(1, np.array([0])).tolist() == [-1]


def test_a_single_weight_of_one_takes_everything() -> None:
    source, ordinal = _mixture([0.0, 1.0]).locate(np.arange(1_000))
    assert set(source.tolist()) == {1}
    assert np.array_equal(ordinal, np.arange(1_000))


def test_a_weight_of_one_in_a_thousand_million_is_still_met() -> None:
    mixture = _mixture([1.0, 1e-9])
    positions = mixture.position_of(1, np.arange(5))
    assert np.array_equal(mixture.locate(positions)[0], np.ones(5))
    assert np.array_equal(mixture.locate(positions)[1], np.arange(5))
    assert (np.abs(positions - 1e9 * (np.arange(5) + 0.5)) <= 1e9).all()


def test_unnormalised_weights_are_normalised() -> None:
    positions = np.arange(5_000)
    halves, tens = _mixture([0.25, 0.75]), _mixture([10.0, 30.0])
    assert np.array_equal(halves.locate(positions)[0], tens.locate(positions)[0])


def test_weights_of_numpy_types_are_taken() -> None:
    chosen: dict[str, Any] = {"a": np.float32(1), "b": np.int64(3)}
    mixture = Mixture(["a", "b"], chosen)
    assert np.bincount(mixture.locate(np.arange(mixture.block))[0]).tolist() == [256, 768]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "1", None])
def test_a_weight_that_makes_no_sense_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(MixtureError, match="finite number, zero or more") as caught:
        Mixture(["wiki", "chat"], {"wiki": 1.0, "chat": bad})
    assert caught.value.source == "chat"


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(MixtureError, match="names no source") as caught:
        Mixture(["wiki"], {"wiki": 1.0, "wikki": 1.0})
    assert caught.value.source == "wikki"


def test_a_duplicate_name_is_refused_by_name() -> None:
    with pytest.raises(MixtureError, match="same name") as caught:
        Mixture(["wiki", "chat", "wiki"], {"wiki": 1.0, "chat": 1.0})
    assert caught.value.source == "wiki"


def test_weights_that_are_all_zero_are_refused() -> None:
    with pytest.raises(MixtureError, match="every weight of the mixture is zero"):
        Mixture(["wiki"], {"wiki": 0.0})


# Schedules: from each position on, other weights hold.


@given(
    st.lists(st.integers(1, 4_000), max_size=3),
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=4, max_size=4),
    seeds(),
)
def test_a_schedule_keeps_every_sources_count_going(gaps: list[int], tables: list[tuple[int, int]], seed: int) -> None:
    starts = np.concatenate(([0], np.cumsum(gaps))).astype(int).tolist()
    schedule = [
        (start, {"a": float(a), "b": float(b) if a or b else 1.0})
        for start, (a, b) in zip(starts, tables, strict=False)
    ]
    mixture = Mixture(["a", "b"], schedule, seed=seed)
    positions = np.arange(starts[-1] + 2_000)
    source, ordinal = mixture.locate(positions)
    for number in (0, 1):
        mine = source == number
        assert np.array_equal(ordinal[mine], np.arange(np.count_nonzero(mine)))
        assert np.array_equal(mixture.position_of(number, ordinal[mine]), positions[mine])
        assert np.array_equal(mixture.count(number, positions), np.concatenate(([0], np.cumsum(mine)))[:-1])


def test_each_stretch_of_a_schedule_follows_its_own_weights() -> None:
    mixture = Mixture(["a", "b"], [(0, {"a": 1, "b": 0}), (1_000, {"a": 1, "b": 3}), (9_192, {"b": 1})])
    source, _ = mixture.locate(np.arange(12_000))
    assert not source[:1_000].any()
    assert np.bincount(source[1_000:9_192]).tolist() == [2_048, 6_144]
    assert source[9_192:].all()


@pytest.mark.parametrize("starts", [[1], [0, 5, 5], [0, 5, 4], []])
def test_a_schedule_must_begin_at_zero_and_go_forward(starts: list[int]) -> None:
    with pytest.raises(MixtureError, match=r"begin at position 0|must increase"):
        Mixture(["a"], [(start, {"a": 1.0}) for start in starts])


def test_a_source_that_a_schedule_drops_has_no_later_position() -> None:
    mixture = Mixture(["a", "b"], [(0, {"a": 1, "b": 1}), (1_024, {"a": 1})])
    assert mixture.position_of(1, np.array([511, 512])).tolist()[1] == -1


# Nesting: the weights of leaves multiply.


@given(st.tuples(st.integers(1, 9), st.integers(1, 9)), st.tuples(st.integers(1, 9), st.integers(1, 9)))
def test_the_weights_of_a_nested_mixture_multiply_exactly(outer: tuple[int, int], inner: tuple[int, int]) -> None:
    flat = nest({"web": outer[0], "code": outer[1]}, {"web": [(0, {"wiki": inner[0], "news": inner[1]})]})
    whole, part = sum(outer), sum(inner)
    assert flat == [
        (
            0,
            {
                "wiki": Fraction(outer[0] * inner[0], whole * part),
                "news": Fraction(outer[0] * inner[1], whole * part),
                "code": Fraction(outer[1], whole),
            },
        )
    ]
    assert sum(flat[0][1].values()) == 1


def test_a_nested_mixture_runs_as_the_flat_one() -> None:
    flat = nest({"web": 2, "code": 1}, {"web": [(0, {"wiki": 3, "news": 1})]})
    names = ["wiki", "news", "code"]
    nested = Mixture(names, flat)
    direct = Mixture(names, {"wiki": 6, "news": 2, "code": 4})
    assert np.array_equal(nested.locate(np.arange(4_000))[0], direct.locate(np.arange(4_000))[0])


def test_nested_schedules_change_at_every_start_of_either() -> None:
    flat = nest(
        [(0, {"web": 1, "code": 1}), (10, {"web": 3, "code": 1})],
        {"web": [(0, {"wiki": 1, "news": 0}), (20, {"wiki": 1, "news": 1})]},
    )
    assert [start for start, _ in flat] == [0, 10, 20]
    assert flat[2][1] == {"wiki": Fraction(3, 8), "news": Fraction(3, 8), "code": Fraction(1, 4)}


def test_a_leaf_that_two_branches_share_is_refused_by_name() -> None:
    with pytest.raises(MixtureError, match="same name") as caught:
        nest({"web": 1, "wiki": 1}, {"web": [(0, {"wiki": 1})]})
    assert caught.value.source == "wiki"


# Sources under a mixture, each at its own epoch, and when the stream ends.


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 5)), min_size=2, max_size=5), seeds())
def test_within_each_sources_epoch_every_index_comes_exactly_once(drawn: list[tuple[int, int]], seed: int) -> None:
    specs = [SourceSpec(f"s{number}", length, seed=seed) for number, (length, _) in enumerate(drawn)]
    order = Order(specs, weights={f"s{number}": weight for number, (_, weight) in enumerate(drawn)}, seed=seed)
    found = order.locate(np.arange(2_000))
    for number, spec in enumerate(specs):
        mine = found.source == number
        epochs = found.epoch[mine]
        assert (np.diff(epochs) >= 0).all()
        for epoch in range(int(epochs[-1])):
            assert np.array_equal(np.sort(found.index[mine][epochs == epoch]), np.arange(spec.length))


@pytest.mark.parametrize("stop", ["first_exhausted", "all_exhausted"])
@given(st.lists(st.tuples(st.integers(1, 80), st.integers(1, 5)), min_size=2, max_size=4))
def test_a_stop_policy_ends_with_the_sample_that_exhausts(stop: Any, drawn: list[tuple[int, int]]) -> None:
    specs = [SourceSpec(f"s{number}", length) for number, (length, _) in enumerate(drawn)]
    chosen = {f"s{number}": weight for number, (_, weight) in enumerate(drawn)}
    order = Order(specs, weights=chosen, stop=stop)
    assert order.length is not None
    found = order.locate(np.arange(order.length))
    counts = np.bincount(found.source, minlength=len(drawn))
    exhausted = counts >= [length for length, _ in drawn]
    earlier = np.bincount(found.source[:-1], minlength=len(drawn)) >= [length for length, _ in drawn]
    decide = any if stop == "first_exhausted" else all
    assert decide(exhausted.tolist())
    assert not decide(earlier.tolist())


def test_without_a_stop_policy_there_is_no_end() -> None:
    specs = [SourceSpec("a", 5), SourceSpec("b", 6)]
    assert Order(specs, weights={"a": 1, "b": 1}).length is None
    assert Order([SourceSpec("a", 5)], stop="first_exhausted").length == 5


def test_a_source_that_is_never_passed_through_is_named_before_anything_runs() -> None:
    specs = [SourceSpec("a", 100), SourceSpec("b", 600)]
    dropped = [(0, {"a": 1.0, "b": 1.0}), (1_024, {"a": 1.0})]
    with pytest.raises(MixtureError, match="never passed through") as caught:
        Order(specs, weights=dropped, stop="all_exhausted")
    assert caught.value.source == "b"
    with pytest.raises(MixtureError, match="never passed through"):
        # Its end would lie beyond the last position there can be.
        Order([SourceSpec("a", 9), SourceSpec("b", 10**10)], weights={"a": 1, "b": 1e-9}, stop="all_exhausted")


def test_a_source_of_weight_zero_does_not_hold_up_all_exhausted() -> None:
    specs = [SourceSpec("a", 100), SourceSpec("b", 600), SourceSpec("c", 10)]
    with_c = Order(specs, weights={"a": 1, "b": 1, "c": 0}, stop="all_exhausted").length
    assert with_c == Order(specs[:2], weights={"a": 1, "b": 1}, stop="all_exhausted").length


def test_a_mixture_is_the_same_after_pickling() -> None:
    mixture = _mixture([0.2, 0.5, 0.3], 9)
    again = pickle.loads(pickle.dumps(mixture))  # noqa: S301 - our own bytes
    assert np.array_equal(mixture.locate(np.arange(3_000))[1], again.locate(np.arange(3_000))[1])
