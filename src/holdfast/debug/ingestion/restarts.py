"""Where one run in a file ends and the next begins.

A counter that goes back means one of three things. Each epoch counts its batches from the beginning: a *pass*, still
the same run. A run resumed from a checkpoint writes some steps again: an *overlap*, the same run too. Or the counter is
back at its start because another run was written into the same file: only this separates runs. A pass is told from a
new run by the epoch if one is printed, then by what is between the rows (settings printed again, a jump of the clock, a
crash), then by whether the loss is back at its first level, and last by whether the segments are equally long.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.ingestion.reading_rules import RestartRule

__all__ = ["Counters", "divide_runs"]

Floats = NDArray[np.float64]
_TURN_OF_NOISE = 3.0**0.5
"""How much larger the second differences of pure noise are than its first ones."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What is known about a file's rows, one entry per row.

    Args:
        steps: the printed step, with gaps filled.
        epochs: the printed epoch, with gaps filled, if one is printed.
        level: the main loss, NaN if a row has none.
        marks: rows before which something indicates that a run began: settings again, the clock, a crash.
        pass_length: the total printed with the counter, if there is one.
        told_late: whether an epoch is printed when it is over: the first rows of a later run then seem to belong to the
            last epoch of the one before, and it begins where the step was back.
        whole_run: whether the counter, by its name, counts the whole run and not a pass (``total_timesteps``).
        rule: when going back begins another run.
    """

    steps: Floats
    epochs: Floats | None = None
    level: Floats | None = None
    marks: Collection[int] = ()
    pass_length: float | None = None
    told_late: bool = False
    whole_run: bool = False
    rule: RestartRule = field(default_factory=RestartRule)


def divide_runs(counters: Counters) -> list[int]:
    """Return the rows at which runs begin; the first is always 0."""
    steps, epochs = counters.steps, counters.epochs
    if epochs is not None and float(np.ptp(epochs)) == 0.0:
        epochs = None  # An epoch that never changes says nothing about the order of rows.
    back = np.diff(steps) < 0
    if epochs is not None:
        back |= np.diff(epochs) < 0
    suspects = np.flatnonzero(back) + 1
    begins = [0]
    for number, row in enumerate(suspects.tolist()):
        following = int(suspects[number + 1]) if number + 1 < len(suspects) else len(steps)
        if _begins_a_run(counters, epochs, begins[-1], row, following):
            before = int(suspects[number - 1]) if number else 0
            late = counters.told_late and epochs is not None and bool(np.all(epochs[before:row] == epochs[before]))
            began = late and begins[-1] < before and _at_start(counters.rule, steps, begins[-1], before)
            begins.append(before if began else row)
    if len(begins) > 1 and len(steps) / len(begins) < counters.rule.minimum_rows_per_run:
        return [0]
    return [0] if _are_rounds(counters, begins) else begins


def _are_rounds(counters: Counters, begins: list[int]) -> bool:
    """Return whether many segments of equal length are rounds of one run.

    Each begins where the last one ended, not at the start.

    A program that calls ``learn(10_000)`` repeatedly counts each call from zero; the runs of a sweep are equally long
    too, but all start at the same level.
    """
    rule, level = counters.rule, counters.level
    lengths = np.diff(begins)
    unlike = len(begins) < rule.minimum_rounds or np.any(lengths != lengths[0])
    if level is None or unlike or len(level) - begins[-1] > lengths[0] or len(counters.marks):
        return False
    parts = [part[np.isfinite(part)] for part in np.split(level, begins[1:])]
    parts = [part for part in parts if len(part)]
    width = max(1, min(rule.level_rows, int(lengths[0]) // 3))
    starts = np.array([np.median(part[:width]) for part in parts])
    ends = np.array([np.median(part[-width:]) for part in parts])
    goes_on = np.abs(starts[2:] - ends[1:-1]) < np.abs(starts[2:] - starts[0])
    return len(goes_on) > 0 and float(goes_on.mean()) >= rule.goes_on_share


def _begins_a_run(counters: Counters, epochs: Floats | None, begin: int, row: int, following: int) -> bool:
    rule = counters.rule
    marked = any(row - 1 < mark <= row for mark in counters.marks)
    if epochs is not None:
        if epochs[row] < epochs[row - 1]:
            return _at_start(rule, epochs, begin, row)
        if epochs[row] > epochs[row - 1]:
            return False
        return marked and _at_start(rule, counters.steps, begin, row) and _at_start(rule, epochs, begin, row)
    if not _at_start(rule, counters.steps, begin, row):
        return False
    if marked or counters.whole_run:
        return True
    if counters.level is not None:
        back_at_first = _level_is_back(rule, counters.level, begin, row, following)
        if back_at_first is not None:
            return back_at_first
    if counters.pass_length and counters.steps[row - 1] == counters.pass_length:
        return False  # It counted to its total: the next pass begins.
    return not _alike(rule, counters.steps, begin, row, following)


def _at_start(rule: RestartRule, counter: Floats, begin: int, row: int) -> bool:
    """Return whether the counter is back at the start of this run.

    It is at its first value, or within its first few rows.
    """
    stretch = counter[begin:row]
    first, top = float(stretch[0]), float(stretch.max())
    rises = np.diff(stretch)
    stride = float(np.median(rises[rises > 0])) if np.any(rises > 0) else 1.0
    return bool(counter[row] <= first + max(0.5 * stride, rule.near_start_share * (top - first)))


def _level_is_back(rule: RestartRule, level: Floats, begin: int, row: int, following: int) -> bool | None:
    """Return whether the loss is back at its first level.

    None if it never visibly left it.
    """
    before = level[begin:row][np.isfinite(level[begin:row])]
    after = level[row:following][np.isfinite(level[row:following])]
    if len(before) < 2 or not len(after):
        return None
    width = max(1, min(rule.level_rows, len(before) // 3))
    first, last = float(np.median(before[:width])), float(np.median(before[-width:]))
    now = float(np.median(after[: max(1, min(width, len(after) // 3))]))
    noise = _noise(before)
    if abs(first - last) <= rule.minimum_fall_noises * noise or abs(first - last) <= rule.minimum_fall_share * abs(
        first
    ):
        return None
    return abs(now - first) < abs(now - last)


def _noise(values: Floats) -> float:
    """Return how much a series jumps from row to row, without its trend: that of a short run is all of its jumps."""
    if len(values) <= 3:
        return 0.0
    jumps, turns = np.abs(np.diff(values)), np.abs(np.diff(values, 2))
    return float(min(np.median(jumps), np.median(turns) / _TURN_OF_NOISE))


def _alike(rule: RestartRule, counter: Floats, begin: int, row: int, following: int) -> bool:
    """Return whether the segments before and after may be passes over the same data.

    They are equally long, except for the last.
    """
    start = begin
    drops = np.flatnonzero(np.diff(counter[begin:row]) < 0)
    if len(drops):
        start = begin + int(drops[-1]) + 1
    before = float(counter[start:row].max() - counter[start])
    after = float(counter[row:following].max() - counter[row])
    if following == len(counter):
        return after <= (1.0 + rule.alike_share) * before + 1.0  # The last pass may be shorter, never longer.
    return abs(after - before) <= rule.alike_share * max(before, after) + 1.0
