"""States: plain JSON, complete, and mergeable into another number of ranks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import MetricError
from holdfast.metrics import AggregationType, Metric, MetricBatch, MetricColumn, MetricsAggregator, merge_state_dicts


def batch_of(seed: int, size: int = 50) -> MetricBatch:
    """All six types, of values that depend on the seed alone."""
    generator = np.random.default_rng(seed)
    values = generator.normal(size=size) * np.exp(generator.normal(size=size) * 5)
    integers = generator.integers(-(2**62), 2**62, size)
    names = np.array([f"category {number}" for number in generator.integers(0, 9, size)], dtype=object)
    numeric = [kind for kind in AggregationType if kind is not AggregationType.CATEGORICAL_COUNT]
    return MetricBatch(
        (
            *(MetricColumn("wiki", f"{kind.value}_float", values, kind) for kind in numeric),
            *(MetricColumn("chat", f"{kind.value}_int", integers, kind) for kind in numeric),
            MetricColumn("wiki", "language", names, AggregationType.CATEGORICAL_COUNT),
        )
    )


def aggregate(seeds: list[int]) -> MetricsAggregator:
    aggregator = MetricsAggregator(recent_steps=16)
    for seed in seeds:
        aggregator.update(batch_of(seed), step=seed)
    return aggregator


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    restored: dict[str, Any] = json.loads(json.dumps(state, allow_nan=False))
    return restored


def loaded(state: dict[str, Any]) -> MetricsAggregator:
    aggregator = MetricsAggregator(recent_steps=16)
    aggregator.load_state_dict(through_json(state))
    return aggregator


@given(st.integers(0, 12))
def test_a_run_that_was_stopped_and_resumed_reports_the_same_bits(stop: int) -> None:
    resumed = loaded(aggregate(list(range(stop))).state_dict())
    for seed in range(stop, 12):
        resumed.update(batch_of(seed), step=seed)
    uninterrupted = aggregate(list(range(12)))
    assert json.dumps(resumed.state_dict()) == json.dumps(uninterrupted.state_dict())
    assert repr(resumed.get_metrics()) == repr(uninterrupted.get_metrics())


@pytest.mark.parametrize(("before", "after"), [(8, 3), (3, 8), (1, 5), (2, 2)])
def test_states_of_some_ranks_loaded_into_others_keep_every_total(before: int, after: int) -> None:
    seeds = list(range(24))
    old = [aggregate(seeds[rank:16:before]).state_dict() for rank in range(before)]
    new = [loaded(merge_state_dicts(old[rank::after])) for rank in range(after)]
    for rank, aggregator in enumerate(new):
        for seed in seeds[16 + rank :: after]:
            aggregator.update(batch_of(seed), step=seed)
    total = loaded(merge_state_dicts([aggregator.state_dict() for aggregator in new]))
    assert repr(total.get_metrics()) == repr(aggregate(seeds).get_metrics())


def test_merging_no_state_gives_an_empty_one_that_loads() -> None:
    aggregator = MetricsAggregator()
    aggregator.load_state_dict(through_json(merge_state_dicts([])))
    assert aggregator.get_metrics() == {}


def test_a_metric_known_to_one_state_only_is_kept() -> None:
    first, second = MetricsAggregator(), MetricsAggregator()
    first.update([Metric("wiki", "a", 1, AggregationType.SUM)])
    second.update([Metric("chat", "b", 2, AggregationType.MAX)])
    merged = MetricsAggregator()
    merged.load_state_dict(merge_state_dicts([first.state_dict(), second.state_dict()]))
    assert merged.get_metrics() == {"wiki": {"a": 1}, "chat": {"b": 2}}


def test_merging_one_name_with_two_types_is_an_error_naming_both() -> None:
    first, second = MetricsAggregator(), MetricsAggregator()
    first.update([Metric("wiki", "m", 1, AggregationType.SUM)])
    second.update([Metric("wiki", "m", 1, AggregationType.MAX)])
    with pytest.raises(MetricError, match="'sum' and 'max'"):
        merge_state_dicts([first.state_dict(), second.state_dict()])


def test_the_state_of_a_whole_run_is_not_merged_a_second_time() -> None:
    aggregator = aggregate([1, 2])
    whole = aggregator.run_state_dict()
    with pytest.raises(MetricError, match="counted twice"):
        merge_state_dicts([whole, whole])
    assert repr(loaded(merge_state_dicts([whole])).get_metrics()) == repr(aggregator.get_metrics())


def test_a_window_of_another_length_is_not_continued_but_the_totals_are() -> None:
    state = through_json(aggregate([1, 2, 3]).state_dict())
    other = MetricsAggregator(recent_steps=99)
    other.load_state_dict(state)
    labels = other.get_metrics()["wiki"]
    assert "distribution_float_p50" in labels
    assert "distribution_float_recent_p50" not in labels
    with pytest.raises(MetricError, match="different windows"):
        merge_state_dicts([state, other.state_dict()])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda state: state.pop("metrics"), "metrics is missing"),
        (lambda state: state.update(version=99), "newer holdfast"),
        (lambda state: state["metrics"][0].pop("state"), "damaged"),
        (lambda state: state["metrics"][-1].update(state={"count": "x"}), "damaged"),
        (lambda state: state["metrics"][0].update(state=7), "damaged"),
        (lambda state: state["metrics"][0].update(type="median"), "no handler"),
        (lambda state: state["metrics"].append(state["metrics"][0]), "twice"),
    ],
)
def test_a_damaged_or_foreign_state_is_refused_and_says_why(damage: Any, message: str) -> None:
    state = through_json(aggregate([1]).state_dict())
    damage(state)
    with pytest.raises(MetricError, match=message):
        MetricsAggregator().load_state_dict(state)


def test_loading_replaces_what_was_aggregated() -> None:
    state = aggregate([1]).state_dict()
    aggregator = aggregate([2, 3])
    aggregator.load_state_dict(state)
    assert repr(aggregator.get_metrics()) == repr(aggregate([1]).get_metrics())


def test_a_run_goes_on_from_the_state_of_the_whole_run() -> None:
    resumed = loaded(aggregate(list(range(6))).run_state_dict())
    for seed in range(6, 12):
        resumed.update(batch_of(seed), step=seed)
    whole = aggregate(list(range(12)))
    assert repr(resumed.get_metrics()) == repr(whole.get_metrics())
    assert json.dumps(resumed.state_dict()) == json.dumps(whole.state_dict())


def test_a_name_of_another_type_than_in_the_runs_state_is_an_error_naming_both() -> None:
    aggregator = loaded(aggregate([1]).run_state_dict())
    aggregator.update([Metric("wiki", "sum_float", 1, AggregationType.MAX)])
    with pytest.raises(MetricError, match="'sum' and 'max'"):
        aggregator.get_metrics()
