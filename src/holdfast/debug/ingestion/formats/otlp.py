"""OpenTelemetry metrics as JSON (OTLP): one export per file, or one per line as the collector writes them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.names import EPOCH_NAMES, STEP_NAMES, plain
from holdfast.debug.ingestion.rows import RowCollector, number_of
from holdfast.debug.ingestion.run_log import RunLog

__all__ = ["OtlpFormat"]

_SETS_APART = ("rank", "replica", "layer", "param", "module", "split", "phase", "dataset")


class OtlpFormat(LogFormat):
    """OTLP/JSON metric exports."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "otlp-json"

    def sniff(self, file: LogFile) -> float:
        """Recognise the export's unmistakable outermost key."""
        return 0.98 if file.is_text and b'"resourceMetrics"' in file.head[:4096] else 0.0

    def read(self, file: LogFile) -> RunLog:
        """Read the data points of gauges and sums, and the means of histograms."""
        points: list[tuple[float, float | None, float | None, str, float]] = []
        for export in _exports(file):
            for metric in _metrics(export):
                points += _points(metric)
                if len(points) > file.limits.rows:
                    break
        if not points:
            raise file.unreadable("contains no OTLP data points")
        # Exports may be out of order; all points have a time but not a step.
        points.sort(key=lambda point: point[0])
        moments = {moment: float(number) for number, moment in enumerate(sorted({point[0] for point in points}))}
        rows = RowCollector(file.limits)
        for moment, step, epoch, name, value in points:
            rows.add(moments[moment] if step is None else step, {name: value}, epoch=epoch)
        signals, notes, events = rows.finish()
        return RunLog(str(file.path), self.name, tuple(signals), {}, tuple(events), tuple(notes))


def _exports(file: LogFile) -> Iterator[dict[str, Any]]:
    lines = [line for line in file.sample_lines[:2] if line.strip()]
    if len(lines) == 2 and all(line.lstrip().startswith("{") and line.rstrip().endswith("}") for line in lines):
        texts: Iterator[str] = file.lines(longest=file.limits.structured_line_characters)
    else:
        texts = iter([file.read_text()])
    for text in texts:
        try:
            export = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(export, dict):
            yield export


def _metrics(export: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in _list(export.get("resourceMetrics")):
        for scope in _list(resource.get("scopeMetrics")) + _list(resource.get("instrumentationLibraryMetrics")):
            yield from _list(scope.get("metrics"))


def _list(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _points(metric: dict[str, Any]) -> list[tuple[float, float | None, float | None, str, float]]:
    found = []
    for kind in ("gauge", "sum", "histogram", "summary"):
        body = metric.get(kind)
        for point in _list(body.get("dataPoints")) if isinstance(body, dict) else []:
            value = number_of(point.get("asDouble", point.get("asInt")))
            if value is None and "sum" in point and number_of(point.get("count")):
                total, count = number_of(point["sum"]), number_of(point["count"])
                value = total / count if total is not None and count else None
            if value is None:
                continue
            attributes = {
                str(item.get("key")): _attribute(item.get("value")) for item in _list(point.get("attributes"))
            }
            step = next((number_of(v) for k, v in attributes.items() if plain(k) in STEP_NAMES), None)
            epoch = next((number_of(v) for k, v in attributes.items() if plain(k) in EPOCH_NAMES), None)
            moment = number_of(point.get("timeUnixNano")) or 0.0
            found.append((moment, step, epoch, _name(str(metric.get("name", "")), attributes), value))
    return found


def _attribute(value: Any) -> Any:
    return next(iter(value.values()), None) if isinstance(value, dict) else value


def _name(metric: str, attributes: dict[str, Any]) -> str:
    parts = [metric.replace(".", "/")]
    for key in _SETS_APART:
        if key in attributes:
            value = str(attributes[key])
            parts.append(f"rank_{value}" if key in ("rank", "replica") else value)
    return "/".join(parts)
