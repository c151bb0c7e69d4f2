"""Exact resume, as a check anyone can run on a pipeline of their own.

A pipeline is a loader and, perhaps, an aggregator of metrics. It is run twice: once without a break, and once stopped,
saved, built anew from nothing, and continued. Both must give the same batches and the same figures, bit for bit.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

__all__ = ["CheckpointRun", "Pipeline", "assert_exact_resume", "run_training_loop_with_checkpoint"]


_ENDED = object()


class StatefulLoader(Protocol):
    """What the checks need of a loader: batches, and a state."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> Mapping[str, Any]:
        """Where the loader stands."""
        ...

    def load_state_dict(self, state_dict: Any, /) -> None:
        """Go to where a state stands."""
        ...


class Aggregator(Protocol):
    """What the checks need of an aggregator of metrics, e.g. a ``MetricsAggregator``."""

    def update(self, metrics: Any, /) -> None:
        """Add a batch's metrics."""
        ...

    def get_metrics(self) -> Mapping[str, Any]:
        """The figures."""
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """What was added so far."""
        ...

    def load_state_dict(self, state: Any, /) -> None:
        """Continue from a state."""
        ...


#: A loader and an aggregator (or None), freshly made.
Pipeline = tuple[StatefulLoader, Aggregator | None]


@dataclass(frozen=True, slots=True)
class CheckpointRun:
    """What the run without a break gave after the checkpoint, and what the resumed one gave instead.

    Attributes:
        steps_before: where the checkpoint was taken.
        ground_truth_batches: the batches from there on, of the run without a break.
        resumed_batches: the same of the resumed run.
        ground_truth_metrics: the figures at the end of the run without a break; None without an aggregator.
        resumed_metrics: the same of the resumed run.
        loader_state: the loader's state at the checkpoint.
    """

    steps_before: int
    ground_truth_batches: list[Any]
    resumed_batches: list[Any]
    ground_truth_metrics: Mapping[str, Any] | None
    resumed_metrics: Mapping[str, Any] | None
    loader_state: Mapping[str, Any]


def run_training_loop_with_checkpoint(
    create_pipeline_fn: Callable[[], Pipeline],
    steps_before: int,
    steps_after: int,
    *,
    create_resumed_fn: Callable[[], Pipeline] | None = None,
) -> CheckpointRun:
    """Run a pipeline without a break, and again with a checkpoint, and return what both gave.

    States pass through JSON text where they can, as through a checkpoint on disk. Under ``torch.distributed`` call it
    on every rank: figures are merged over ranks.

    Args:
        create_pipeline_fn: makes the pipeline anew: ``(loader, aggregator)``, the aggregator may be None.
        steps_before: batches before the checkpoint; 0 checkpoints before the first.
        steps_after: batches after it.
        create_resumed_fn: makes the pipeline that resumes, where it is to differ (other workers, say).

    Raises:
        AssertionError: the loader gave fewer batches than asked for.
    """
    truth, truth_figures, _, _ = _run(create_pipeline_fn(), steps_before + steps_after)
    first, _, loader_state, metrics_state = _run(create_pipeline_fn(), steps_before)
    for step, (one, other) in enumerate(zip(truth, first, strict=False)):
        found = first_difference(one, other)
        _require(found is None, f"the pipeline does not repeat itself, even without a checkpoint: step {step}, {found}")
    loader, aggregator = (create_resumed_fn or create_pipeline_fn)()
    loader.load_state_dict(_through_checkpoint(loader_state))
    if aggregator is not None:
        aggregator.load_state_dict(_through_checkpoint(metrics_state))
    resumed, figures, _, _ = _run((loader, aggregator), steps_after)
    return CheckpointRun(steps_before, truth[steps_before:], resumed, truth_figures, figures, loader_state)


def assert_exact_resume(
    create_pipeline_fn: Callable[[], Pipeline],
    steps_before: int | Iterable[int],
    steps_after: int,
    *,
    create_resumed_fn: Callable[[], Pipeline] | None = None,
) -> None:
    """Assert that a pipeline resumed from a checkpoint goes on exactly as if it had not stopped.

    Args:
        create_pipeline_fn: makes the pipeline anew: ``(loader, aggregator)``, the aggregator may be None.
        steps_before: batches before the checkpoint, or several such numbers to try each.
        steps_after: batches after it.
        create_resumed_fn: makes the pipeline that resumes, where it is to differ.

    Raises:
        AssertionError: names the first step and field, or figure, that differs.
    """
    for before in [steps_before] if isinstance(steps_before, int) else steps_before:
        run = run_training_loop_with_checkpoint(
            create_pipeline_fn, before, steps_after, create_resumed_fn=create_resumed_fn
        )
        for step, (one, other) in enumerate(zip(run.ground_truth_batches, run.resumed_batches, strict=True), before):
            found = first_difference(one, other)
            _require(found is None, f"resumed after {before} steps, step {step} differs: {found}")
        found = first_difference(run.ground_truth_metrics, run.resumed_metrics)
        _require(found is None, f"resumed after {before} steps, the metrics differ: {found}")


def first_difference(one: Any, other: Any, path: str = "") -> str | None:
    """Return where two nested values differ first, and how; None where they are the same, bit for bit (NaN is NaN)."""
    if type(one) is not type(other):
        return f"{path or 'value'} is a {type(one).__name__}, and a {type(other).__name__} after resuming"
    if isinstance(one, Mapping):
        if one.keys() != other.keys():
            return f"{path or 'value'} has the fields {sorted(one)}, and {sorted(other)} after resuming"
        pairs: Iterable[tuple[Any, Any, Any]] = ((key, one[key], other[key]) for key in one)
    elif isinstance(one, Sequence) and not isinstance(one, (str, bytes)):
        if len(one) != len(other):
            return f"{path or 'value'} has {len(one)} items, and {len(other)} after resuming"
        pairs = ((place, a, b) for place, (a, b) in enumerate(zip(one, other, strict=True)))
    else:
        return None if _same(one, other) else f"{path or 'value'} is {one!r}, and {other!r} after resuming"
    return next(filter(None, (first_difference(a, b, f"{path}[{key!r}]") for key, a, b in pairs)), None)


def _require(holds: bool, message: str) -> None:
    if not holds:  # no assert statement: these checks hold under `python -O` too
        raise AssertionError(message)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        one, other = one.detach().cpu(), other.detach().cpu()
        if one.dtype != other.dtype or one.shape != other.shape:
            return False
        if one.is_floating_point() or one.is_complex():
            return torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)
        return torch.equal(one, other)
    if isinstance(one, (np.ndarray, np.generic)):
        floating = one.dtype.kind in "fc"
        return bool(one.dtype == other.dtype and np.array_equal(one, other, equal_nan=floating))
    if isinstance(one, float):
        return repr(one) == repr(other)  # tells -0.0 from 0.0, and takes NaN for NaN
    return bool(one == other)


def _run(pipeline: Pipeline, steps: int) -> tuple[list[Any], Any, Mapping[str, Any], Mapping[str, Any]]:
    """Take so many batches; return them without their metrics, the figures, and both states."""
    loader, aggregator = pipeline
    batches: list[Any] = []
    iterator = iter(loader)
    try:
        for _ in range(steps):
            batch: Any = next(iterator, _ENDED)
            _require(batch is not _ENDED, f"the loader ended after {len(batches)} steps; {steps} were asked for")
            if aggregator is not None and isinstance(batch, Mapping) and "metrics" in batch:
                aggregator.update(batch["metrics"])
            if isinstance(batch, Mapping):
                batch = {field: value for field, value in batch.items() if field != "metrics"}
            batches.append(batch)
        # Read while the loader is in the middle of its work, as a training loop would.
        loader_state = copy.deepcopy(loader.state_dict())
    finally:
        close = getattr(iterator, "close", None)  # a generator's: ends what it reads ahead
        if close is not None:
            close()
    if aggregator is None:
        return batches, None, loader_state, {}
    return batches, aggregator.get_metrics(), loader_state, aggregator.state_dict()


def _through_checkpoint(state: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        text = json.dumps(state)
    except (TypeError, ValueError):
        return copy.deepcopy(state)  # not JSON, which torch.save can keep all the same
    restored: Mapping[str, Any] = json.loads(text)
    return restored
