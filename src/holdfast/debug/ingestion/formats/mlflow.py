"""MLflow's file store: a folder per run, one file per metric (``timestamp value step`` lines) and per parameter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from holdfast.debug.ingestion.config_text import canonical_config, parse_value
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.rows import RowCollector, number_of
from holdfast.debug.ingestion.run_log import RunLog

__all__ = ["MlflowMetricFormat", "is_mlflow_run", "read_mlflow_run"]

_LINE = re.compile(r"^\d{9,16} \S+(?: -?\d+)?$")


class MlflowMetricFormat(LogFormat):
    """One metric file of a run."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "mlflow"

    def sniff(self, file: LogFile) -> float:
        """Recognise lines of a time, a value and a step."""
        if not file.is_text:
            return 0.0
        lines = [line for line in file.sample_lines[:50] if line.strip()]
        return 0.95 if lines and all(_LINE.match(line) for line in lines) else 0.0

    def read(self, file: LogFile) -> RunLog:
        """Read the metric named by the file."""
        return _read(str(file.path), {file.name: file}, {}, file.limits)


def is_mlflow_run(folder: Path) -> bool:
    """Return whether the folder is one run of an MLflow file store."""
    metrics = folder / "metrics"
    if not metrics.is_dir():
        return False
    return (folder / "meta.yaml").is_file() or (folder / "params").is_dir()


def read_mlflow_run(folder: Path, limits: Limits) -> RunLog:
    """Read a run's metrics and parameters.

    Raises:
        UnreadableLogError: the run has no metric.
    """
    metrics = folder / "metrics"
    files = {
        str(path.relative_to(metrics)): LogFile(path, limits)
        for path in sorted(metrics.rglob("*"))[: limits.files]
        if path.is_file()
    }
    parameters: dict[str, Any] = {}
    if (folder / "params").is_dir():
        for path in sorted((folder / "params").rglob("*"))[: limits.files]:
            if path.is_file() and path.stat().st_size < 4096:
                parameters[path.name] = parse_value(path.read_text(errors="replace").strip())
    return _read(str(folder), files, parameters, limits)


def _read(path: str, files: dict[str, LogFile], parameters: dict[str, Any], limits: Limits) -> RunLog:
    points: dict[float, dict[str, float | None]] = {}
    for name, file in files.items():
        for count, line in enumerate(file.lines()):
            parts = line.split()
            value = number_of(parts[1]) if len(parts) in (2, 3) else None
            if value is None:
                continue
            step = float(parts[2]) if len(parts) == 3 and number_of(parts[2]) is not None else float(count)
            points.setdefault(step, {})[name] = value
    rows = RowCollector(limits)
    for step in sorted(points):
        rows.add(step, points[step])
    signals, notes, events = rows.finish()
    if not signals:
        raise LogFile(Path(path), limits).unreadable("is an MLflow run without metrics")
    return RunLog(path, "mlflow", tuple(signals), canonical_config(parameters), tuple(events), tuple(notes))
