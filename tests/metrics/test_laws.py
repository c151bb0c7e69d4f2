"""The laws of merging, for every aggregation type: whatever the grouping and the order, the same state and figures."""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.metrics.strategies import numbers, shuffled_groups

from holdfast.metrics import AggregationType, CategoricalCountHandler, Metric, MetricsAggregator, merge_state_dicts

NUMERIC = [agg_type for agg_type in AggregationType if agg_type is not AggregationType.CATEGORICAL_COUNT]
with_strangers = st.one_of(numbers, st.sampled_from([float("nan"), float("inf"), -float("inf")]))
categories = st.one_of(st.text(max_size=3), st.integers(0, 5), st.sampled_from(["other", "nan", "count"]))


def state_of(values: list[Any], agg_type: AggregationType) -> dict[str, Any]:
    aggregator = MetricsAggregator()
    aggregator.update([Metric("wiki", "m", value, agg_type) for value in values])
    return _without_step(aggregator.state_dict())


def merged(states: list[dict[str, Any]]) -> dict[str, Any]:
    return _without_step(merge_state_dicts(states))


def _without_step(state: dict[str, Any]) -> dict[str, Any]:
    return {**state, "step": 0}  # how many updates were made is no property of the values


def figures(state: dict[str, Any]) -> dict[str, dict[str, Any]]:
    aggregator = MetricsAggregator()
    aggregator.load_state_dict(state)
    return aggregator.get_metrics()


@pytest.mark.parametrize("agg_type", NUMERIC)
@given(groups=shuffled_groups(with_strangers))
def test_merge_of_a_split_is_the_whole(agg_type: AggregationType, groups: list[list[Any]]) -> None:
    whole = state_of([value for group in groups for value in group], agg_type)
    parts = merged([state_of(group, agg_type) for group in groups])
    assert json.dumps(parts) == json.dumps(whole)
    assert repr(figures(parts)) == repr(figures(whole))


@given(groups=shuffled_groups(categories))
def test_merge_of_a_split_is_the_whole_for_categories(groups: list[list[Any]]) -> None:
    agg_type = AggregationType.CATEGORICAL_COUNT
    whole = state_of([value for group in groups for value in group], agg_type)
    assert json.dumps(merged([state_of(group, agg_type) for group in groups])) == json.dumps(whole)


@pytest.mark.parametrize("agg_type", NUMERIC)
@given(first=st.lists(with_strangers), second=st.lists(with_strangers), third=st.lists(with_strangers))
def test_merge_is_associative_and_commutative(
    agg_type: AggregationType, first: list[Any], second: list[Any], third: list[Any]
) -> None:
    a, b, c = (state_of(values, agg_type) for values in (first, second, third))
    assert json.dumps(merged([merged([a, b]), c])) == json.dumps(merged([a, merged([b, c])]))
    assert json.dumps(merged([a, b])) == json.dumps(merged([b, a]))


@given(first=st.lists(categories), second=st.lists(categories), third=st.lists(categories))
def test_merge_is_associative_and_commutative_for_categories(
    first: list[Any], second: list[Any], third: list[Any]
) -> None:
    a, b, c = (state_of(values, AggregationType.CATEGORICAL_COUNT) for values in (first, second, third))
    assert json.dumps(merged([merged([a, b]), c])) == json.dumps(merged([a, merged([b, c])]))
    assert json.dumps(merged([a, b])) == json.dumps(merged([b, a]))


@given(groups=shuffled_groups(st.integers(0, 30).map(lambda number: f"c{number * number // 60}"), max_size=200))
def test_beyond_its_capacity_a_categorical_count_keeps_its_bounds_however_it_is_merged(
    groups: list[list[str]],
) -> None:
    handler = CategoricalCountHandler(top=4, capacity=4)
    truth: dict[str, int] = {}
    for name in (name for group in groups for name in group):
        truth[name] = truth.get(name, 0) + 1
    total = sum(truth.values())

    def count(names: list[str]) -> dict[str, Any]:
        aggregator = MetricsAggregator(handlers={AggregationType.CATEGORICAL_COUNT: handler})
        aggregator.update([Metric("wiki", "c", name, AggregationType.CATEGORICAL_COUNT) for name in names])
        return aggregator.state_dict()

    chained = reduce(
        lambda left, right: merge_state_dicts([left, right], handlers={AggregationType.CATEGORICAL_COUNT: handler}),
        [count(group) for group in groups],
    )
    if total == 0:
        return
    state = chained["metrics"][0]["state"]
    assert state["total"] == total
    assert len(state["counts"]) <= 4
    assert state["error"] * 5 <= total
    for name, true_count in truth.items():
        assert true_count - state["error"] <= state["counts"].get(name, 0) <= true_count
