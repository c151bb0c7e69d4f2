"""The meaning of columns with uninformative names: a table of runs side by side, or splits without the word *loss*.

Used only if no column of a table has a known name. ``loss.csv`` with the columns ``lr_0.1, lr_0.01`` contains the loss
of two runs; ``{"train": […], "val": […]}`` that falls is the loss on two splits; the columns ``r, l, t`` are the
reward, length and time of episodes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from holdfast.debug.ingestion.names import EVALUATION_WORDS, meaning_of, plain
from holdfast.debug.ingestion.reading_rules import ListRule
from holdfast.debug.ingestion.table import Column

__all__ = ["is_episode_table", "named_by_context"]

_SPLITS = frozenset(("train", "training", *EVALUATION_WORDS))
_NUMBERS = re.compile(r"\d+(?:_\d+)*")
_TRAINING = frozenset(("train", "training", "history", "progress", "fit"))
FALLEN_SHARE = 0.9
"""The quantile of the last tenth that must be below half of the start."""
_EPISODE = ("r", "l", "t")
"""The names of an episode's return, length and end time in the monitors of Gym and Stable-Baselines."""


def is_episode_table(names: Iterable[str]) -> bool:
    """Return whether these are the columns of an episode monitor."""
    return set(_EPISODE) <= {plain(name) for name in names}


def named_by_context(columns: list[Column], source_name: str, rule: ListRule) -> list[Column]:
    """Return the columns, named by the file or by their trend if no name among them is known."""
    if any((column.meaning or meaning_of(column.name)).kind for column in columns):
        return columns
    if is_episode_table(column.name for column in columns):
        return [replace(c, meaning=meaning_of("reward")) if plain(c.name) == "r" else c for c in columns]
    if (only := _only_value(columns, rule)) is not None and (what := _stem(source_name)):
        return [replace(c, meaning=meaning_of(what)) if c is only else c for c in columns]
    if only is not None and _TRAINING & set(plain(source_name).split("_")) and _falls_far(only):
        return [replace(c, meaning=meaning_of("loss")) if c is only else c for c in columns]
    splits = [column for column in columns if plain(column.name) in _SPLITS and _is_series(column, rule)]
    if splits and all(_falls(column) for column in splits):
        chosen, what = splits, "loss"
    else:
        chosen, what = _runs(columns, rule), _stem(source_name)
    if not chosen or meaning_of(what).kind is None:
        return columns
    own = {id(column) for column in chosen}
    return [replace(c, name=f"{c.name} {what}") if id(c) in own else c for c in columns]


def _only_value(columns: Sequence[Column], rule: ListRule) -> Column | None:
    """Return the column that is merely called a value, if there is one: an export of a single series."""
    found = [column for column in columns if plain(column.name) in ("value", "values")]
    return found[0] if len(found) == 1 and _is_series(found[0], rule) else None


def _runs(columns: Sequence[Column], rule: ListRule) -> list[Column]:
    """Return the columns whose names differ only in a number, as in a sweep over one setting."""
    series = [
        column for column in columns if _is_series(column, rule) and meaning_of(f"{column.name} loss").kind == "loss"
    ]
    bare = {_NUMBERS.sub("", plain(column.name)) for column in series}
    return series if len(bare) == 1 and 1 < len(series) <= rule.unnamed_runs else []


def _stem(source_name: str) -> str:
    """Return the last word of a file's name that is a known metric: ``chunk_len_error.csv`` contains errors."""
    words = plain(source_name.rsplit(".", 1)[0]).split("_")
    return next((word for word in reversed(words) if meaning_of(word).kind), "")


def _is_series(column: Column, rule: ListRule) -> bool:
    return int(np.isfinite(column.values).sum()) >= rule.unnamed_points


def _falls_far(column: Column) -> bool:
    """Return whether a column falls to half of its start or less, from above 1, as neither rates nor fractions do."""
    values = column.values[np.isfinite(column.values)]
    width = max(1, len(values) // 10)
    first, last = float(np.median(values[:width])), float(np.quantile(values[-width:], FALLEN_SHARE))
    return first > 1.0 and 0.0 <= last <= first / 2


def _falls(column: Column) -> bool:
    values = column.values[np.isfinite(column.values)]
    width = max(1, len(values) // 10)
    return float(np.median(values[-width:])) < float(np.median(values[:width]))
