"""From named columns, whatever their source, to signals.

Finds the step and epoch columns, separates the rows of several ranks, layers or splits, and reads the long form
(``step, metric, value``) as well as the wide one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.names import EPOCH_NAMES, EVALUATION_WORDS, STEP_NAMES, meaning_of, plain
from holdfast.debug.ingestion.reading_rules import RestartRule
from holdfast.debug.ingestion.restarts import Counters, divide_runs
from holdfast.debug.ingestion.steps import fill_gaps, repair_steps
from holdfast.debug.ingestion.table import Column, Table
from holdfast.debug.ingestion.unnamed import is_episode_table, named_by_context
from holdfast.debug.types import LOSS_LIKE, Signal

__all__ = ["Reading", "dense", "main_column", "read_columns", "restrict"]

Floats = NDArray[np.float64]

_RANK_NAMES = frozenset(("rank", "replica", "global_rank", "local_rank", "gpu", "gpu_id", "worker_rank", "dp_rank"))
_LAYER_NAMES = frozenset(("layer", "layer_name", "param", "parameter", "param_name", "module", "parameter_name"))
_SPLIT_NAMES = frozenset(("split", "phase", "mode", "stage", "dataset_split", "subset"))
_SET_NAMES = frozenset(("dataset", "data", "set", "partition", "data_set"))
_TAG_NAMES = frozenset(("metric", "tag", "key", "metric_name", "name", "variable", "type", "kind"))
_SPLITS = frozenset(("train", "training", *EVALUATION_WORDS))
_VALUE_NAMES = frozenset(("value", "values", "scalar", "metric_value"))
_TRIAL_NAMES = frozenset(("trial", "trial_id", "trial_number", "trial_num", "trial_index"))
_MAX_GROUPS = 4096
_WHOLE_RUN = frozenset(("total_timesteps", "time_total_timesteps", "global_step", "trainer_global_step", "total_steps"))
MIN_FILES = 8
"""Minimum number of rows, each naming a different file, for a table to be a list of samples."""
MIN_COUNTED = 20
"""Minimum number of rows that show that a column named after steps does not count them …"""
MAX_BACK = 0.4
"""… if more than this fraction of the rows go back: of random numbers half do …"""
MIN_RESTARTS = 0.5
"""… and less than this fraction of those go back to the minimum, as a counter that restarts does."""
MIN_RESULTS = 3
"""Minimum number of different words in a column for them to name what each row is about: two may be yes and no."""
_LETTER = re.compile(r"[^\W\d_]")
_DIGIT = re.compile(r"\d")
_FILE = re.compile(r"[\w)-]\.[A-Za-z]\w{1,4}$")
_WEIGHTS = re.compile(r"\.(?:pt|pth|ckpt|bin|h5|hdf5|keras|safetensors|pkl|onnx)$")  # Each represents a step.
_INDEX = re.compile(r"^Unnamed: \d+$")
_TAG_IN_FILE = re.compile(r"tag-(.+?)(?:\.csv)?$", re.IGNORECASE)


@dataclass(slots=True)
class Reading:
    """The result of reading columns."""

    signals: list[Signal] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    events: list[Mapping[str, Any]] = field(default_factory=list)
    has_step: bool = True
    later: list[Reading] = field(default_factory=list)
    """The runs that follow in the same rows."""
    rows: tuple[int, int] | None = None
    """The rows of this run, if there are several."""


def read_columns(
    count: int,
    columns: Sequence[Column],
    labels: Mapping[str, NDArray[Any]],
    *,
    source_name: str = "",
    divide: bool = True,
    limits: Limits | None = None,
) -> Reading:
    """Read ``count`` rows of numeric ``columns`` and of ``labels`` (one word per row, None if a row has none).

    Several runs in the rows are separated, unless ``divide`` is false.
    """
    reading, limits = Reading(), limits or Limits()
    rule = limits.restarts
    # Ranges next to each value in a W&B download, and the unnamed index that pandas writes.
    columns = [c for c in columns if c.name and not c.name.endswith(("__MIN", "__MAX")) and not _INDEX.match(c.name)]
    columns = _from_long_form(columns, labels)
    step, epoch = _choose(columns, STEP_NAMES, count), _choose(columns, EPOCH_NAMES, count)
    if step is None and epoch is None:
        if _names_files(labels) or _lists_results(columns, labels):
            return Reading(has_step=False)
        reading.has_step = False
        columns = _of_trials(columns, labels, count)
        if count > 1:
            reading.notes.append("no step column was found; rows are counted instead")
    axis_columns = {id(column) for column in (step, epoch) if column is not None}
    rest = [column for column in columns if id(column) not in axis_columns]
    rest, groups = _groups(count, rest, labels, source_name)
    rest = named_by_context(rest, source_name, limits.lists)
    steps = dense(step if step is not None else epoch, count, None)
    epochs = dense(epoch, count, None) if step is not None and epoch is not None else None
    # An epoch never repeats within a run: if it serves as the step, going back starts another.
    whole = step is None or plain(step.name) in _WHOLE_RUN
    begins = _begins(steps, epochs, rest, groups, whole_run=whole, rule=rule) if divide and reading.has_step else [0]
    for begin, end in zip(begins, [*begins[1:], count], strict=True):
        one = reading if begin == 0 else Reading()
        if one is not reading:
            reading.later.append(one)
        one.rows = (begin, end) if len(begins) > 1 else None
        for rows, prefix, layer, replica in groups:
            own = rows if one.rows is None else _within(rows, begin, end)
            if own is not None and not len(own):
                continue
            part = rest if own is None else [restrict(column, own, count) for column in rest]
            axis = repair_steps(
                steps if own is None else steps[own],
                None if epochs is None else epochs if own is None else epochs[own],
                rule=rule.steps,
            )
            named = [
                _named(column, prefix, layer, replica)
                for column in part
                if len(column.values) or column.placeholder_rows is not None
            ]
            one.signals += Table(axis, named, rule.means).signals()
            one.notes += [note for note in axis.notes if note not in one.notes]
            one.events += axis.events
    return reading


def _names_files(labels: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether a column names a different file in each row: the rows are samples, not steps of a run."""
    for words in labels.values():
        named = [word for word in words.tolist() if isinstance(word, str)]
        distinct = len(words) >= MIN_FILES and len(set(named)) == len(words)
        if distinct and all(_FILE.search(word) and not _WEIGHTS.search(word) for word in named):
            return True
    return False


def _of_trials(columns: list[Column], labels: Mapping[str, NDArray[Any]], count: int) -> list[Column]:
    """Return the columns, marked if each row is another trial of a hyperparameter search.

    What an agent earns in a trial is the reward of an episode.
    """
    meanings = [column.meaning or meaning_of(column.name) for column in columns]
    told: list[NDArray[Any]] = [words for name, words in labels.items() if plain(name) in _TRIAL_NAMES]
    told += [column.values for column in columns if plain(column.name) in _TRIAL_NAMES]
    another = any(len(set(trials.tolist())) == count > 1 for trials in told)
    if not another or any(meaning.kind == "reward" for meaning in meanings):
        return columns
    marked = [replace(meaning, metadata={**meaning.metadata, "trials": True}) for meaning in meanings]
    return [
        replace(column, meaning=meaning) if meaning.kind in LOSS_LIKE else column
        for column, meaning in zip(columns, marked, strict=True)
    ]


def _lists_results(columns: Sequence[Column], labels: Mapping[str, NDArray[Any]]) -> bool:
    """Return whether the rows are results for several items named in a column of words, not steps of one run.

    Items such as data sets, methods, classes or kinds of noise have no meaningful order. A loss belongs to a run.
    """
    if any((c.meaning or meaning_of(c.name)).kind in ("loss", "eval_loss", "perplexity", "reward") for c in columns):
        return False
    if is_episode_table(column.name for column in columns):
        return False
    for name, words in labels.items():
        if plain(name) in _SPLIT_NAMES | _LAYER_NAMES or _are_splits(words):
            continue
        distinct = {word for word in words.tolist() if isinstance(word, str)}
        if len(distinct) >= MIN_RESULTS and all(
            len(_LETTER.findall(word)) > len(_DIGIT.findall(word)) for word in distinct
        ):
            return True
    return False


def _begins(
    steps: Floats,
    epochs: Floats | None,
    columns: Sequence[Column],
    groups: Sequence[Group],
    *,
    whole_run: bool,
    rule: RestartRule,
) -> list[int]:
    """Return the rows at which runs begin, judged by the longest group of rows."""
    rows = max((group[0] for group in groups), key=lambda own: len(steps) if own is None else len(own), default=None)
    count = len(steps)
    rewards = [column for column in columns if (column.meaning or meaning_of(column.name)).kind == "reward"]
    main = main_column(rewards or columns)  # An agent's losses are left as they are.
    level = None if main is None else dense(main, count, None)
    if rows is None:
        epochs = None if epochs is None else fill_gaps(epochs)
        return divide_runs(Counters(fill_gaps(steps), epochs, level, whole_run=whole_run, rule=rule))
    own = Counters(
        fill_gaps(steps[rows]),
        None if epochs is None else fill_gaps(epochs[rows]),
        None if level is None else level[rows],
        whole_run=whole_run,
        rule=rule,
    )
    return [0, *(int(rows[begin]) for begin in divide_runs(own)[1:])]


def _within(rows: NDArray[np.int64] | None, begin: int, end: int) -> NDArray[np.int64]:
    return np.arange(begin, end) if rows is None else rows[(rows >= begin) & (rows < end)]


def _from_long_form(columns: list[Column], labels: Mapping[str, NDArray[Any]]) -> list[Column]:
    """Turn ``step, metric, value`` rows into one column per metric."""
    values = [column for column in columns if plain(column.name) in _VALUE_NAMES]
    tags = next((words for name, words in labels.items() if plain(name) in _TAG_NAMES), None)
    if len(values) != 1 or tags is None:
        return columns
    distinct = sorted({str(word) for word in tags.tolist() if word is not None})
    if not 0 < len(distinct) <= _MAX_GROUPS:
        return columns
    rows = np.arange(len(tags)) if values[0].rows is None else values[0].rows
    own = tags[rows]
    # A value named only by its split is the loss on that split.
    names = {tag: f"{tag} loss" if plain(tag) in _SPLITS else tag for tag in distinct}
    pivoted = [Column(names[tag], values[0].values[own == tag], rows[own == tag]) for tag in distinct]
    return [column for column in columns if column is not values[0]] + pivoted


def _choose(columns: Sequence[Column], names: Sequence[str], count: int) -> Column | None:
    best: Column | None = None
    for wanted in names:
        for column in columns:
            if plain(column.name) != wanted or len(column.values) * 2 < count:
                continue
            finite = column.values[np.isfinite(column.values)]
            if _does_not_count(finite):
                continue  # The steps that each row took.
            if len(finite) * 2 >= count and (count == 1 or (len(finite) > 1 and finite.min() != finite.max())):
                return column
            best = best or column
    return None if best is None or count > 3 else best


def _does_not_count(values: Floats) -> bool:
    """Return whether a column goes up and down, unlike a counter that restarts every few rows."""
    back = np.diff(values) < 0
    if len(values) < MIN_COUNTED or float(back.mean()) <= MAX_BACK:
        return False
    return float(np.mean(values[1:][back] == values.min())) < MIN_RESTARTS


def dense(column: Column | None, count: int, rows: NDArray[np.int64] | None) -> Floats:
    """Return one entry per row, NaN if the column has none; without a column, the row numbers."""
    if column is None:
        return np.arange(count if rows is None else len(rows), dtype=np.float64)
    values = column.values
    if column.rows is not None:
        values = np.full(count, np.nan)
        values[column.rows] = column.values
    return values if rows is None else values[rows]


def restrict(column: Column, rows: NDArray[np.int64], count: int) -> Column:
    """Return the column restricted to some of the ``count`` rows, renumbered."""
    place = np.full(count, -1, dtype=np.int64)
    place[rows] = np.arange(len(rows))
    own = np.arange(count) if column.rows is None else column.rows
    inside = place[own] >= 0
    kept = place[own][inside]
    blanks = None if column.placeholder_rows is None else place[column.placeholder_rows]
    return replace(
        column,
        values=column.values[inside],
        rows=None if len(kept) == len(rows) else kept,
        placeholder_rows=None if blanks is None else blanks[blanks >= 0],
    )


def _named(column: Column, prefix: str, layer: str | None, replica: int | None) -> Column:
    name = column.name
    words = set(plain(name).split("_"))
    if prefix and not words & set(plain(prefix).split("_")):
        name = f"{prefix}/{name}"
    meaning = column.meaning or meaning_of(name)
    if layer is not None or replica is not None:
        meaning = replace(
            meaning, layer=layer or meaning.layer, replica=meaning.replica if replica is None else replica
        )
    return replace(column, name=name, meaning=meaning)


def main_column(columns: Sequence[Column]) -> Column | None:
    """Return the loss (or the closest substitute) that most rows contain."""
    for kinds in (("loss",), ("eval_loss", "perplexity"), ("reward", "metric")):
        known = [c for c in columns if (c.meaning or meaning_of(c.name)).kind in kinds and len(c.values)]
        if known:
            return max(known, key=lambda column: len(column.values))
    return None


Group = tuple[NDArray[np.int64] | None, str, str | None, int | None]


def _groups(
    count: int, columns: list[Column], labels: Mapping[str, NDArray[Any]], source_name: str
) -> tuple[list[Column], list[Group]]:
    values = [column for column in columns if plain(column.name) in _VALUE_NAMES]
    tag = _TAG_IN_FILE.search(source_name)
    if (
        len(values) == 1
        and tag
        and not any(meaning_of(column.name).kind for column in columns if column is not values[0])
    ):
        # A scalar downloaded from TensorBoard: the file's name identifies its single column.
        return [replace(values[0], name=tag.group(1).replace("_", "/", 1))], [(None, "", None, None)]
    ranks = next((c for c in columns if plain(c.name) in _RANK_NAMES and _few_whole_numbers(c, count)), None)
    if ranks is not None:
        columns = [column for column in columns if column is not ranks]
    groups: list[Group] = [(None, "", None, None)]
    if ranks is not None:
        numbers = dense(ranks, count, None)
        groups = [
            (np.flatnonzero(numbers == rank), "", None, int(rank)) for rank in np.unique(numbers[np.isfinite(numbers)])
        ]
    for name, words in labels.items():
        word = plain(name)
        if word in _SPLIT_NAMES or (word in _SET_NAMES and _are_splits(words)):
            groups = list(_split(groups, words, count, "split"))
        elif word in _LAYER_NAMES:
            groups = list(_split(groups, words, count, "layer"))
    return columns, groups


def _are_splits(words: NDArray[Any]) -> bool:
    """Return whether every word names a part of the data: ``train``, ``val``, ``test``."""
    distinct = {plain(str(word)) for word in words.tolist() if word is not None}
    return bool(distinct) and distinct <= _SPLITS


def _split(groups: list[Group], words: NDArray[Any], count: int, what: str) -> Iterator[Group]:
    distinct = {word for word in words.tolist() if word is not None}
    if len(distinct) < (1 if what == "split" else 2) or len(distinct) > _MAX_GROUPS:
        yield from groups
        return
    for rows, prefix, layer, replica in groups:
        own = np.arange(count) if rows is None else rows
        for word in sorted(map(str, distinct)):
            picked = own[words[own] == word]
            if not len(picked):
                continue
            if what == "layer":
                yield picked, prefix, word, replica
            else:
                evaluation = bool(set(plain(word).split("_")) & EVALUATION_WORDS)
                yield picked, word if evaluation else prefix, layer, replica
        blank = own[np.array([words[row] is None for row in own], dtype=bool)]
        if len(blank):
            yield blank, prefix, layer, replica


def _few_whole_numbers(column: Column, count: int) -> bool:
    finite = column.values[np.isfinite(column.values)]
    if len(finite) < count or not np.all(finite == np.floor(finite)):
        return False
    return 1 < len(np.unique(finite)) <= _MAX_GROUPS
