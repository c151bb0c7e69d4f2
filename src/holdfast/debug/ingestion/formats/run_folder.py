"""The folder of a holdfast run: every attempt of every rank as one run, with restarts and rollbacks applied."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.debug.ingestion.config_text import canonical_config
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.names import meaning_of
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.types import RUN_FOLDER, Signal
from holdfast.errors import RunLogError, UnreadableLogError
from holdfast.foreign import open_plain
from holdfast.run_files import read_log_lines
from holdfast.run_records import HEADER, Record, parse_record

__all__ = ["is_run_folder", "read_run_folder"]

_FILE = re.compile(r"attempt-(\d+)\.rank-(\d+)\.part-(\d+)\.(jsonl|parquet)")
_NOT_SIGNALS = frozenset(
    ("step", "batches", "loss_bits", "grad_norm_bits", "at", "redone", "chain", "startup_time", "evaluation_time",
     "save_time", "restore_time", "stalled_time", "paused_time", "down_time", "own_time")
)  # fmt: skip


def is_run_folder(folder: Path) -> bool:
    """Return whether the folder is that of a run, according to its ``run.json``."""
    try:
        with open_plain(folder / "run.json", within=folder) as file:
            return b'"holdfast": "run"' in file.read(200) and (folder / "log").is_dir()
    except OSError:
        return False


def read_run_folder(folder: Path, limits: Limits) -> RunLog:
    """Read a run.

    Raises:
        RunLogError: its log is damaged.
        UnreadableLogError: it has no steps yet.
    """
    files: dict[int, dict[tuple[int, int], Path]] = {}
    try:
        entries = sorted((folder / "log").iterdir(), reverse=True)  # "jsonl" comes after "parquet", and is preferred
    except OSError as error:
        raise RunLogError(f"the run log cannot be read: {error.strerror}", folder=str(folder)) from error
    for path in entries:
        match = _FILE.fullmatch(path.name)
        if match is not None:
            files.setdefault(int(match[2]), {})[int(match[1]), int(match[3])] = path
    signals: list[Signal] = []
    config: dict[str, Any] = {}
    attempts = 0
    for rank in sorted(files):
        rows: dict[int, dict[str, Any]] = {}
        evaluations: dict[int, dict[str, float]] = {}
        for record in _records(folder, [files[rank][place] for place in sorted(files[rank])]):
            if HEADER in record:
                attempts = max(attempts, record["attempt"])
                config |= canonical_config(record.get("config") or {})
                config["world_size"] = record.get("world_size")
            elif record.get("event") in ("start", "rolled_back"):
                rows = {step: row for step, row in rows.items() if step < record["step"]}
                evaluations = {step: row for step, row in evaluations.items() if step < record["step"]}
            elif record.get("event") == "evaluation":
                evaluations[record["step"]] = {f"eval_{name}": value for name, value in record["figures"].items()}
            elif "event" not in record:
                rows[record["step"]] = record
        replica = rank if len(files) > 1 else None
        signals += _signals(rows, replica, limits) + _signals(evaluations, replica, limits)
    if not signals:
        raise UnreadableLogError("the run has no steps yet", file=str(folder))
    notes = (f"{attempts} attempt{'s' * (attempts != 1)}, {len(files)} rank{'s' * (len(files) != 1)}",)
    return RunLog(str(folder), RUN_FOLDER, tuple(signals), config, (), notes)


def _records(folder: Path, paths: list[Path]) -> Iterator[Record]:
    for path in paths:
        for number, line in enumerate(read_log_lines(path, within=folder), start=1):
            yield parse_record(line, file=str(path), number=number)


def _signals(rows: dict[int, dict[str, Any]], replica: int | None, limits: Limits) -> list[Signal]:
    columns: dict[str, tuple[list[float], list[float]]] = {}
    for step in sorted(rows):
        for name, value in rows[step].items():
            if name in _NOT_SIGNALS or isinstance(value, bool) or not isinstance(value, (int, float)):
                continue
            if name in columns or len(columns) < limits.signals:
                steps, values = columns.setdefault(name, ([], []))
                steps.append(step)
                values.append(value)
    found = []
    for name, (steps, values) in columns.items():
        meaning = meaning_of(name)
        metadata = {**meaning.metadata, "kind": meaning.kind}
        found.append(Signal(name, np.array(steps, float), np.array(values, float), meaning.layer, replica, metadata))
    return found
