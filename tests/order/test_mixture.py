"""A mixture deals positions to sources by weight, exactly, with random access both ways."""

from __future__ import annotations

import pickle
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.strategies import seeds, weights

from holdfast.errors import MixtureError, OrderError
from holdfast.order import Mixture, Order, SourceSpec
from holdfast.order.blocks import BlockArrangement
from holdfast.order.cycle import rows_by_number
from holdfast.order.keys import derive_key
from holdfast.order.mixture import ARRANGEMENTS
from holdfast.order.weights import integer_weights, nest


def _names(count: int) -> list[str]:
    return [f"s{number}" for number in range(count)]


def _mixture(drawn: list[float], seed: int = 0, **options: Any) -> Mixture:
    names = _names(len(drawn))
    return Mixture(names, dict(zip(names, drawn, strict=True)), seed=seed, **options)


def _positions(start: int, count: int) -> np.ndarray[Any, Any]:
    return np.arange(start, start + count)


def _deviation(mixture: Mixture, drawn: list[float], start: int, count: int) -> float:
    """Return how far any source stands from its weight after any of these positions, by exact fractions."""
    source, _ = mixture.locate(_positions(start, count))
    total = sum(Fraction(weight) for weight in drawn)
    worst = 0.0
    for number, weight in enumerate(drawn):
        share = Fraction(weight) / total
        before = int(mixture.count(number, _positions(start, 1))[0]) - start * share
        inside = np.concatenate(([0], np.cumsum(source == number))) - np.arange(count + 1) * float(share)
        worst = max(worst, float(np.abs(float(before) + inside).max()))
    return worst


@given(weights(), seeds(), st.one_of(st.just(0), st.integers(0, 10**12)))
def test_after_every_position_each_source_is_within_the_bound(drawn: list[float], seed: int, start: int) -> None:
    mixture = _mixture(drawn, seed)
    assert _deviation(mixture, drawn, start, 2_000) <= mixture.max_deviation + 1e-6


@given(weights(most=4), seeds())
def test_the_bound_of_up_to_four_sources_is_one_sample_whatever_their_weights(drawn: list[float], seed: int) -> None:
    assert _mixture(drawn, seed).max_deviation <= 1


@settings(max_examples=20)
@given(st.lists(st.floats(1e-3, 1), min_size=5, max_size=60), seeds(), st.integers(0, 10**12))
def test_the_bound_of_any_number_of_sources_is_one_sample(drawn: list[float], seed: int, start: int) -> None:
    mixture = _mixture(drawn, seed)
    assert mixture.max_deviation <= 1
    assert _deviation(mixture, drawn, start, 2_000) <= 1 + 1e-6


@given(weights(most=40), seeds())
def test_the_bound_is_never_much_above_one_sample(drawn: list[float], seed: int) -> None:
    # Above one only where a source gets less than one sample in 2^18, and no tree of splits keeps it.
    assert _mixture(drawn, seed).max_deviation < 1.25


@pytest.mark.parametrize(
    "drawn",
    [
        [0.5, 0.5],
        [0.9, 0.1],
        [0.7, 0.2, 0.1],
        [1.0] * 3,
        [1.0] * 8,
        [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
        [0.67, 0.15, 0.045, 0.045, 0.045, 0.025, 0.02],
        [0.5, 0.25, 0.125, 0.0625, 0.0625],
        [float(number**2) for number in range(1, 21)],  # which no tree of splits keeps within one
        [1 + 1e-9 * number for number in range(33)],
    ],
    ids=str,
)
def test_usual_weights_are_within_one_sample_after_every_position(drawn: list[float]) -> None:
    mixture = _mixture(drawn)
    assert mixture.max_deviation <= 1
    assert _deviation(mixture, drawn, 0, 100_000) <= 1 + 1e-6
    assert _deviation(mixture, drawn, 10**12, 100_000) <= 1 + 1e-6


@settings(max_examples=15)
@given(weights(), seeds())
def test_of_the_earlier_arrangement_every_prefix_of_whole_blocks_holds_each_source_within_one(
    drawn: list[float], seed: int
) -> None:
    present = [weight for weight in drawn if weight]
    blocks = BlockArrangement(tuple(integer_weights(present)), derive_key("mixture", seed))
    column, _ = blocks.locate(np.arange(6 * blocks.block) if blocks.block <= 4_096 else np.arange(blocks.block))
    total = sum(Fraction(weight) for weight in present)
    for stop in range(blocks.block, len(column) + 1, blocks.block):
        counts = np.bincount(column[:stop], minlength=len(present))
        for count, weight in zip(counts.tolist(), present, strict=True):
            assert abs(count - stop * Fraction(weight) / total) <= blocks.max_deviation


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@settings(max_examples=15)
@given(weights(), seeds(), st.integers(0, 10**12))
def test_each_source_keeps_its_own_order_without_gaps(
    arrangement: Any, drawn: list[float], seed: int, start: int
) -> None:
    mixture = _mixture(drawn, seed, arrangement=arrangement)
    positions = np.arange(start, start + 3_000)
    source, ordinal = mixture.locate(positions)
    for number in range(len(drawn)):
        own = ordinal[source == number]
        before, after = mixture.count(number, np.array([start, start + 3_000]))
        assert np.array_equal(own, np.arange(before, after))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@settings(max_examples=15)
@given(weights(), seeds(), st.lists(st.integers(0, 10**13), min_size=1, max_size=40))
def test_random_access_equals_sequential(arrangement: Any, drawn: list[float], seed: int, chosen: list[int]) -> None:
    one_by_one = [
        _mixture(drawn, seed, arrangement=arrangement).locate(np.array([position])) for position in chosen[:5]
    ]
    together = _mixture(drawn, seed, arrangement=arrangement).locate(np.array(chosen))
    for number, (source, ordinal) in enumerate(one_by_one):
        assert (int(source[0]), int(ordinal[0])) == (int(together[0][number]), int(together[1][number]))
    mixture = _mixture(drawn, seed, arrangement=arrangement)
    first = min(chosen)
    walked = mixture.locate(np.arange(first, first + 2_000))
    inside = np.array([position for position in chosen if position < first + 2_000])
    again = mixture.locate(inside)
    assert np.array_equal(again[0], walked[0][inside - first])
    assert np.array_equal(again[1], walked[1][inside - first])


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@settings(max_examples=15)
@given(weights(), seeds(), st.lists(st.integers(0, 10**13), min_size=1, max_size=20))
def test_position_of_inverts_locate_however_far_out(
    arrangement: Any, drawn: list[float], seed: int, chosen: list[int]
) -> None:
    mixture = _mixture(drawn, seed, arrangement=arrangement)
    positions = np.array(chosen)
    source, ordinal = mixture.locate(positions)
    for number in np.unique(source).tolist():
        mine = source == number
        assert np.array_equal(mixture.position_of(number, ordinal[mine]), positions[mine])


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@settings(max_examples=15)
@given(weights(), seeds(), st.integers(0, 10**12))
def test_counts_are_monotone_and_add_up_to_the_position(
    arrangement: Any, drawn: list[float], seed: int, start: int
) -> None:
    mixture = _mixture(drawn, seed, arrangement=arrangement)
    positions = np.arange(start, start + 1_500)
    counts = np.array([mixture.count(number, positions) for number in range(len(drawn))])
    assert np.array_equal(counts.sum(axis=0), positions)
    assert (np.diff(counts, axis=1) >= 0).all()


def test_a_thousand_sources_each_get_their_share() -> None:
    drawn = (np.random.default_rng(3).random(1_000) + 0.01).tolist()
    mixture = _mixture(drawn)
    source, ordinal = mixture.locate(_positions(0, 20_000))
    counts = np.bincount(source, minlength=1_000)
    assert np.abs(counts - 20_000 * np.array(drawn) / sum(drawn)).max() <= mixture.max_deviation <= 1
    mine = source == 777
    assert np.array_equal(mixture.position_of(777, ordinal[mine]), np.flatnonzero(mine))


def test_what_is_left_to_chance_is_different_for_every_seed_name_and_stretch() -> None:
    def pairs(mixture: Mixture, start: int = 0) -> np.ndarray[Any, Any]:
        return mixture.locate(_positions(start, 4_096))[0].reshape(-1, 2)[:, 0]

    base = pairs(_mixture([1.0, 1.0], 0))
    others = [
        pairs(_mixture([1.0, 1.0], 0), 4_096),
        pairs(_mixture([1.0, 1.0], 1)),
        pairs(_mixture([1.0, 1.0], 0, name="other")),
        pairs(Mixture(["s0", "s1"], [(0, {"s0": 1, "s1": 1}), (4_096, {"s0": 1, "s1": 1})]), 4_096),
    ]
    for other in others:
        assert abs(int(np.count_nonzero(base == other)) - 1_024) < 5 * np.sqrt(512)


def test_ranks_that_read_every_other_position_both_get_both_sources() -> None:
    source, _ = _mixture([1.0, 1.0]).locate(_positions(0, 8_192))
    for rank in (0, 1):
        assert abs(int(source[rank::2].sum()) - 2_048) < 5 * np.sqrt(1_024)


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
    far = mixture.position_of(1, [10**9, 10**18])
    assert far[1] == -1
    assert mixture.count(1, far[:1])[0] == 10**9


def test_unnormalised_weights_are_normalised() -> None:
    positions = np.arange(5_000)
    halves, tens = _mixture([0.25, 0.75]), _mixture([10.0, 30.0])
    assert np.array_equal(halves.locate(positions)[0], tens.locate(positions)[0])


def test_weights_of_numpy_types_are_taken() -> None:
    chosen: dict[str, Any] = {"a": np.float32(1), "b": np.int64(3)}
    mixture = Mixture(["a", "b"], chosen)
    assert np.bincount(mixture.locate(_positions(0, 4_096))[0]).tolist() == [1_024, 3_072]


@pytest.mark.parametrize("bad", [-1.0, float("nan"), float("inf"), "1", None])
def test_a_weight_that_makes_no_sense_is_refused_by_name(bad: Any) -> None:
    with pytest.raises(MixtureError, match="finite number, zero or more") as caught:
        Mixture(["wiki", "chat"], {"wiki": 1.0, "chat": bad})
    assert caught.value.source == "chat"


def test_an_unknown_name_is_refused_by_name() -> None:
    with pytest.raises(MixtureError, match="names a source that is not in the mixture") as caught:
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


def _run_of(schedule: list[tuple[int, dict[str, Any]]], mixture: Mixture, stop: int) -> float:
    """Return how far any source stands from what all weights so far add up to, after any position before the stop."""
    source, _ = mixture.locate(np.arange(stop))
    worst = 0.0
    for number, name in enumerate(mixture.names):
        ideal = np.zeros(stop + 1)
        for start, table in schedule:
            ideal[start + 1 :] = table.get(name, 0) / sum(table.values())
        worst = max(worst, float(np.abs(np.cumsum(ideal) - [0, *np.cumsum(source == number)]).max()))
    return worst


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0, 1)), min_size=1, max_size=5), seeds())
def test_two_sources_stay_within_one_sample_over_any_schedule(changes: list[tuple[int, float]], seed: int) -> None:
    starts = np.cumsum([0, *(gap for gap, _ in changes)]).tolist()
    shares = [0.3, *(0.01 + 0.98 * share for _, share in changes)]
    schedule = [(start, {"a": share, "b": 1 - share}) for start, share in zip(starts, shares, strict=True)]
    mixture = Mixture(["a", "b"], schedule, seed=seed)
    assert mixture.max_deviation <= 1
    assert _run_of(schedule, mixture, starts[-1] + 500) <= 1 + 1e-6


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(1, 400), st.lists(st.integers(0, 9), min_size=5, max_size=5)), max_size=8))
def test_the_deviations_of_a_schedule_do_not_add_up(changes: list[tuple[int, list[int]]]) -> None:
    names = _names(5)
    starts = np.cumsum([0, *(gap for gap, _ in changes)]).tolist()
    tables = [[1, 2, 3, 4, 5], *(table if any(table) else [1] * 5 for _, table in changes)]
    schedule = [(start, dict(zip(names, table, strict=True))) for start, table in zip(starts, tables, strict=True)]
    mixture = Mixture(names, schedule)
    assert _run_of(schedule, mixture, starts[-1] + 400) <= mixture.max_deviation + 1e-6 < 3


def test_each_stretch_of_a_schedule_follows_its_own_weights() -> None:
    mixture = Mixture(["a", "b"], [(0, {"a": 1, "b": 0}), (1_000, {"a": 1, "b": 3}), (9_192, {"b": 1})])
    source, _ = mixture.locate(np.arange(12_000))
    assert not source[:1_000].any()
    assert np.abs(np.bincount(source[1_000:9_192]) - [2_048, 6_144]).max() <= 1
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
    with pytest.raises(MixtureError, match="never exhausted") as caught:
        Order(specs, weights=dropped, stop="all_exhausted")
    assert caught.value.source == "b"
    with pytest.raises(MixtureError, match="never exhausted"):
        # Its end would lie beyond the last position there can be.
        Order([SourceSpec("a", 9), SourceSpec("b", 10**10)], weights={"a": 1, "b": 1e-9}, stop="all_exhausted")


def test_a_source_of_weight_zero_does_not_hold_up_all_exhausted() -> None:
    specs = [SourceSpec("a", 100), SourceSpec("b", 600), SourceSpec("c", 10)]
    with_c = Order(specs, weights={"a": 1, "b": 1, "c": 0}, stop="all_exhausted").length
    assert with_c == Order(specs[:2], weights={"a": 1, "b": 1}, stop="all_exhausted").length


def test_each_source_counts_its_own_epochs() -> None:
    order = Order([SourceSpec("a", 3), SourceSpec("b", 70_000)], weights={"a": 1, "b": 1})
    found = order.locate(np.arange(600))
    assert found.epoch[found.source == 0].tolist() == [ordinal // 3 for ordinal in range(300)]
    assert not found.epoch[found.source == 1].any()
    late = order.locate(np.arange(140_000, 140_600))
    assert set(late.epoch[late.source == 1].tolist()) == {1}


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_positions_may_have_any_shape(arrangement: Any) -> None:
    mixture = _mixture([1, 2, 3], arrangement=arrangement)
    sources, ordinals = mixture.locate(np.arange(6))
    for shape in ((2, 3), (1, 6, 1)):
        positions = np.arange(6).reshape(shape)
        found = mixture.locate(positions)
        assert (found[0] == sources.reshape(shape)).all()
        assert (found[1] == ordinals.reshape(shape)).all()
        assert (mixture.count(1, positions).ravel() == mixture.count(1, np.arange(6))).all()
        assert (mixture.position_of(1, positions).ravel() == mixture.position_of(1, np.arange(6))).all()
    source, ordinal = mixture.locate(5)
    assert (int(source), int(ordinal)) == (sources[5], ordinals[5])
    assert mixture.count(0, 5).shape == mixture.position_of(0, 5).shape == ()


def test_nothing_comes_before_the_first_position() -> None:
    mixture = _mixture([1, 2])
    for asked in (mixture.locate, lambda wrong: mixture.count(0, wrong), lambda wrong: mixture.position_of(0, wrong)):
        with pytest.raises(OrderError, match="cannot be negative"):
            asked([3, -1])


def test_a_mixture_is_the_same_after_pickling() -> None:
    mixture = _mixture([0.2, 0.5, 0.3], 9)
    again = pickle.loads(pickle.dumps(mixture))  # noqa: S301 - our own bytes
    assert np.array_equal(mixture.locate(np.arange(3_000))[1], again.locate(np.arange(3_000))[1])


def test_more_sources_than_16_bits_can_number_are_told_apart() -> None:
    number = np.array([65_537, 1, 65_537, 0], dtype=np.int32)
    rows, bounds = rows_by_number(number, 65_538)
    assert rows.tolist() == [3, 1, 0, 2]
    assert (bounds[:3], bounds[-2:]) == ([0, 1, 2], [2, 4])
