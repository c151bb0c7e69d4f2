"""Format detection: every format scores a sample of a file, and the one with the highest score reads it.

A format that turns out to be wrong, or reads little of what looks like training, is replaced by the next best.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from inspect import isabstract
from pathlib import Path

from holdfast.debug.ingestion import formats
from holdfast.debug.ingestion.crash_lines import read_crash
from holdfast.debug.ingestion.formats.json_document import holds_texts
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.ingestion.text_format import TextFormat
from holdfast.debug.types import LOSS_LIKE, Signal
from holdfast.errors import UnreadableLogError

__all__ = ["default_formats", "rank_formats", "read_file"]

_MIN_SCORE = 0.15
_TELLS = LOSS_LIKE | {"param_hash"}


def default_formats(limits: Limits | None = None) -> list[LogFormat]:
    """Return a new reader of every format: each ``LogFormat`` that a module of ``formats`` defines."""
    return [kind(limits) for kind in _known_formats()]


@cache
def _known_formats() -> tuple[type[LogFormat], ...]:
    found: list[type[LogFormat]] = []
    for module in sorted(pkgutil.iter_modules(formats.__path__), key=lambda module: module.name):
        content = vars(import_module(f"{formats.__name__}.{module.name}"))
        found += [
            kind
            for kind in content.values()
            if isinstance(kind, type)
            and issubclass(kind, LogFormat)
            and not isabstract(kind)
            and kind.__module__ == f"{formats.__name__}.{module.name}"
        ]
    return tuple(sorted(found, key=lambda kind: -kind.precedence))


def rank_formats(file: LogFile, known: list[LogFormat] | None = None) -> list[tuple[float, LogFormat]]:
    """Return the formats the file may have, most likely first."""
    scored = [(form.sniff(file), form) for form in known or default_formats(file.limits)]
    return sorted((pair for pair in scored if pair[0] >= _MIN_SCORE), key=lambda pair: -pair[0])


def read_file(
    path: Path,
    limits: Limits | None = None,
    known: list[LogFormat] | None = None,
    *,
    progress: Callable[[int], None] | None = None,
) -> RunLog:
    """Read one file in whichever format it has; ``progress`` is called with the number of bytes read.

    Raises:
        UnreadableLogError: no format could read it.
    """
    file = LogFile(path, limits or Limits(), _Progress(path, progress) if progress is not None else None)
    if file.size == 0:
        raise file.unreadable("is empty")
    refusals: list[UnreadableLogError] = []
    best: RunLog | None = None
    for _, form in rank_formats(file, known)[:4]:
        if isinstance(form, TextFormat) and refusals and holds_texts(file):
            refusals.insert(0, file.unreadable("is a JSON document of texts without steps, not a training log"))
            break
        log = _attempt(form, file, refusals)
        if log is not None and (best is None or _grasp(log) > _grasp(best)):
            best = log
        if best is not None and _shows_course(best) and _share(best) >= file.limits.text.read_share:
            break
    crashed = read_crash(file) if file.is_text and (best is None or not _is_telling(best)) else None
    if best is not None and crashed is not None:
        best = replace(best, events=(*best.events, *crashed.events))
    best = best or crashed
    if best is not None:
        return _done(best, file)
    if refusals:
        raise refusals[0]
    what = "is in an unrecognised format" if file.is_text else "is binary but not a TensorBoard, wandb or dump file"
    raise file.unreadable(what)


def _is_telling(log: RunLog) -> bool:
    """Return whether a reading contains a series that shows how training goes, or events."""
    runs = (log, *log.later)
    return any(
        run.events or any((s.kind or _is_of_trials(s)) and len(s.steps) > 1 for s in run.signals) for run in runs
    )


def _shows_course(log: RunLog) -> bool:
    """Return whether a reading contains a series that can show progress, hashes to compare ranks by, or events.

    A format that knows only its own lines may read learning rates and skip the losses between them.
    """
    runs = (log, *log.later)
    return any(
        run.events or any((s.kind in _TELLS or _is_of_trials(s)) and len(s.steps) > 1 for s in run.signals)
        for run in runs
    )


def _is_of_trials(signal: Signal) -> bool:
    """Return whether a series contains the losses of a hyperparameter search, which belong to no single run."""
    return "trials" in signal.metadata


def _grasp(log: RunLog) -> tuple[bool, bool, float]:
    return _shows_course(log), _is_telling(log), _share(log)


def _share(log: RunLog) -> float:
    """Return the fraction of the lines that look like training that was read.

    A reading that does not count lines counts as complete.
    """
    return 1.0 if log.coverage is None else log.coverage.share


class _Progress:
    """Reports a file's bytes once, however often it is read: one format may replace another."""

    def __init__(self, path: Path, told: Callable[[int], None]) -> None:
        self._left = path.stat().st_size
        self._told = told

    def __call__(self, count: int) -> None:
        count = min(count, self._left)
        self._left -= count
        if count:
            self._told(count)

    def finish(self) -> None:
        """Report the bytes that a format with its own reader did not."""
        self(self._left)


def _done(log: RunLog, file: LogFile) -> RunLog:
    if isinstance(file.progress, _Progress):
        file.progress.finish()
    return log


def _attempt(form: LogFormat, file: LogFile, refusals: list[UnreadableLogError]) -> RunLog | None:
    try:
        return form.read(file)
    except UnreadableLogError as error:
        refusals.append(error)
        return None
