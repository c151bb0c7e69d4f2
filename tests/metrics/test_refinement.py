"""Refined distributions: right in rank on streams made to break a histogram, and still the same bits in any order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.metrics.test_sketch import rank_error

from holdfast.errors import MetricError
from holdfast.metrics import AggregationType, DistributionHandler, Metric, MetricBatch, MetricColumn, MetricsAggregator
from holdfast.metrics.handlers.distribution import Distribution
from holdfast.metrics.refinement import Refinement

Values = NDArray[np.float64]
PERCENTS = (1, 5, 25, 50, 75, 95, 99)
REFINED = DistributionHandler(refined=True)
COUNT = 60_000


def mixed(generator: np.random.Generator, *parts: Values) -> Values:
    return generator.permutation(np.concatenate(parts))


def crowd(generator: np.random.Generator, count: int) -> Values:
    """All distinct, all in one octave, which they fill."""
    return 1.0 + generator.random(count)


def sliver_in_a_crowd(generator: np.random.Generator) -> Values:
    return mixed(generator, 1.5 + generator.random(COUNT * 4 // 5) * 1e-9, crowd(generator, COUNT // 5))


def slivers_of_both_signs(generator: np.random.Generator) -> Values:
    values = sliver_in_a_crowd(generator)
    values[generator.random(COUNT) < 0.5] *= -1.0
    return values


def heavy_value_in_a_crowd(generator: np.random.Generator) -> Values:
    return mixed(generator, np.full(COUNT * 2 // 5, 1.6180339887), crowd(generator, COUNT * 3 // 5))


def neighbouring_heavy_values_in_a_crowd(generator: np.random.Generator) -> Values:
    heavy = 1.25 + np.arange(3) * 2.0**-52
    return mixed(generator, np.repeat(heavy, COUNT // 6), crowd(generator, COUNT // 2))


def values_repeated_often_but_none_very_often(generator: np.random.Generator) -> Values:
    repeated = np.repeat(1.5 + generator.random(300) * 1e-8, COUNT // 600)
    return mixed(generator, repeated, crowd(generator, COUNT // 2))


def a_hundred_slivers(generator: np.random.Generator) -> Values:
    centres = np.repeat(1.0 + generator.random(100), COUNT // 200)
    return mixed(generator, centres + generator.random(len(centres)) * 1e-11, crowd(generator, COUNT // 2))


def geometric(generator: np.random.Generator) -> Values:
    return np.exp2(-generator.random(COUNT) * 1000) * np.where(generator.random(COUNT) < 0.5, 1.0, 1.0 + 1e-13)


def alternating_signs(generator: np.random.Generator) -> Values:
    values = heavy_value_in_a_crowd(generator)
    values[::2] *= -1.0
    return values


def denormals(generator: np.random.Generator) -> Values:
    sliver = (2**50 + generator.integers(0, 10_000, COUNT // 2)).view(np.float64)
    return mixed(generator, sliver, generator.integers(1, 2**52, COUNT // 2).view(np.float64))


ADVERSARIAL = [
    sliver_in_a_crowd,
    slivers_of_both_signs,
    heavy_value_in_a_crowd,
    neighbouring_heavy_values_in_a_crowd,
    values_repeated_often_but_none_very_often,
    a_hundred_slivers,
    geometric,
    alternating_signs,
    denormals,
]


def summary(values: Values) -> Distribution:
    return REFINED.update(REFINED.init(), values)


def summary_of_ranks(values: Values, ranks: int) -> Distribution:
    """Every rank's part summarised apart, and all of them merged, fifty at a time."""

    def groups() -> Iterator[Distribution]:
        parts = np.array_split(values, ranks)
        for start in range(0, ranks, 50):
            yield REFINED.merge([summary(part) for part in parts[start : start + 50]])

    return REFINED.merge(list(groups()))


def state_of(distribution: Distribution) -> str:
    return json.dumps(REFINED.serialize(distribution))


@pytest.mark.parametrize("stream", ADVERSARIAL)
def test_after_merging_1000_ranks_the_rank_error_is_below_1_5_percent(
    stream: Callable[[np.random.Generator], Values],
) -> None:
    values = stream(np.random.default_rng(11))
    merged = summary_of_ranks(values, 1000)
    for percent in PERCENTS:
        estimate, bound = merged.sketch.quantile_with_error(percent, merged.refinement)
        error = rank_error(values, estimate, percent)
        assert error <= 0.015
        assert error <= bound + 1 / len(values)


def test_without_refinement_the_same_streams_are_far_off_and_say_so() -> None:
    values = sliver_in_a_crowd(np.random.default_rng(11))
    sketch = summary(values).sketch
    assert rank_error(values, sketch.quantile(50), 50) > 0.2
    assert sketch.rank_error(50) > 0.5


def composite(seed: int) -> Values:
    """Up to a hundred slivers, heavy values, lattices and peaks of random sizes, amid a crowd in one octave."""
    generator = np.random.default_rng(seed)
    size = 30_000
    parts = [crowd(generator, max(6000, int(size * generator.choice([0.02, 0.1, 0.5]))))]
    shares = generator.dirichlet(np.full(generator.choice([1, 2, 5, 10, 30, 100]), generator.choice([0.2, 1.0, 5.0])))
    for count in (size * shares).astype(int).tolist():
        centre, width = 1.0 + generator.random(), 10.0 ** -int(generator.integers(3, 17))
        shapes = [
            np.full(count, centre),
            centre + generator.random(count) * width,
            centre + np.floor(20 * generator.random(count) ** 3) * width,
            centre + generator.standard_cauchy(count) * width * 1e-3,
        ]
        parts.append(shapes[generator.integers(len(shapes))])
    return mixed(generator, *parts) * float(generator.choice([-1.0, 1.0]))


def test_on_a_hundred_composite_streams_the_rank_error_is_below_1_5_percent() -> None:
    far_off_unrefined = 0
    for seed in range(100):
        values = composite(seed)
        distribution = summary(values)
        for percent in PERCENTS:
            estimate, bound = distribution.sketch.quantile_with_error(percent, distribution.refinement)
            error = rank_error(values, estimate, percent)
            assert error <= 0.015, seed
            assert error <= bound + 1 / len(values), seed
            far_off_unrefined += rank_error(values, distribution.sketch.quantile(percent), percent) > 0.015
    assert far_off_unrefined > 50  # these streams are hard


@given(
    seed=st.integers(0, 2**32),
    width=st.floats(1e-16, 1e-2),
    heavy=st.integers(0, 4000),
    negative=st.booleans(),
    scale=st.sampled_from([1.0, 1e-300, 1e300, 5e-324]),
)
def test_the_rank_error_is_never_above_the_stated_bound(
    seed: int, width: float, heavy: int, negative: bool, scale: float
) -> None:
    generator = np.random.default_rng(seed)
    sliver = 1.0 + generator.random() + generator.random(6000) * width
    values = mixed(generator, sliver, np.full(heavy, 1.0 + generator.random()), crowd(generator, 6000))
    values = values * scale if scale > 1e-310 else (values * 2.0**50).astype(np.int64).view(np.float64)
    values = -values if negative else values
    distribution = summary(values)
    for percent in PERCENTS:
        estimate, bound = distribution.sketch.quantile_with_error(percent, distribution.refinement)
        assert rank_error(values, estimate, percent) <= bound + 1 / len(values)


@given(seed=st.integers(0, 2**32), cuts=st.lists(st.integers(0, 9000), max_size=4))
def test_merge_of_any_split_in_any_order_is_the_whole_bit_for_bit(seed: int, cuts: list[int]) -> None:
    generator = np.random.default_rng(seed)
    values = mixed(generator, 1.5 + generator.random(4500) * 1e-9, crowd(generator, 4500))
    parts = [summary(part) for part in np.split(values, sorted(cuts))]
    whole = state_of(summary(values[::-1]))
    assert state_of(REFINED.merge(parts)) == whole
    chain = parts[0]
    for part in parts[1:]:
        chain = REFINED.merge([part, chain])
    assert state_of(chain) == whole


def test_whole_numbers_and_the_same_numbers_as_floats_are_refined_alike() -> None:
    values = np.random.default_rng(0).integers(0, 30_000, 50_000)
    whole_numbers = REFINED.update(REFINED.init(), values).refinement
    floats = summary(values.astype(np.float64)).refinement
    assert whole_numbers is not None
    assert floats is not None
    assert whole_numbers.serialize() == floats.serialize()


def test_an_aggregator_with_the_refined_handler_resumes_and_reports_what_lies_in_the_sliver() -> None:
    values = sliver_in_a_crowd(np.random.default_rng(5))
    handlers = {AggregationType.DISTRIBUTION: REFINED}
    first = MetricsAggregator(handlers=handlers)
    first.update(MetricBatch((MetricColumn("wiki", "m", values[:30_000], AggregationType.DISTRIBUTION),)))
    resumed = MetricsAggregator(handlers=handlers)
    resumed.load_state_dict(json.loads(json.dumps(first.state_dict())))
    resumed.update(MetricBatch((MetricColumn("wiki", "m", values[30_000:], AggregationType.DISTRIBUTION),)))
    figures = resumed.get_metrics()["wiki"]
    assert rank_error(values, figures["m_p50"], 50) <= 0.015
    assert 1.5 <= figures["m_p50"] <= 1.5 + 1e-9


def test_states_with_and_without_refinement_are_not_confused() -> None:
    plain = MetricsAggregator()
    plain.update([Metric("wiki", "m", 1.0, AggregationType.DISTRIBUTION)])
    refined = MetricsAggregator(handlers={AggregationType.DISTRIBUTION: REFINED})
    with pytest.raises(MetricError, match="handlers it was saved with"):
        refined.load_state_dict(plain.state_dict())


def test_a_state_whose_parts_count_different_values_is_refused() -> None:
    payload = json.loads(state_of(summary(np.arange(10.0))))
    payload["refinement"] = None
    with pytest.raises(MetricError, match=r"damaged: its parts have different counts of values: \[0, 10\]"):
        REFINED.deserialize(payload)


def test_a_refinement_of_another_size_is_refused() -> None:
    text = Refinement().add(np.arange(5)).serialize()
    assert text is not None
    with pytest.raises(MetricError, match="damaged"):
        Refinement.deserialize(text[:-8])
    assert Refinement.deserialize(Refinement().serialize()).tables is None
