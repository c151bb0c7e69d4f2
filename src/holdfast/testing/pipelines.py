"""Exact resume, as a check that anyone can run on their own pipeline.

A pipeline is a loader and, optionally, a metrics aggregator. It is run twice: once uninterrupted, and once stopped,
saved, rebuilt from scratch and continued. Both runs must give the same batches and the same figures, bit for bit.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.errors import ConfigError
from holdfast.testing.differences import first_difference

__all__ = ["CheckpointRun", "Pipeline", "assert_exact_resume", "run_training_loop_with_checkpoint"]


_ENDED = object()


class StatefulLoader(Protocol):
    """The part of a loader that the checks use: batches and a state."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> Mapping[str, Any]:
        """Return the loader's state."""
        ...

    def load_state_dict(self, state_dict: Any, /) -> None:
        """Continue from a state."""
        ...


class Aggregator(Protocol):
    """The part of a metrics aggregator, such as ``MetricsAggregator``, that the checks use."""

    def update(self, metrics: Any, /) -> None:
        """Add a batch's metrics."""
        ...

    def get_metrics(self) -> Mapping[str, Any]:
        """Return the figures."""
        ...

    def state_dict(self) -> Mapping[str, Any]:
        """Return the state of everything added so far."""
        ...

    def load_state_dict(self, state: Any, /) -> None:
        """Continue from a state."""
        ...


#: A loader and an aggregator (or None), newly created.
Pipeline = tuple[StatefulLoader, Aggregator | None]


@dataclass(frozen=True, slots=True)
class CheckpointRun:
    """The results of the uninterrupted run after the checkpoint, and those of the resumed run.

    Attributes:
        steps_before: the step of the checkpoint.
        batches_before: the batches before the checkpoint.
        ground_truth_batches: the batches of the uninterrupted run after the checkpoint.
        resumed_batches: the batches of the resumed run.
        ground_truth_metrics: the figures at the end of the uninterrupted run; None without an aggregator.
        resumed_metrics: the figures at the end of the resumed run.
        loader_state: the loader's state at the checkpoint.
        telling: whether the batches after a checkpoint, or their metrics, differ from those at the start. If not, a
            pipeline that ignores its state and starts over would pass.
    """

    steps_before: int
    batches_before: list[Any]
    ground_truth_batches: list[Any]
    resumed_batches: list[Any]
    ground_truth_metrics: Mapping[str, Any] | None
    resumed_metrics: Mapping[str, Any] | None
    loader_state: Mapping[str, Any]
    telling: bool


@dataclass(frozen=True, slots=True)
class _Life:
    batches: list[Any]
    metrics: list[Any]
    figures: Mapping[str, Any] | None
    loader_state: Mapping[str, Any]
    metrics_state: Mapping[str, Any]


def run_training_loop_with_checkpoint(
    create_pipeline_fn: Callable[[], Pipeline],
    steps_before: int,
    steps_after: int,
    *,
    create_resumed_fn: Callable[[], Pipeline] | None = None,
) -> CheckpointRun:
    """Run a pipeline uninterrupted, and again with a checkpoint, and return the results of both.

    States pass through JSON text if possible, as through a checkpoint on disk. Under ``torch.distributed``, call it on
    every rank: figures are merged over ranks.

    Args:
        create_pipeline_fn: creates a new pipeline, ``(loader, aggregator)``; the aggregator may be None.
        steps_before: number of batches before the checkpoint; 0 for a checkpoint before the first one.
        steps_after: number of batches after it.
        create_resumed_fn: creates the pipeline that resumes, if it should differ (in its workers, for example).

    Raises:
        AssertionError: the pipeline gave too few batches, is not reproducible, or gave its aggregator nothing.
        ConfigError: there is nothing to run.
    """
    return _run_with_checkpoints(create_pipeline_fn, create_resumed_fn, steps_before, [steps_after])


def assert_exact_resume(
    create_pipeline_fn: Callable[[], Pipeline],
    steps_before: int | Iterable[int],
    steps_after: int,
    *,
    create_resumed_fn: Callable[[], Pipeline] | None = None,
) -> None:
    """Assert that a pipeline resumed from a checkpoint continues exactly as if it had never stopped.

    Halfway through ``steps_after`` it is stopped and resumed again, as real runs are: a state taken from a resumed
    pipeline must be as good as the first.

    Args:
        create_pipeline_fn: creates a new pipeline, ``(loader, aggregator)``; the aggregator may be None.
        steps_before: number of batches before the checkpoint, or several such numbers to try.
        steps_after: number of batches after it.
        create_resumed_fn: creates the pipeline that resumes, if it should differ.

    Raises:
        AssertionError: names the first step and field, or figure, that differs; or says why the check could not fail.
        ConfigError: there is nothing to check.
    """
    tried = [steps_before] if isinstance(steps_before, int) else list(steps_before)
    if not tried:
        raise ConfigError("steps_before is empty: there is no checkpoint to try", steps_before=tried)
    telling = False
    for before in tried:
        half = steps_after // 2
        lives = [half, steps_after - half] if half else [steps_after]
        run = _run_with_checkpoints(create_pipeline_fn, create_resumed_fn, before, lives)
        for place, (one, other) in enumerate(zip(run.ground_truth_batches, run.resumed_batches, strict=True)):
            found = first_difference(one, other)
            again = f" (and again after {before + half})" if half and place >= half else ""
            where = f"resumed after {before} steps{again}, step {before + place} differs: {found}"
            _require(found is None, where + _what_came_instead(run, place))
        found = first_difference(run.ground_truth_metrics, run.resumed_metrics)
        _require(found is None, f"resumed after {before} steps, the metrics differ: {found}")
        telling = telling or run.telling
    _require(
        telling or not any(tried),
        f"this check could not fail: a pipeline that ignores its state and starts over gives the same batches after "
        f"{tried} steps; checkpoint in the middle of an epoch, shuffle, or use data that differs",
    )


def _run_with_checkpoints(
    create_first: Callable[[], Pipeline], create_resumed: Callable[[], Pipeline] | None, before: int, lives: list[int]
) -> CheckpointRun:
    """Run uninterrupted; then again for ``before`` steps, resumed for each of ``lives``."""
    after = sum(lives)
    if before < 0 or after < 1:
        raise ConfigError(
            "a check needs at least one step after the checkpoint", steps_before=before, steps_after=after
        )
    truth = _run(create_first(), before + after)
    life = first = _run(create_first(), before)
    for step, (one, other) in enumerate(zip(truth.batches, first.batches, strict=False)):
        found = first_difference(one, other)
        _require(found is None, f"the pipeline is not reproducible, even without a checkpoint: step {step}, {found}")
    resumed: list[Any] = []
    for steps in lives:
        loader, aggregator = (create_resumed or create_first)()
        loader.load_state_dict(_through_checkpoint(life.loader_state))
        if aggregator is not None:
            aggregator.load_state_dict(_through_checkpoint(life.metrics_state))
        life = _run((loader, aggregator), steps)
        resumed += life.batches
    _require(
        truth.figures is None or any(metrics is not None for metrics in truth.metrics),
        "no batch has 'metrics', so the aggregator was given nothing to compare; collate them, or return None for it",
    )
    starts = [before + sum(lives[:number]) for number in range(len(lives))]
    telling = any(_differs_from_the_start(truth, at, steps) for at, steps in zip(starts, lives, strict=True))
    return CheckpointRun(
        steps_before=before,
        batches_before=truth.batches[:before],
        ground_truth_batches=truth.batches[before:],
        resumed_batches=resumed,
        ground_truth_metrics=truth.figures,
        resumed_metrics=life.figures,
        loader_state=first.loader_state,
        telling=telling,
    )


def _differs_from_the_start(truth: _Life, at: int, steps: int) -> bool:
    start, there = slice(steps), slice(at, at + steps)
    if first_difference(truth.batches[start], truth.batches[there]) is not None:
        return True
    return truth.figures is not None and first_difference(truth.metrics[start], truth.metrics[there]) is not None


def _what_came_instead(run: CheckpointRun, place: int) -> str:
    """Return which step's batch came instead, if the uninterrupted run has it, to show how far off the state was."""
    step = run.steps_before + place
    for other, batch in enumerate([*run.batches_before, *run.ground_truth_batches]):
        if other != step and first_difference(batch, run.resumed_batches[place]) is None:
            return f"; this is the batch of step {other}, too far {'ahead' if other > step else 'back'}"
    return ""


def _require(holds: bool, message: str) -> None:
    if not holds:  # not an assert statement: these checks also work under `python -O`
        raise AssertionError(message)


def _run(pipeline: Pipeline, steps: int) -> _Life:
    """Take this many batches, with their metrics separate, and both states."""
    loader, aggregator = pipeline
    batches: list[Any] = []
    metrics: list[Any] = []
    iterator = iter(loader)
    try:
        for _ in range(steps):
            batch: Any = next(iterator, _ENDED)
            _require(batch is not _ENDED, f"the loader ended after {len(batches)} steps, but {steps} are needed")
            batch = copy.deepcopy(batch)  # a loader may reuse the same memory
            metrics.append(batch.get("metrics") if isinstance(batch, Mapping) else None)
            if aggregator is not None and metrics[-1] is not None:
                aggregator.update(metrics[-1])
            if isinstance(batch, Mapping):
                batch = {field: value for field, value in batch.items() if field != "metrics"}
            batches.append(batch)
        # Taken while the loader is in the middle of its work, as in a training loop.
        loader_state = copy.deepcopy(loader.state_dict())
    finally:
        close = getattr(iterator, "close", None)  # of a generator: ends its reading ahead
        if close is not None:
            close()
    if aggregator is None:
        return _Life(batches, metrics, None, loader_state, {})
    return _Life(batches, metrics, aggregator.get_metrics(), loader_state, aggregator.state_dict())


def _through_checkpoint(state: Mapping[str, Any]) -> Mapping[str, Any]:
    try:
        text = json.dumps(state)
    except (TypeError, ValueError):
        return copy.deepcopy(state)  # not JSON, but torch.save can still save it
    restored: Mapping[str, Any] = json.loads(text)
    return restored
