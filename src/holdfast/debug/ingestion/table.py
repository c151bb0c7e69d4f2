"""From a table of rows to signals, distinguishing four cases: missing, not collected, zero and NaN.

* **missing**: the field is absent from a row of the kind that normally contains it. Its steps go to
  ``metadata["missing_steps"]``: a field that vanishes is evidence (Megatron omits a loss that is NaN).
* **not collected**: the whole column is meaningless: only exact zeros where zero is never measured, only NaN where
  nothing else of its kind was measured, or only placeholders. The reason goes to ``metadata["not_collected"]``.
* **zero** and **NaN** are values and stay in ``values``.

A placeholder (the string ``"nan"`` among JSON numbers, ``NA`` in a CSV) is not NaN: if the whole row is placeholders
the step was not recorded; if only this field is one, the field is missing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.ingestion.names import EVALUATION_WORDS, Meaning, is_ambient, meaning_of, plain
from holdfast.debug.ingestion.reading_rules import RunningMeanRule
from holdfast.debug.ingestion.running_means import at_epoch_ends
from holdfast.debug.ingestion.steps import StepAxis
from holdfast.debug.types import Signal

__all__ = ["Column", "Table"]

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]

# Kinds that are never measured as exactly zero throughout: a column of zeros was not filled.
_NEVER_ALL_ZERO = frozenset(("loss", "eval_loss", "perplexity", "throughput", "step_time", "memory", "loss_scale"))
# Fields that a trainer omits together with a loss it cannot print.
_LOSS_FAMILY = frozenset(("loss", "eval_loss", "perplexity", "grad_norm", "value_loss"))
# Values averaged over the batches of the current epoch.
_AVERAGED = frozenset(("loss", "metric"))
_JUDGED = frozenset(("loss", "eval_loss", "perplexity", "reward"))
_SPLITS = EVALUATION_WORDS | {"train", "training"}
MIN_FALLING = 6
"""Minimum number of points that show that an unnamed series falls."""
MIN_FIELDS_LEFT = 1
"""Minimum number of other fields in a row for the absence of one to be significant."""
_MAX_SHAPES = 256
_MIN_ZEROS = 3


@dataclass(frozen=True, slots=True)
class Column:
    """The values of one field. ``rows`` are the rows that contain them (None: every row, in order)."""

    name: str
    values: Floats
    rows: Rows | None = None
    placeholder_rows: Rows | None = None
    meaning: Meaning | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A signal under construction."""

    column: Column
    meaning: Meaning
    steps: Floats
    values: Floats
    metadata: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Table:
    """Columns over a common step axis."""

    axis: StepAxis
    columns: Sequence[Column]
    means: RunningMeanRule = field(default_factory=RunningMeanRule)

    def signals(self) -> list[Signal]:
        """Build one signal per column, with its kind and what is known about its gaps."""
        metrics = [column for column in self.columns if not is_ambient(column.name)]
        if metrics and len(metrics) < len(self.columns):
            return Table(self.axis, metrics, self.means).signals()
        meanings = _with_losses([column.meaning or meaning_of(column.name) for column in self.columns], self.columns)
        positions = self._positions()
        missing = self._missing_rows(meanings)
        drafts: list[_Draft] = []
        for number, (column, meaning) in enumerate(zip(self.columns, meanings, strict=True)):
            metadata: dict[str, Any] = {**meaning.metadata, **column.metadata}
            if meaning.kind is not None and "trials" not in metadata:  # One value per run is not a series.
                metadata["kind"] = meaning.kind
            steps, values = self._along_axis(column, positions)
            steps, values = _without_filler(steps, values)
            if meaning.kind in _AVERAGED:
                kept = at_epoch_ends(steps, values, self.axis.epoch_boundaries, self.means)
                steps, values = (steps, values) if kept is None else (steps[kept], values[kept])
            gone = missing.get(number)
            if gone is not None and len(gone):
                lost = self.axis.steps[gone if positions is None else gone[positions[gone] >= 0]]
                metadata["missing_steps"] = np.sort(lost)
            if self.axis.epoch_boundaries is not None:
                metadata["epoch_boundaries"] = self.axis.epoch_boundaries
            if self.axis.restarts is not None and meaning.kind == "reward":
                metadata["restarts"] = self.axis.restarts
            if self.axis.log_interval is not None:
                metadata["log_interval"] = self.axis.log_interval
            drafts.append(_Draft(column, meaning, steps, values, metadata))
        _mark_not_collected(drafts)
        return [
            Signal(
                draft.meaning.base or draft.column.name,
                draft.steps,
                draft.values,
                layer=draft.meaning.layer,
                replica=draft.meaning.replica,
                metadata=draft.metadata,
            )
            for draft in drafts
            if len(draft.values) or "not_collected" in draft.metadata or "missing_steps" in draft.metadata
        ]

    def _positions(self) -> Rows | None:
        """Return the index of each row along the step axis; -1 for rows that were written again later."""
        if self.axis.order is None:
            return None
        positions = np.full(len(self.axis.steps), -1, dtype=np.int64)
        positions[self.axis.order] = np.arange(len(self.axis.order))
        return positions

    def _along_axis(self, column: Column, positions: Rows | None) -> tuple[Floats, Floats]:
        if positions is None:
            return (self.axis.steps if column.rows is None else self.axis.steps[column.rows]), column.values
        rows = np.arange(len(self.axis.steps)) if column.rows is None else column.rows
        places = positions[rows]
        kept = np.flatnonzero(places >= 0)
        kept = kept[np.argsort(places[kept], kind="stable")]
        return self.axis.steps[rows[kept]], column.values[kept]

    def _missing_rows(self, meanings: Sequence[Meaning]) -> dict[int, Rows]:
        """Return the rows in which each column vanished although the rest of the row is present."""
        real = [n for n, column in enumerate(self.columns) if not is_ambient(column.name)]
        placeholders = [n for n in real if self.columns[n].placeholder_rows is not None]
        sparse = [n for n in real if self.columns[n].rows is not None]
        if not sparse:
            return {}
        count = len(self.axis.steps)
        shapes = np.zeros(count, dtype=np.uint64)
        generator = np.random.default_rng(20240521)
        for number, key in zip(real, generator.integers(1, 2**63, size=len(real), dtype=np.uint64), strict=True):
            rows = self.columns[number].rows
            if rows is None:
                shapes ^= key
            else:
                shapes[rows] ^= key
        kinds, first, inverse = np.unique(shapes, return_index=True, return_inverse=True)
        if len(kinds) < 2 or len(kinds) > _MAX_SHAPES:
            return {}
        members = [self._fields_of_row(int(row), real) for row in first]
        missing: dict[int, Rows] = {}
        for number in sparse:
            if meanings[number].kind is None:
                continue
            full = [fields for fields in members if number in fields]
            gone = [
                shape
                for shape, fields in enumerate(members)
                if fields and number not in fields and any(_same_sort(fields, other, meanings) for other in full)
            ]
            if gone:
                rows = np.flatnonzero(np.isin(inverse.reshape(-1), gone))
                if not _was_steady(self.columns[number].rows, rows):
                    continue
                if placeholders:
                    rows = self._recorded(rows, number)
                missing[number] = rows
        return missing

    def _recorded(self, rows: Rows, number: int) -> Rows:
        """Leave out rows in which most other fields are placeholders too: the step was not recorded at all."""
        blanks = np.zeros(len(self.axis.steps), dtype=np.int64)
        others = 0
        for other, column in enumerate(self.columns):
            if other == number or is_ambient(column.name):
                continue
            others += 1
            if column.placeholder_rows is not None:
                blanks[column.placeholder_rows] += 1
        return rows[blanks[rows] * 2 <= others]

    def _fields_of_row(self, row: int, real: Sequence[int]) -> frozenset[int]:
        fields = set()
        for number in real:
            rows = self.columns[number].rows
            if rows is None:
                fields.add(number)
                continue
            place = int(np.searchsorted(rows, row))
            if place < len(rows) and rows[place] == row:
                fields.add(number)
        return frozenset(fields)


def _with_losses(meanings: list[Meaning], columns: Sequence[Column]) -> list[Meaning]:
    """Treat series named only ``train`` and ``val`` as losses if no loss is named.

    One of them must fall; the others measure the same. A single ``L``, as papers write a loss, is treated likewise.
    """
    letters = {number for number, column in enumerate(columns) if column.name == "L"}
    if letters and not any(meaning.kind in _JUDGED for meaning in meanings):
        return [replace(meaning, kind="loss" if n in letters else meaning.kind) for n, meaning in enumerate(meanings)]
    splits = {number: word for number, column in enumerate(columns) if (word := plain(column.name)) in _SPLITS}
    unnamed = splits and not any(meaning.kind in _JUDGED for meaning in meanings)
    if not unnamed or not (
        any(_falls(columns[number].values) for number in splits)
        or (len(splits) > 1 and all(_falls(columns[number].values, below_zero=True) for number in splits))
    ):
        return meanings
    kinds = {number: "eval_loss" if word in EVALUATION_WORDS else "loss" for number, word in splits.items()}
    return [replace(meaning, kind=kinds.get(number, meaning.kind)) for number, meaning in enumerate(meanings)]


def _falls(values: Floats, *, below_zero: bool = False) -> bool:
    """Return whether the numbers are positive and end below their start, like a loss.

    The negative logarithm of a likelihood of continuous data begins above zero and may fall ``below_zero``.
    """
    finite = values[np.isfinite(values)]
    if len(finite) < MIN_FALLING or float(finite[0] if below_zero else finite.min()) <= 0.0:
        return False
    width = max(1, len(finite) // 10)
    return float(np.median(finite[-width:])) < float(np.median(finite[:width]))


def _same_sort(fields: frozenset[int], other: frozenset[int], meanings: Sequence[Meaning]) -> bool:
    """Return whether a row without a field is of the kind that normally contains it.

    Only the fields that measure the loss are missing.

    A row of an evaluation, or of inference, lacks more: its times, its counters, its learning rate.
    """
    gone = other - fields
    return fields < other and len(fields) >= MIN_FIELDS_LEFT and all(meanings[n].kind in _LOSS_FAMILY for n in gone)


def _was_steady(present: Rows | None, absent: Rows) -> bool:
    """Return whether the field used to be in every row, so that its absence is not a lower logging frequency."""
    if present is None or not len(present):
        return False
    rows = np.concatenate([present, absent])
    there = np.concatenate([np.ones(len(present), dtype=bool), np.zeros(len(absent), dtype=bool)])
    there = there[np.argsort(rows, kind="stable")]
    edges = np.flatnonzero(np.diff(np.concatenate([[0], there.astype(np.int8), [0]])))
    runs = edges[1::2] - edges[::2]
    return int(runs[runs >= 3].sum()) * 2 >= len(present) or len(present) >= 0.6 * len(rows)


def _without_filler(steps: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Drop NaN that only fills the rows of other fields: a column that is repeatedly NaN in between."""
    nan = np.isnan(values)
    if not nan.any() or nan.all():
        return steps, values
    finite = np.flatnonzero(~nan)
    inside = nan[: finite[-1] + 1]
    # A column that keeps recovering from NaN is a sparse table, not a run.
    returns = int(np.count_nonzero(np.diff(finite) > 1))
    if inside.mean() < 0.3 or returns < 3:
        return steps, values
    widest = int(np.diff(finite).max())
    tail = len(values) - 1 - int(finite[-1])
    keep = ~nan
    if tail > 2 * widest:
        keep[finite[-1] + 1 :] = True
    return steps[keep], values[keep]


def _mark_not_collected(drafts: Sequence[_Draft]) -> None:
    losses = [draft for draft in drafts if draft.meaning.kind == "loss" and len(draft.values)]
    # Some trainers print a NaN loss as zero, next to a NaN gradient norm.
    lost_gradient = any(
        draft.meaning.kind == "grad_norm" and len(draft.values) and bool(np.isnan(draft.values).any())
        for draft in drafts
    )
    finite_loss = any(float(np.isfinite(draft.values).mean()) > 0.5 for draft in losses)
    for draft in drafts:
        values, kind = draft.values, draft.meaning.kind
        if kind is None:
            continue
        if len(values) == 0:
            blanks = draft.column.placeholder_rows
            if blanks is not None and len(blanks):
                draft.metadata["not_collected"] = "every value is a placeholder"
        elif np.isnan(values[0]) and np.isnan(values).all():
            # A gradient that is NaN throughout is what a dead fp16 run looks like: it is a value, not a filler.
            if finite_loss and len(values) > 1 and kind != "grad_norm" and not _lost_beside_others(draft, drafts):
                draft.metadata["not_collected"] = "every value is NaN from the first row on, but the loss is finite"
        elif values[0] == 0 and len(values) >= _MIN_ZEROS and not values.any() and not lost_gradient:
            unmeasured = kind == "grad_norm" and draft.meaning.layer is None and not _stands_still(losses)
            if kind in _NEVER_ALL_ZERO or unmeasured:
                draft.metadata["not_collected"] = f"all {len(values)} values are exactly 0"


def _lost_beside_others(draft: _Draft, drafts: Sequence[_Draft]) -> bool:
    """Return whether a held-out loss that is always NaN belongs to evaluations that measured another loss.

    They computed both: the column is not one that was never filled.
    """
    if draft.meaning.kind != "eval_loss":
        return False
    splits = EVALUATION_WORDS.intersection(plain(draft.column.name).split("_"))
    return any(
        other.meaning.kind == "eval_loss"
        and EVALUATION_WORDS.intersection(plain(other.column.name).split("_")) == splits
        and 2 * np.count_nonzero(np.isin(draft.steps, other.steps[np.isfinite(other.values)])) > len(draft.steps)
        for other in drafts
    )


def _stands_still(losses: Sequence[_Draft]) -> bool:
    """Return whether a loss was measured and hardly moves: a gradient of zero may then be real."""
    for draft in losses:
        finite = draft.values[np.isfinite(draft.values)]
        if len(finite) > 1 and finite.any():
            centre = float(np.median(np.abs(finite))) or 1.0
            if float(np.ptp(finite)) <= 0.05 * centre:
                return True
    return False
