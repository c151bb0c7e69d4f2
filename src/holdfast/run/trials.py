"""Trials: the steps around a suspect one, re-run from one state, as they were or without some samples.

The state just before the window is kept in memory and restored, so every further trial costs only the steps of the
window. Samples are left out by masking if the step function respects ``__valid__``; if it does not, the first step
shows it (the bits do not change), and their rows are removed from the batch instead.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from holdfast.errors import ConfigError, HoldfastError, RunError
from holdfast.run.rehearsal import Held, Rehearsal
from holdfast.run.run_log import Record

__all__ = ["Measured", "Sample", "Trials"]


COMPANY = 4
"""How many other samples one is measured with if the step function refuses a batch of one."""


class Sample(NamedTuple):
    """A sample of the window, and its position."""

    source: str
    index: int  # type: ignore[assignment]  # a sample's index, as everywhere; tuple.index is not used
    step: int
    batch: int
    row: int

    @property
    def name(self) -> tuple[str, int]:
        """The source and the index."""
        return self.source, self.index


class Measured(NamedTuple):
    """A sample on its own, at the state before the window."""

    sample: Sample
    loss: float
    grad_norm: float | None


class Trials:
    """Trials over one window.

    Args:
        rehearsal: begun at or before the window.
        steps: the window and the steps after it that are watched.

    Attributes:
        lead_in: the steps between the checkpoint and the window, as re-run.
        steps_made: optimizer steps made so far, including the lead-in.
        samples_measured: samples measured one by one so far, including those measured with them.
    """

    def __init__(self, rehearsal: Rehearsal, steps: range) -> None:
        loader = rehearsal.components.loader
        if not rehearsal.components.has_order:
            raise ConfigError(
                "only a loader that computes its order can say which samples a step saw",
                loader=type(loader).__name__,
                hint="read through a StreamingShardLoader",
            )
        if loader.world_size != 1:
            raise ConfigError(
                "samples are measured one by one in a single process",
                world_size=loader.world_size,
                hint="run this on one rank, with a run whose batches fit there",
            )
        self.rehearsal = rehearsal
        self.steps = steps
        self.lead_in = rehearsal.run_to(steps.start)
        self.steps_made = len(self.lead_in)
        self.samples_measured = 0
        self.removes_rows = False
        self._company: dict[str, Any] | None = None  # samples to measure others with, if a batch of one is refused
        self._company_loss = 0.0
        self._start = (rehearsal.step, rehearsal._batch)
        self._held = Held(rehearsal.components)

    def rewind(self) -> None:
        """Go back to the state before the window."""
        self._held.put_back()
        self.rehearsal.step, self.rehearsal._batch = self._start
        self.rehearsal._transform = None

    def make(self, without: Iterable[tuple[str, int]] = (), *, unlike: Record | None = None) -> list[Record]:
        """Make the steps, without some samples.

        Args:
            without: the samples to leave out.
            unlike: the original record of the first step that contains one of them: shows whether masks are respected.
        """
        taken_out = frozenset(without)
        self.rewind()
        if taken_out:
            self._take_out(taken_out)
        records = []
        while self.rehearsal.step < self.steps.stop:
            record = self.rehearsal.take_step()
            self.steps_made += 1
            records.append(record)
            ignored = unlike is not None and record["step"] == unlike["step"] and _same_bits(record, unlike)
            if ignored and taken_out and not self.removes_rows:
                self.removes_rows = True
                return self.make(taken_out)
        return records

    def _take_out(self, samples: frozenset[tuple[str, int]]) -> None:
        if self.removes_rows:
            self.rehearsal._transform = lambda number, batch: _without(
                batch, [r for r, s in enumerate(self._refs(number)) if s not in samples]
            )
            return
        by_source: dict[str, list[int]] = {}
        for source, index in sorted(samples):
            by_source.setdefault(source, []).append(index)
        self.rehearsal.components.loader.mask(samples=by_source)

    def _refs(self, batch: int) -> list[tuple[str, int]]:
        loader = self.rehearsal.components.loader
        return [(ref.source, ref.index) for ref in loader.samples_in(batch, loader.rank)]

    def samples_of(self, steps: range) -> list[Sample]:
        """Return the samples of recorded steps, except those that are already masked."""
        found = []
        for step in steps:
            record = self.rehearsal.recorded(step)
            if record is None:
                raise RunError("the run has not made this step", step=step)
            for batch in range(*record["batches"]):
                valid = self.rehearsal.components.loader.batch_at(batch).get("__valid__")
                found += [
                    Sample(source, index, step, batch, row)
                    for row, (source, index) in enumerate(self._refs(batch))
                    if valid is None or bool(valid[row])
                ]
        return found

    def measure(self, samples: Iterable[Sample]) -> list[Measured]:
        """Measure samples one by one: a batch of one each, always from the state before the window.

        If the step function refuses a batch of one (as ``BatchNorm1d`` does), each sample is measured together with a
        few from the batch before the window, by what it adds to their loss.
        """
        measured = []
        number, batch = -1, {}
        for sample in samples:
            if sample.batch != number:
                number, batch = sample.batch, self.rehearsal.components.loader.batch_at(sample.batch)
            one = _without(batch, [sample.row])
            if self._company is None:
                try:
                    measured.append(Measured(sample, *self._measure_batch(one, 1)))
                    continue
                except HoldfastError:
                    raise
                except Exception:  # from the program: if it also fails with other samples, the error is raised there
                    before = self.rehearsal.components.loader.batch_at(max(0, self._start[1] - 1))
                    self._company = _without(before, list(range(min(COMPANY, _rows(before)))))
                    self._company_loss, _ = self._measure_batch(self._company, COMPANY)
            both, norm = self._measure_batch(_together(one, self._company), COMPANY + 1)
            measured.append(Measured(sample, (COMPANY + 1) * both - COMPANY * self._company_loss, norm))
        self.rewind()
        return measured

    def _measure_batch(self, batch: Mapping[str, Any], rows: int) -> tuple[float, float | None]:
        self.rewind()
        record = self.rehearsal.take_step(batch=batch)
        self.samples_measured += rows
        loss = record.get("loss")
        if loss is None:
            raise ConfigError("the step function does not return a loss", hint="return the loss from train_step")
        return float(loss), record.get("grad_norm")


def _same_bits(one: Record, other: Record) -> bool:
    return one.get("loss_bits") == other.get("loss_bits") and one.get("grad_norm_bits") == other.get("grad_norm_bits")


def _rows(batch: Mapping[str, Any]) -> int:
    return max((len(value) for value in batch.values() if isinstance(value, (torch.Tensor, list))), default=0)


def _without(batch: Mapping[str, Any], rows: list[int]) -> dict[str, Any]:
    """Return a batch with only the given rows."""
    if not rows:
        raise ConfigError("a batch would be empty", hint="make the step function respect __valid__")
    size = _rows(batch)
    chosen: dict[str, Any] = {}
    for name, value in batch.items():
        if isinstance(value, torch.Tensor) and value.dim() and len(value) == size:
            chosen[name] = value[rows]
        elif isinstance(value, list) and len(value) == size and name != "metrics":
            chosen[name] = [value[row] for row in rows]
        else:
            chosen[name] = value
    return chosen


def _together(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rows of two batches as one batch."""
    joined: dict[str, Any] = {}
    for name, value in one.items():
        if isinstance(value, torch.Tensor) and value.dim():
            joined[name] = torch.cat([value, other[name]])
        elif isinstance(value, list) and name != "metrics":
            joined[name] = value + other[name]
        else:
            joined[name] = value
    return joined
