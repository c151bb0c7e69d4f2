"""Metrics: updates a second, merging 1,000 ranks, and how wrong percentiles are on streams made to break them.

The peer is the straightforward aggregator most training scripts have: a dict by metric, a branch by type, a deque of
the last 1,000 values for a distribution, percentiles averaged over ranks.
"""

from __future__ import annotations

import collections
import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from datasketches import kll_doubles_sketch

sys.path.insert(0, str(Path(__file__).resolve().parent))
from common import alternate, arguments, publish
from holdfast.metrics import (
    AggregationType,
    DistributionHandler,
    Metric,
    MetricBatch,
    MetricColumn,
    MetricsAggregator,
    StandardMetricTransform,
    merge_state_dicts,
)
from holdfast.metrics.handlers import known_handlers
from holdfast.metrics.sketch import QuantileSketch
from holdfast.metrics.state import METRICS_STATE, Table, decode_table, merge_tables

Figures = dict[str, float]
PERCENTS = (5, 50, 95)


class DequeAggregator:
    """The peer: one Python-level update a sample and metric, a window of the last values for distributions."""

    def __init__(self, window: int = 1000) -> None:
        self._state: dict[tuple[str, str], dict[str, Any]] = {}
        self._window = window

    def update(self, metrics: list[Metric]) -> None:
        """Add metrics one by one."""
        for metric in metrics:
            key = (metric.dataset_name, metric.name)
            if key not in self._state:
                self._state[key] = self._initial(metric.agg_type)
            state = self._state[key]
            agg_type = metric.agg_type
            if agg_type == AggregationType.SUM:
                state["value"] += metric.value
            elif agg_type == AggregationType.MAX:
                state["value"] = metric.value if state["value"] is None else max(state["value"], metric.value)
            elif agg_type == AggregationType.MIN:
                state["value"] = metric.value if state["value"] is None else min(state["value"], metric.value)
            elif agg_type == AggregationType.MEAN:
                state["sum"] += metric.value
                state["count"] += 1
            elif agg_type == AggregationType.DISTRIBUTION:
                state["values"].append(metric.value)
            elif agg_type == AggregationType.CATEGORICAL_COUNT:
                state["counts"][metric.value] += 1

    def get_metrics(self) -> dict[str, Any]:
        """The figures of this process, percentiles by sorting the window."""
        report: dict[str, Any] = {}
        for (dataset, name), state in self._state.items():
            if "values" in state:
                values = sorted(state["values"])
                for percent in PERCENTS:
                    report[f"{dataset}/{name}_p{percent:02d}"] = values[int(percent / 100 * (len(values) - 1))]
            else:
                report[f"{dataset}/{name}"] = state
        return report

    def _initial(self, agg_type: Any) -> dict[str, Any]:
        if agg_type == AggregationType.DISTRIBUTION:
            return {"values": collections.deque(maxlen=self._window)}
        if agg_type == AggregationType.CATEGORICAL_COUNT:
            return {"counts": collections.Counter()}
        if agg_type == AggregationType.MEAN:
            return {"sum": 0.0, "count": 0}
        return {"value": 0 if agg_type == AggregationType.SUM else None}


def make_columns(batches: int, size: int, kinds: list[AggregationType]) -> list[MetricBatch]:
    """Batches with one column a type; lengths for distributions of integers, normal values for the rest."""
    generator = np.random.default_rng(0)
    made = []
    for _ in range(batches):
        columns = []
        for kind in kinds:
            values: Any = generator.normal(size=size)
            if kind is AggregationType.CATEGORICAL_COUNT:
                values = generator.choice(np.array(["en", "de", "fr", "code"], dtype=object), size)
            elif kind is AggregationType.SUM:
                values = generator.integers(1, 4096, size)
            columns.append(MetricColumn("wiki", kind.value, values, kind))
        if AggregationType.DISTRIBUTION in kinds:
            lengths = generator.integers(1, 4096, size)
            columns.append(MetricColumn("wiki", "seq_len", lengths, AggregationType.DISTRIBUTION))
        made.append(MetricBatch(tuple(columns)))
    return made


def as_samples(batch: MetricBatch) -> list[Metric]:
    """The same observations, one object each, in the order a per-sample pipeline makes them."""
    rows = zip(*(column.values.tolist() for column in batch.columns), strict=True)
    return [
        Metric(column.dataset_name, column.name, value, column.agg_type)
        for row in rows
        for column, value in zip(batch.columns, row, strict=True)
    ]


def run(aggregator: Any, batches: Iterable[Any]) -> None:
    for batch in batches:
        aggregator.update(batch)
    aggregator.get_metrics()


def updates(quick: bool) -> Figures:
    """Updates a second by type and for all together; the report at the end is part of every side's time."""
    size, rounds = (2048, 5) if quick else (8192, 5)
    figures: Figures = {}
    groups = {kind.value: [kind] for kind in AggregationType} | {"all_six_types": list(AggregationType)}
    for name, kinds in groups.items():
        columns = make_columns(8 if quick else max(16, 64 // len(kinds)), size, kinds)
        samples = [as_samples(batch) for batch in columns]
        count = sum(map(len, samples))
        seconds = alternate(
            {
                "deque": lambda samples=samples: run(DequeAggregator(), samples),
                "per_sample": lambda samples=samples: run(MetricsAggregator(), samples),
                "columnar": lambda columns=columns: run(MetricsAggregator(), columns),
            },
            rounds,
            clock=time.process_time,
        )
        for side, taken in seconds.items():
            figures[f"{name}_{side}_updates_per_second"] = count / taken
        figures[f"{name}_columnar_over_deque"] = seconds["deque"] / seconds["columnar"]
        figures[f"{name}_per_sample_over_deque"] = seconds["deque"] / seconds["per_sample"]
    # The whole road for the last group, all six types: making the metrics of arrays at hand is part of the time.
    seconds = alternate(
        {
            "deque": lambda: run(DequeAggregator(), map(as_samples, columns)),
            "columnar": lambda: run(MetricsAggregator(), (MetricBatch(tuple(batch.columns)) for batch in columns)),
        },
        rounds,
        clock=time.process_time,
    )
    figures["all_six_types_made_and_aggregated_columnar_over_deque"] = seconds["deque"] / seconds["columnar"]
    return figures


def from_tokens(quick: bool) -> Figures:
    """The whole road from a batch's tokens to its figures: one object a sample and metric, or one array a metric."""
    rows, batches, rounds = (2048, 4, 5) if quick else (8192, 8, 7)
    tokens = np.ones((rows, 512), dtype=np.int32)
    listed = list(tokens)
    transform = StandardMetricTransform()
    transform.set_dataset_name("wiki")

    def by_sample(aggregator: Any) -> None:
        for _ in range(batches):
            aggregator.update([metric for row in listed for metric in transform.sample_metrics({"tokens": row})])
        aggregator.get_metrics()

    def by_column() -> None:
        aggregator = MetricsAggregator()
        for _ in range(batches):
            aggregator.update(transform.batch_metrics({"tokens": tokens}))
        aggregator.get_metrics()

    sides = {"deque": lambda: by_sample(DequeAggregator()), "columnar": by_column}
    seconds = alternate(sides, rounds, clock=time.process_time)
    samples = rows * batches
    return {
        "standard_metrics_deque_samples_per_second": samples / seconds["deque"],
        "standard_metrics_columnar_samples_per_second": samples / seconds["columnar"],
        "standard_metrics_columnar_over_deque": seconds["deque"] / seconds["columnar"],
    }


def merging(quick: bool) -> Figures:
    """Merge the states of many ranks: 50 metrics, half of them distributions; reading them is a figure of its own."""
    ranks, rounds = (100, 5) if quick else (1000, 5)
    kinds = list(AggregationType)
    texts = []
    for rank in range(ranks):
        generator = np.random.default_rng(rank)
        aggregator = MetricsAggregator()
        columns = []
        for number in range(50):
            kind = AggregationType.DISTRIBUTION if number % 3 == 0 else kinds[number % len(kinds)]
            values: Any = generator.normal(size=10_000 if kind is AggregationType.DISTRIBUTION else 10)
            if kind is AggregationType.CATEGORICAL_COUNT:
                values = generator.choice(np.array(["en", "de", "fr", "code"], dtype=object), 10)
            columns.append(MetricColumn("wiki", f"metric_{number}", values, kind))
        aggregator.update(MetricBatch(tuple(columns)))
        texts.append(json.dumps(aggregator.state_dict()))
    handlers = known_handlers()

    def decode(some: list[str]) -> list[Table]:
        return [decode_table(METRICS_STATE.from_json(json.loads(text)), handlers) for text in some]

    # A thousand decoded states are gigabytes: decoding and merging are timed on a hundred at a time.
    hundred = decode(texts[:100])

    def merge() -> None:
        merge_tables([merge_tables(hundred, handlers) for _ in range(ranks // 100)], handlers)

    def all_of_it() -> None:
        aggregator = MetricsAggregator()
        aggregator.load_state_dict(merge_state_dicts(json.loads(text) for text in texts))
        aggregator.get_metrics()

    sides = {"decode": lambda: decode(texts[:100]), "merge": merge, "all": all_of_it}
    seconds = alternate(sides, rounds, clock=time.process_time)
    return {
        f"merge_{ranks}_ranks_of_50_metrics_seconds": seconds["merge"],
        f"decode_{ranks}_ranks_of_50_metrics_seconds": ranks / 100 * seconds["decode"],
        f"json_to_figures_{ranks}_ranks_of_50_metrics_seconds": seconds["all"],
        "state_of_50_metrics_bytes": float(np.mean([len(text) for text in texts])),
    }


def sketches(quick: bool) -> Figures:
    """The distribution sketch, plain and refined, beside KLL from datasketches: speed and size."""
    generator = np.random.default_rng(3)
    count, rounds = (200_000, 5) if quick else (2_000_000, 5)
    values = generator.normal(size=count)
    chunks = np.array_split(values, max(1, count // 65536))
    refined = DistributionHandler(refined=True)

    def ours() -> QuantileSketch:
        sketch = QuantileSketch()
        for chunk in chunks:
            sketch = sketch.add(chunk)
        return sketch

    def with_refinement() -> Any:
        state = refined.init()
        for chunk in chunks:
            state = refined.update(state, chunk)
        return state

    def kll() -> Any:
        sketch = kll_doubles_sketch(200)
        for chunk in chunks:
            sketch.update(chunk)
        return sketch

    sides = {"ours": ours, "refined": with_refinement, "kll": kll}
    seconds = alternate(sides, rounds, clock=time.process_time)
    return {
        "sketch_updates_per_second": count / seconds["ours"],
        "refined_with_moments_updates_per_second": count / seconds["refined"],
        "kll_updates_per_second": count / seconds["kll"],
        "sketch_over_kll": seconds["kll"] / seconds["ours"],
        "sketch_state_bytes": float(len(json.dumps(ours().serialize()))),
        "refined_state_bytes": float(len(json.dumps(refined.serialize(with_refinement())))),
        "kll_state_bytes_base64": float(len(kll().serialize()) * 4 / 3),
    }


def streams(count: int) -> dict[str, np.ndarray[Any, Any]]:
    """Streams as 1,000 ranks would see them: neighbouring stretches, so that the ranks differ."""
    generator = np.random.default_rng(11)
    crowd = 1.0 + generator.random(count)
    return {
        "normal": generator.normal(size=count),
        "heavy_tailed": generator.pareto(0.5, size=count),
        "two_valued": generator.choice([0.1, 0.9], count, p=[0.3, 0.7]),
        "sorted": np.sort(generator.normal(size=count)),
        "cluster_far_from_zero": 1e6 + generator.random(count),
        "geometric": 0.99999 ** generator.permutation(np.arange(float(count))),
        "alternating_signs": np.arange(float(count)) * np.where(np.arange(count) % 2, 1.0, -1.0),
        "denormals": generator.integers(1, 2**52, count).view(np.float64),
        "sliver_in_a_crowd": _mixed(generator, 1.5 + generator.random(count * 4 // 5) * 1e-9, crowd[: count // 5]),
        "heavy_value_in_a_crowd": _mixed(generator, np.full(count * 2 // 5, 1.6180339887), crowd[: count * 3 // 5]),
        "repeated_values_in_a_crowd": _mixed(
            generator, np.repeat(1.5 + generator.random(400) * 1e-8, count // 800), crowd[: count // 2]
        ),
        "a_hundred_slivers_in_a_crowd": _mixed(
            generator,
            (1.0 + generator.random((100, 1)) + generator.random((100, count // 200)) * 1e-11).reshape(-1),
            crowd[: count // 2],
        ),
    }


def _mixed(generator: np.random.Generator, *parts: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return generator.permutation(np.concatenate(parts))


def rank_errors(quick: bool) -> Figures:
    """The largest rank error of p05, p50 and p95, in percent: ours, KLL's, and of percentiles averaged over ranks."""
    figures: Figures = {}
    handler = DistributionHandler(refined=True)
    for name, values in streams(100_000 if quick else 1_000_000).items():
        parts = np.array_split(values, 1000)
        merged = handler.init()
        kll = kll_doubles_sketch(200)
        for start in range(0, 1000, 50):
            states = [handler.update(handler.init(), part) for part in parts[start : start + 50]]
            merged = handler.merge([merged, *states])
        for part in parts:
            piece = kll_doubles_sketch(200)
            piece.update(part)
            kll.merge(piece)
        ascending = np.sort(values)
        refined = [merged.sketch.quantile_with_error(percent, merged.refinement) for percent in PERCENTS]
        answers = {
            "sketch": [merged.sketch.quantile(percent) for percent in PERCENTS],
            "refined": [value for value, _ in refined],
            "kll": [kll.get_quantile(percent / 100, True) for percent in PERCENTS],
            "averaged_percentiles": np.mean([np.percentile(part, PERCENTS) for part in parts], axis=0).tolist(),
        }
        for side, estimates in answers.items():
            errors = [
                _rank_error(ascending, value, percent) for value, percent in zip(estimates, PERCENTS, strict=True)
            ]
            figures[f"{name}_{side}_rank_error_percent"] = 100 * max(errors)
        figures[f"{name}_refined_stated_bound_percent"] = 100 * max(bound for _, bound in refined)
    return figures


def composite_streams(quick: bool) -> Figures:
    """The refined sketch on random mixtures of up to a hundred slivers, heavy values, lattices and peaks in a crowd.

    The seeds are none that the sketch was tuned on.
    """
    handler = DistributionHandler(refined=True)
    plain, refined, violated = [], [], 0
    for seed in range(50_000, 50_100 if quick else 51_000):
        values = _composite(np.random.default_rng(seed))
        ascending = np.sort(values)
        state = handler.update(handler.init(), values)
        answers = [state.sketch.quantile_with_error(percent, state.refinement) for percent in PERCENTS]
        errors = [_rank_error(ascending, value, percent) for (value, _), percent in zip(answers, PERCENTS, strict=True)]
        bounds = [bound + 1 / len(values) for _, bound in answers]
        violated += sum(error > bound for error, bound in zip(errors, bounds, strict=True))
        refined.append(max(errors))
        plain.append(max(_rank_error(ascending, state.sketch.quantile(percent), percent) for percent in PERCENTS))
    return {
        "composite_streams": float(len(refined)),
        "composite_worst_sketch_rank_error_percent": 100 * max(plain),
        "composite_worst_refined_rank_error_percent": 100 * max(refined),
        "composite_median_refined_rank_error_percent": 100 * float(np.median(refined)),
        "composite_stated_bounds_violated": float(violated),
    }


def _composite(generator: np.random.Generator) -> np.ndarray[Any, Any]:
    size = 30_000
    parts = [1.0 + generator.random(max(6000, int(size * generator.choice([0.02, 0.1, 0.5]))))]
    pieces, evenness = generator.choice([1, 2, 5, 10, 30, 100]), generator.choice([0.2, 1.0, 5.0])
    for count in (size * generator.dirichlet(np.full(pieces, evenness))).astype(int).tolist():
        centre, width = 1.0 + generator.random(), 10.0 ** -int(generator.integers(3, 17))
        shapes = [
            np.full(count, centre),
            centre + generator.random(count) * width,
            centre + np.floor(20 * generator.random(count) ** 3) * width,
            centre + generator.standard_cauchy(count) * width * 1e-3,
        ]
        parts.append(shapes[generator.integers(len(shapes))])
    return _mixed(generator, *parts) * float(generator.choice([-1.0, 1.0]))


def _rank_error(ascending: np.ndarray[Any, Any], estimate: float, percent: int) -> float:
    first = np.searchsorted(ascending, estimate, side="left") / len(ascending)
    last = np.searchsorted(ascending, estimate, side="right") / len(ascending)
    return float(max(0.0, first - percent / 100, percent / 100 - last))


def main() -> None:
    options = arguments(__doc__ or "")
    figures: Figures = {}
    for part in (updates, from_tokens, merging, sketches, rank_errors, composite_streams):
        figures |= part(options.quick)
    about = {
        "cores": os.cpu_count(),
        "clock": "seconds of CPU; every side is one thread of computation",
        "peer": "a per-sample dict-and-deque aggregator (window 1,000), updates and final report timed",
        "rank errors": "after merging 1,000 states; KLL with k=200; sketch is the default handler, refined the opt-in",
    }
    publish(figures, about, as_json=options.json)


if __name__ == "__main__":
    main()
