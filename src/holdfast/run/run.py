"""``Run``: a training loop that is recorded, saved, resumed, watched and, where asked, rolled back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from holdfast.errors import ConfigError, RunError
from holdfast.run.attempt import Attempt, begin
from holdfast.run.evaluation import Evaluation
from holdfast.run.gauge import Gauge
from holdfast.run.generators import generator_states, restore_generators
from holdfast.run.layout import RunFolder
from holdfast.run.options import RunOptions
from holdfast.run.preemption import Preemption
from holdfast.run.run_log import RunLog
from holdfast.run.saving import Saving
from holdfast.run.snapshot import Components, Stateful
from holdfast.run.step_record import StepRecord

__all__ = ["Run"]

# How many steps may wait for their numbers to arrive from the device before one of them is waited for.
MAX_BEHIND = 2


class Run:
    """A training run in a folder.

    Starting the same program again continues where the newest good checkpoint was taken. Nothing is touched until the
    first batch is asked for.

    Args:
        folder: where the run lives; everything about it is in there.
        model: what is trained, as it is trained (wrapped by DDP, FSDP, ``torch.compile`` or not).
        loader: where batches come from: a ``StreamingShardLoader``, or any iterable with a state.
        optimizer: what trains the model; one or several.
        scheduler: anything with a state.
        scaler: a gradient scaler.
        metrics: a ``MetricsAggregator``.
        parts: anything else with a state, by name (averaged weights, a curriculum).
        train_step: makes a step of a batch and returns its loss, or a mapping with ``loss`` in it. With it the run can
            ``train`` by itself, and its steps can be replayed, blamed and proven.
        accumulate: batches per step of ``train_step``; with more than one it is given a list of them.
        steps: how many steps there are in all, over all attempts; None ends with the data.
        config: whatever describes the run; written to the log.
        fresh: begin again at step 0 and move the run that is there aside.
        options: how it records, saves and watches.

    Example:
        >>> run = Run("runs/exp7", model=model, optimizer=optimizer, loader=loader)  # doctest: +SKIP
        >>> for batch in run:                                                        # doctest: +SKIP
        ...     run.step(loss=train_step(batch))
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: nn.Module | Mapping[str, nn.Module],
        loader: Any,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
        scheduler: Any = None,
        scaler: Any = None,
        metrics: Any = None,
        parts: Mapping[str, Stateful] | None = None,
        train_step: Callable[[Any], Any] | None = None,
        accumulate: int = 1,
        steps: int | None = None,
        config: Mapping[str, Any] | None = None,
        fresh: bool = False,
        options: RunOptions | None = None,
    ) -> None:
        if accumulate < 1 or (steps is not None and steps < 0):
            raise ConfigError("accumulate must be at least 1 and steps at least 0", accumulate=accumulate, steps=steps)
        self.folder = RunFolder(Path(folder))
        self.options = options or RunOptions()
        self.steps = steps
        self._train_step = train_step
        self._accumulate = accumulate
        self._config = dict(config or {})
        self._fresh = fresh
        named: dict[str, Any] = {"scheduler": scheduler, "scaler": scaler, **(parts or {})}
        self.components = Components(
            model=nn.ModuleDict(model) if isinstance(model, Mapping) else model,
            optimizers=_as_list(optimizer),
            loader=loader,
            metrics=metrics,
            parts={name: part for name, part in named.items() if part is not None},
        )
        self.components.check()
        self._attempt: Attempt | None = None
        self._saving: Saving | None = None
        self._gauge: Gauge | None = None
        self._preemption: Preemption | None = None
        self._waiting: list[StepRecord] = []
        self._pending: StepRecord | None = None
        self._first_batch = 0

    # --- where it stands -------------------------------------------------------------------------------------------

    @property
    def step_number(self) -> int:
        """The next step: how many are done."""
        return self._open.step

    @property
    def log(self) -> RunLog:
        """The run's log, as far as it is written."""
        return RunLog(self.folder.root)

    @property
    def _open(self) -> Attempt:
        if self._attempt is None:
            self.resume()
        assert self._attempt is not None
        return self._attempt

    def resume(self) -> int:
        """Continue from the newest good checkpoint; returns the next step.

        Called by itself when the first batch is asked for; calling it again does nothing. All ranks call it.
        """
        if self._attempt is not None:
            return self._attempt.step
        options, components = self.options, self.components
        attempt = begin(self.folder, components, options, fresh=self._fresh, config=self._config)
        self._attempt = attempt
        self._first_batch = attempt.batch
        self._gauge = Gauge(
            components.model, components.optimizers, grad_norm=options.grad_norm, stats_every=options.stats_every
        )
        self._gauge.wants_layers = lambda: self._gauge is not None and self._gauge.is_due(attempt.step)
        self._preemption = Preemption(enabled=options.handle_signals)
        self._saving = Saving(attempt, components, options)
        if attempt.step == 0 and attempt.saved_step < 0:
            self._saving.save("first")
        return attempt.step

    # --- the loop --------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        """Yield batches from where the run stands, until the data or the steps end."""
        attempt = self._open
        return self._batches(attempt)

    def _batches(self, attempt: Attempt) -> Iterator[Any]:
        lap = attempt.stopwatch.lap
        batches = iter(self.components.loader)
        lap("step")
        while self.steps is None or attempt.step < self.steps:
            try:
                batch = next(batches)
            except StopIteration:
                lap("data")
                break
            lap("data")
            attempt.batch += 1
            yield batch
            lap("step")
            if self._pending is not None and self._settle(attempt):
                return
        self._finish_pass(attempt)

    def step(self, loss: Any = None, *, grad_norm: Any = None, **metrics: Any) -> None:
        """Say that a step is done.

        Args:
            loss: its loss; a tensor is read only when the next step has begun.
            grad_norm: the norm of its gradient before clipping, where the program has it; else it is measured as the
                optimizer sees it.
            **metrics: any other numbers.
        """
        attempt = self._attempt
        if attempt is None or self._gauge is None:
            raise RunError("a step outside the loop", hint="call step() inside `for batch in run:`")
        if self._pending is not None:
            raise RunError("two steps for one batch", step=attempt.step, hint="call step() once per batch at most")
        record = StepRecord(attempt.step, (self._first_batch, attempt.batch), loss, grad_norm, metrics)
        gauge = self._gauge
        record.rate, record.sharded = gauge.rate, gauge.sharded
        record.grad_norms, record.weight_norms, record.layers = gauge.take()
        self._pending = record

    def train(self, steps: int | None = None) -> None:
        """Train with ``train_step`` until the data ends, or until this many steps are done in all."""
        if self._train_step is None:
            raise ConfigError("the run does not know how to make a step", hint="pass train_step= to Run")
        if steps is not None:
            self.steps = steps
        taken: list[Any] = []
        for batch in self:
            taken.append(batch)
            if len(taken) < self._accumulate:
                continue
            made = self._train_step(taken[0] if self._accumulate == 1 else taken)
            taken = []
            self.step(**made) if isinstance(made, Mapping) else self.step(loss=made)

    @contextlib.contextmanager
    def evaluating(self, name: str = "evaluation") -> Iterator[Evaluation]:
        """Keep an evaluation out of the training series, in its own bucket of time; generators are put back after it.

        Yields:
            an ``Evaluation``, whose ``record(loss=…)`` writes its figures to the log.
        """
        attempt = self._open
        attempt.stopwatch.lap("step")
        states = generator_states()
        evaluation = Evaluation(name)
        try:
            yield evaluation
        finally:
            restore_generators(states)
            attempt.stopwatch.lap("evaluation")
            attempt.event("evaluation", name=name, step=attempt.step, figures=evaluation.figures)

    # --- between two steps -----------------------------------------------------------------------------------------

    def _settle(self, attempt: Attempt) -> bool:
        """Close the step that is done: write it, save, act; returns whether the loop ends here."""
        record, self._pending = self._pending, None
        assert record is not None
        self._waiting.append(record)
        attempt.step += 1
        self._first_batch = attempt.batch
        self._write_ready(attempt)
        assert self._saving is not None
        assert self._preemption is not None
        received = self._preemption.received
        if received is not None:
            self._flush(attempt)
            self._saving.save("preempted", wait=True)
            attempt.event("preempted", signal=received, step=attempt.step)
            self.close()
            raise SystemExit(128 + received)
        if self._saving.is_due():
            self._flush(attempt)
            self._saving.save("interval")
        self._saving.poll()
        attempt.stopwatch.lap("step")
        return False

    def _write_ready(self, attempt: Attempt, *, everything: bool = False) -> None:
        waiting = self._waiting
        while waiting and (everything or len(waiting) > MAX_BEHIND or waiting[0].is_ready):
            record = waiting.pop(0)
            fields = record.fields()
            spent, at = attempt.stopwatch.take()
            fields.update(spent)
            if record.step < attempt.reached:
                fields["redone"] = True
            else:
                attempt.reached = record.step + 1
            fields["at"] = at
            attempt.recorder.write(fields)

    def _flush(self, attempt: Attempt) -> None:
        self._write_ready(attempt, everything=True)

    def _finish_pass(self, attempt: Attempt) -> None:
        """Save what the pass over the data, or the run, ended with."""
        assert self._saving is not None
        self._flush(attempt)
        if attempt.step != attempt.saved_step:
            self._saving.save("end", wait=True)
        self._saving.wait()

    # --- the end ---------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Write what is left, close the log and let the folder go; closing twice is harmless."""
        attempt, self._attempt = self._attempt, None
        if attempt is None:
            return
        if self._gauge is not None:
            self._gauge.close()
        if self._preemption is not None:
            self._preemption.close()
        if self._pending is not None:
            attempt.stopwatch.lap("step")
            self._waiting.append(self._pending)
            self._pending = None
            attempt.step += 1
        self._write_ready(attempt, everything=True)
        if self._saving is not None:
            self._saving.wait()
        attempt.event("end", step=attempt.step)
        attempt.close()

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._attempt is not None and self._saving is not None:
            self._flush(self._attempt)
            if self._pending is None and self._attempt.step != self._attempt.saved_step:
                self._saving.save("end", wait=True)
        self.close()


def _as_list(optimizer: Any) -> list[torch.optim.Optimizer]:
    if optimizer is None:
        return []
    return [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
