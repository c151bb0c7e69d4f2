"""What the aggregator reports, and what it refuses."""

from __future__ import annotations

import json
import math
import tracemalloc
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tests.metrics.strategies import hard_floats
from tests.metrics.test_sketch import sliver_in_a_crowd

from holdfast.errors import ConfigError, MetricError
from holdfast.metrics import (
    AggregationType,
    CategoricalCountHandler,
    KllDistributionHandler,
    Metric,
    MetricBatch,
    MetricColumn,
    MetricHandler,
    MetricsAggregator,
    merge_state_dicts,
    register_handler,
)

SUM, MEAN, MAX, MIN = AggregationType.SUM, AggregationType.MEAN, AggregationType.MAX, AggregationType.MIN
DISTRIBUTION, CATEGORICAL_COUNT = AggregationType.DISTRIBUTION, AggregationType.CATEGORICAL_COUNT


def column(values: Any, agg_type: AggregationType | str, name: str = "m") -> MetricBatch:
    return MetricBatch((MetricColumn("wiki", name, np.asarray(values), agg_type),))


@pytest.mark.parametrize("make", [Metric, lambda *parts: MetricColumn(parts[0], parts[1], np.ones(2), parts[3])])
@pytest.mark.parametrize(
    ("parts", "said"),
    [
        (("wiki", "loss", 1.0, 7), "unknown aggregation type 7"),
        (("wiki", "loss", 1.0, None), "unknown aggregation type None"),
        (("wiki", "loss", 1.0, ["mean"]), "unknown aggregation type"),
        (("wiki", None, 1.0, MEAN), "names of a metric"),
        ((0, "loss", 1.0, MEAN), "names of a metric"),
    ],
)
def test_a_metric_that_no_aggregator_could_take_is_refused_where_it_is_made(
    make: Callable[..., object], parts: tuple[Any, ...], said: str
) -> None:
    with pytest.raises(MetricError, match=said):
        make(*parts)


def report(values: Sequence[Any], agg_type: AggregationType | str) -> dict[str, Any]:
    aggregator = MetricsAggregator()
    aggregator.update([Metric("wiki", "m", value, agg_type) for value in values])
    return aggregator.get_metrics().get("wiki", {})


# ---- the six types


def test_a_sum_of_integers_is_exact_beyond_2_to_the_53() -> None:
    assert report([2**53, 1, 2**70], SUM) == {"m": 2**53 + 1 + 2**70}
    assert isinstance(report([1, 2], SUM)["m"], int)


def test_a_float_sum_is_rounded_once() -> None:
    assert report([1e16, 1.0, -1e16], SUM) == {"m": 1.0}
    assert report([0.1] * 10, SUM) == {"m": 1.0}


def test_integers_among_floats_lose_nothing() -> None:
    assert report([2**53 + 1, 0.5, -(2**53)], SUM) == {"m": 1.5}


def test_a_mean_weighs_every_value_the_same() -> None:
    assert report([1, 2, 6], MEAN) == {"m": 3.0}


def test_max_and_min_keep_integers_integers() -> None:
    assert report([3, 2**60 + 1, 5.5], MAX) == {"m": 2**60 + 1}
    assert report([3, 5.5], MIN) == {"m": 3}


def test_a_distribution_reports_every_statistic_of_one_list() -> None:
    assert report(list(range(1, 101)), DISTRIBUTION) == {
        "m_mean": 50.5,
        "m_std": math.sqrt(833.25),
        "m_min": 1,
        "m_max": 100,
        "m_p05": 5.0,
        "m_p50": 50.0,
        "m_p95": 95.0,
    }


def test_categories_are_counted_by_their_text() -> None:
    assert report(["en", "de", "en", 7], CATEGORICAL_COUNT) == {"m_count/en": 2, "m_count/de": 1, "m_count/7": 1}


@pytest.mark.parametrize("as_column", [False, True])
def test_categories_that_python_takes_for_equal_are_told_apart(as_column: bool) -> None:
    values = np.array([1, 1.0, True, "1", None, None], dtype=object)
    aggregator = MetricsAggregator()
    if as_column:
        aggregator.update(column(values, CATEGORICAL_COUNT))
    else:
        aggregator.update([Metric("wiki", "m", value, CATEGORICAL_COUNT) for value in values])
    assert aggregator.get_metrics() == {
        "wiki": {"m_count/1": 2, "m_count/None": 2, "m_count/1.0": 1, "m_count/True": 1}
    }


def test_a_categorical_count_reports_the_top_and_all_others_together() -> None:
    aggregator = MetricsAggregator(handlers={CATEGORICAL_COUNT: CategoricalCountHandler(top=2, capacity=10)})
    aggregator.update(column(["a"] * 5 + ["b"] * 3 + ["c", "d"], CATEGORICAL_COUNT))
    assert aggregator.get_metrics() == {"wiki": {"m_count/a": 5, "m_count/b": 3, "m_other": 2}}


def test_up_to_65_536_categories_every_count_is_exact_and_the_same_over_any_grouping() -> None:
    names = np.array([f"token-{number}" for number in range(1 << 16)], dtype=object)
    generator = np.random.default_rng(0)
    drawn = np.concatenate([names, generator.choice(names, 30_000)])
    whole = MetricsAggregator()
    whole.update(column(drawn, CATEGORICAL_COUNT))
    parts = []
    for part in np.array_split(generator.permutation(drawn), 7):
        aggregator = MetricsAggregator()
        aggregator.update(column(part, CATEGORICAL_COUNT))
        parts.append(aggregator.state_dict())
    assert merge_state_dicts(parts)["metrics"] == whole.state_dict()["metrics"]
    assert "m_count_error" not in whole.get_metrics()["wiki"]


def test_a_column_of_ever_new_categories_keeps_its_memory_and_its_frequent_ones() -> None:
    aggregator = MetricsAggregator()
    total = 0
    tracemalloc.start()
    for batch in range(24):
        names = np.array(
            [f"doc-{number:0100d}" for number in range(batch * 10_000, (batch + 1) * 10_000)], dtype=object
        )
        names[::3] = "frequent"
        aggregator.update(column(names, CATEGORICAL_COUNT))
        total += len(names)
    del names
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 32 << 20
    figures = aggregator.get_metrics()["wiki"]
    state = aggregator.state_dict()["metrics"][0]["state"]
    assert len(state["counts"]) <= 1 << 16
    assert state["total"] == total == 240_000
    frequent = 24 * 3334
    assert frequent - figures["m_count_error"] <= figures["m_count/frequent"] <= frequent
    assert 1 <= figures["m_count_error"] <= total / ((1 << 16) + 1)


@pytest.mark.parametrize("distinct", [3, 200, 2000])
@pytest.mark.parametrize("fresh", [False, True])
def test_texts_are_counted_alike_whether_they_are_one_object_or_many(distinct: int, fresh: bool) -> None:
    vocabulary = [f"name-{number}" for number in range(distinct)]
    numbers = np.random.default_rng(distinct).integers(0, distinct, 5000)
    texts = np.array([f"name-{number}" if fresh else vocabulary[number] for number in numbers], dtype=object)
    aggregator = MetricsAggregator()
    aggregator.update(column(texts[::2], CATEGORICAL_COUNT))  # every other one: not a contiguous array
    state = aggregator.state_dict()["metrics"][0]["state"]
    assert state["counts"] == Counter(texts[::2].tolist())


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, np.float64, np.bool_])
def test_numbers_as_categories_are_counted_by_their_text(dtype: type) -> None:
    values: NDArray[Any] = np.array([0, 1, 1, 127, 127, 127], dtype=dtype)
    if dtype is np.int8:
        values[0] = -128  # a range wider than the type
    aggregator = MetricsAggregator()
    aggregator.update(column(values, CATEGORICAL_COUNT))
    counts = aggregator.state_dict()["metrics"][0]["state"]["counts"]
    assert counts == Counter(map(str, values.tolist()))


def test_a_category_as_long_as_a_document_is_cut_to_a_name_that_stays_its_own() -> None:
    long = "x" * 100_000
    figures = report([long + "a", long + "b", long + "a"], CATEGORICAL_COUNT)
    assert sorted(figures.values()) == [1, 2]
    assert max(map(len, figures)) < 200


# ---- what is not a number


def test_nan_and_infinities_are_counted_apart_for_every_numeric_type() -> None:
    nan, inf = float("nan"), float("inf")
    for agg_type, clean in ((SUM, 6.0), (MEAN, 2.0), (MAX, 3.0), (MIN, 1.0)):
        assert report([1.0, nan, 2.0, inf, 3.0, -inf, nan], agg_type) == {
            "m": clean,
            "m_nan_count": 2,
            "m_inf_count": 2,
        }
    assert report([1.0, nan], DISTRIBUTION) | {"m_nan_count": 1} == report([1.0], DISTRIBUTION) | {"m_nan_count": 1}


def test_a_metric_that_was_only_ever_nan_reports_only_that() -> None:
    for agg_type in (MEAN, MAX, MIN, DISTRIBUTION):
        assert report([float("nan")], agg_type) == {"m_nan_count": 1}


def test_text_where_a_number_belongs_is_refused_at_once_with_the_metric_named() -> None:
    with pytest.raises(MetricError, match=r"metric 'm' of dataset 'wiki' .* expects a number, got 'oops'"):
        report([1, "oops"], SUM)
    with pytest.raises(MetricError, match="CATEGORICAL_COUNT"):
        MetricsAggregator().update(column(["a"], MEAN))


# ---- lists and columns


@pytest.mark.parametrize("agg_type", [SUM, MEAN, MAX, MIN, DISTRIBUTION])
@given(values=st.lists(st.one_of(hard_floats, st.just(float("nan"))), max_size=40), cuts=st.integers(1, 6))
def test_the_columnar_path_and_the_list_path_give_the_same_state(
    agg_type: AggregationType, values: list[float], cuts: int
) -> None:
    by_sample, by_column = MetricsAggregator(), MetricsAggregator()
    for part in np.array_split(np.array(values, dtype=np.float64), cuts):
        by_sample.update([Metric("wiki", "m", value, agg_type) for value in part.tolist()])
        if len(part):
            by_column.update(column(part, agg_type))
        else:
            by_column.update(MetricBatch())
    assert json.dumps(by_sample.state_dict()) == json.dumps(by_column.state_dict())
    assert by_sample.get_metrics() == by_column.get_metrics()


@pytest.mark.parametrize(
    "values",
    [
        torch.tensor([1, 2, 3]),
        torch.tensor([1.0, 2.0, 3.0], dtype=torch.bfloat16),
        torch.tensor([[1.0], [2.0], [3.0]], requires_grad=True),
        np.array([1, 2, 3], dtype=np.uint8),
        np.array([1, 2, 3], dtype=np.float16),
        [torch.tensor(1), np.float32(2.0), 3],
    ],
    ids=["int tensor", "bfloat16 tensor", "tensor with gradient", "uint8", "float16", "scalars of every kind"],
)
def test_values_come_as_arrays_tensors_or_scalars_of_any_kind(values: Any) -> None:
    assert report([values], MEAN) == {"m": 2.0}


def test_unsigned_integers_beyond_63_bits_are_exact() -> None:
    assert report([np.array([2**64 - 1, 2**64 - 1], dtype=np.uint64)], SUM) == {"m": 2 * (2**64 - 1)}


def test_complex_values_are_refused() -> None:
    with pytest.raises(MetricError, match="complex128"):
        report([np.array([1j])], SUM)


def test_nested_lists_of_metrics_and_batches_are_taken_as_they_come() -> None:
    aggregator = MetricsAggregator()
    aggregator.update([[Metric("wiki", "m", 1, SUM)], column([2, 3], SUM), [[Metric("chat", "m", 4, SUM)]]])
    assert aggregator.get_metrics() == {"chat": {"m": 4}, "wiki": {"m": 6}}


def test_what_is_no_metric_is_refused() -> None:
    with pytest.raises(MetricError, match="not int"):
        MetricsAggregator().update([1, 2])  # type: ignore[list-item]


def test_an_array_changed_after_the_update_changes_no_figure() -> None:
    values = np.array([1.0, 2.0])
    aggregator = MetricsAggregator()
    aggregator.update(column(values, SUM))
    values[:] = 100.0
    assert aggregator.get_metrics() == {"wiki": {"m": 3.0}}


# ---- names


@pytest.mark.parametrize("as_column", [False, True])
def test_one_name_with_two_aggregation_types_is_an_error_naming_both(as_column: bool) -> None:
    aggregator = MetricsAggregator()
    aggregator.update([Metric("wiki", "m", 1, SUM)])
    second = column([1], MEAN) if as_column else [Metric("wiki", "m", 1, MEAN)]
    with pytest.raises(MetricError, match=r"'m' of dataset 'wiki'.*'sum' and 'mean'"):
        aggregator.update(second)


def test_two_metrics_reported_under_one_name_are_an_error_naming_both() -> None:
    aggregator = MetricsAggregator()
    aggregator.update([Metric("wiki", "len", 1, DISTRIBUTION), Metric("wiki", "len_mean", 1, SUM)])
    with pytest.raises(MetricError, match=r"'len' and 'len_mean' of dataset 'wiki' are both reported as 'len_mean'"):
        aggregator.get_metrics()


def test_a_clash_that_only_a_nan_would_bring_shows_in_the_first_report() -> None:
    aggregator = MetricsAggregator()
    aggregator.update([Metric("wiki", "loss", 1.0, MEAN), Metric("wiki", "loss_nan_count", 0, SUM)])
    with pytest.raises(MetricError, match="both reported as 'loss_nan_count'"):
        aggregator.get_metrics()


def test_logging_names_are_prefix_dataset_and_metric() -> None:
    aggregator = MetricsAggregator()
    aggregator.update([Metric("wiki", "tokens_seen", 5, SUM), Metric("chat", "len", 1, DISTRIBUTION)])
    flat = aggregator.get_metrics_for_logging(prefix="train")
    assert flat["train_wiki/tokens_seen"] == 5
    assert flat["train_chat/len_p50"] == 1.0
    assert "wiki/tokens_seen" in aggregator.get_metrics_for_logging()


def test_nothing_logged_yet_is_an_empty_report() -> None:
    assert MetricsAggregator().get_metrics() == {}
    assert MetricsAggregator().get_metrics_for_logging("train") == {}


def test_reset_forgets_what_was_aggregated() -> None:
    aggregator = MetricsAggregator()
    aggregator.update([Metric("wiki", "m", 1, SUM)])
    aggregator.reset()
    assert aggregator.get_metrics() == {}


# ---- the recent window


def test_the_recent_window_forgets_old_steps_and_the_whole_does_not() -> None:
    aggregator = MetricsAggregator(recent_steps=8)
    for step in range(100):
        aggregator.update(column([float(step)] * 3, DISTRIBUTION), step=step)
    figures = aggregator.get_metrics()["wiki"]
    assert (figures["m_min"], figures["m_max"]) == (0.0, 99.0)
    assert (figures["m_recent_min"], figures["m_recent_max"]) == (92.0, 99.0)
    assert figures["m_recent_mean"] == 95.5


def test_the_recent_window_moves_by_an_eighth_of_its_length() -> None:
    aggregator = MetricsAggregator(recent_steps=80)
    for step in range(205):
        aggregator.update(column([float(step)], DISTRIBUTION))
    assert aggregator.get_metrics()["wiki"]["m_recent_min"] == 130.0


def test_a_window_of_no_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        MetricsAggregator(recent_steps=0)


# ---- handlers of one's own


class ProductHandler(MetricHandler[float]):
    """A user's handler: the product of all values."""

    def init(self) -> float:
        return 1.0

    def update(self, state: float, values: NDArray[Any]) -> float:
        return state * float(np.prod(values))

    def merge(self, states: Sequence[float]) -> float:
        return math.prod(states)

    def finalize(self, state: float) -> dict[str, int | float]:
        return {"": state, "log": math.log(state)}

    def serialize(self, state: float) -> float:
        return state

    def deserialize(self, payload: Any) -> float:
        return float(payload)


def test_a_handler_of_ones_own_aggregates_merges_and_comes_back() -> None:
    register_handler("my_product", ProductHandler(), replace=True)
    first = MetricsAggregator()
    first.update([Metric("wiki", "m", value, "my_product") for value in (2.0, 4.0, float("nan"))])
    second = MetricsAggregator()
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.update(column([0.5], "my_product"))
    assert second.get_metrics() == {"wiki": {"m": 4.0, "m_log": math.log(4.0), "m_nan_count": 1}}


def test_a_name_is_registered_once_and_built_in_ones_never() -> None:
    register_handler("product_once", ProductHandler())
    with pytest.raises(MetricError, match="already registered"):
        register_handler("product_once", ProductHandler())
    with pytest.raises(MetricError, match="built-in"):
        register_handler("sum", ProductHandler(), replace=True)


def test_an_unknown_aggregation_type_is_refused_with_those_there_are() -> None:
    with pytest.raises(MetricError, match=r"'median'.*'distribution'"):
        report([1], "median")


def test_the_kll_handler_bounds_the_rank_error_where_the_default_only_states_it() -> None:
    values = sliver_in_a_crowd()
    default, kll = MetricsAggregator(), MetricsAggregator(handlers={DISTRIBUTION: KllDistributionHandler()})
    for part in np.array_split(values, 50):
        default.update(column(part, DISTRIBUTION))
        kll.update(column(part, DISTRIBUTION))
    restored = MetricsAggregator(handlers={DISTRIBUTION: KllDistributionHandler()})
    restored.load_state_dict(json.loads(json.dumps(kll.state_dict())))
    figures, exact = restored.get_metrics()["wiki"], default.get_metrics()["wiki"]
    assert exact["m_rank_error"] > 0.5
    for name in ("m_mean", "m_std", "m_min", "m_max"):
        assert figures[name] == exact[name]
    for percent in (5, 50, 95):
        rank = float(np.mean(values <= figures[f"m_p{percent:02d}"]))
        assert abs(rank - percent / 100) <= 0.015


def test_a_state_of_another_distribution_handler_is_refused() -> None:
    kll = {DISTRIBUTION: KllDistributionHandler()}
    aggregator = MetricsAggregator()
    aggregator.update(column([1.0], DISTRIBUTION))
    with pytest.raises(MetricError, match="KllDistributionHandler"):
        MetricsAggregator(handlers=kll).load_state_dict(aggregator.state_dict())
    aggregator = MetricsAggregator(handlers=kll)
    aggregator.update(column([1.0], DISTRIBUTION))
    with pytest.raises(MetricError, match="DistributionHandler"):
        MetricsAggregator().load_state_dict(aggregator.state_dict())


@pytest.mark.parametrize("kind", [AggregationType.SUM, AggregationType.DISTRIBUTION])
def test_values_that_nobody_asks_about_do_not_pile_up(kind: AggregationType) -> None:
    values = np.random.default_rng(0).normal(size=8192)
    aggregator = MetricsAggregator()
    aggregator.update(MetricBatch((MetricColumn("wiki", "loss", values, kind),)))
    aggregator.get_metrics()
    tracemalloc.start()
    try:
        for _ in range(200):  # 13 MB
            aggregator.update(MetricBatch((MetricColumn("wiki", "loss", values, kind),)))
        left, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert left < 2 << 20
