"""Prometheus text exposition: one scrape, or several in sequence."""

from __future__ import annotations

import re

from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.names import EPOCH_NAMES, STEP_NAMES, plain
from holdfast.debug.ingestion.rows import RowCollector, number_of
from holdfast.debug.ingestion.run_log import RunLog

__all__ = ["PrometheusFormat"]

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(-?\d+))?\s*(?:#.*)?$")
_LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
_SPECIAL = {"+Inf": "inf", "-Inf": "-inf", "NaN": "nan"}
_STRUCTURE = ("_bucket", "_created", "_count", "_sum")
_STEP_SUFFIXES = tuple(
    f"_{name}" for name in ("step", "steps", "global_step", "iteration", "iterations", "steps_total")
)


class PrometheusFormat(LogFormat):
    """The text format of ``/metrics`` pages."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "prometheus"

    def sniff(self, file: LogFile) -> float:
        """Recognise ``# TYPE`` or ``# HELP`` comments over sample lines."""
        if not file.is_text:
            return 0.0
        lines = [line for line in file.sample_lines[:200] if line.strip()]
        comments = sum(line.startswith(("# TYPE ", "# HELP ")) for line in lines)
        samples = sum(bool(_SAMPLE.match(line)) for line in lines if not line.startswith("#"))
        return 0.96 if comments and samples and samples + comments >= 0.8 * len(lines) else 0.0

    def read(self, file: LogFile) -> RunLog:
        """Read every scrape as one row."""
        rows = RowCollector(file.limits)
        scrape: dict[str, float | None] = {}
        step: float | None = None
        epoch: float | None = None
        stamp: float | None = None
        scrapes = 0
        for line in file.lines():
            match = None if line.startswith("#") else _SAMPLE.match(line)
            if match is None:
                continue
            metric, labels, text, time = match.groups()
            number = number_of(_SPECIAL.get(text, text))
            if number is None or metric.endswith(_STRUCTURE):
                continue
            name = _name(metric, labels or "")
            if name in scrape or (step is not None and _is_step(metric)):
                rows.add(_step(step, stamp, scrapes), scrape, epoch=epoch)
                scrape, step, stamp, scrapes = {}, None, None, scrapes + 1
            if _is_step(metric):
                step = number
            elif plain(metric) in EPOCH_NAMES or plain(metric).endswith("_epoch"):
                epoch = number
            else:
                scrape[name] = number
            stamp = float(time) if time and stamp is None else stamp
        if scrape:
            rows.add(_step(step, stamp, scrapes), scrape, epoch=epoch)
        signals, notes, events = rows.finish()
        if not signals:
            raise file.unreadable("contains no Prometheus samples")
        if len(rows) == 1:
            notes.append("one scrape: every series has a single point, so no trend is visible")
        return RunLog(str(file.path), self.name, tuple(signals), {}, tuple(events), tuple(notes))


def _is_step(metric: str) -> bool:
    word = plain(metric)
    return word in STEP_NAMES or word.endswith(_STEP_SUFFIXES)


def _step(step: float | None, stamp: float | None, scrapes: int) -> float:
    return step if step is not None else stamp if stamp is not None else float(scrapes)


def _name(metric: str, labels: str) -> str:
    """Return the metric and the labels that distinguish its series, in the form used by the table of names."""
    parts = [metric]
    for key, value in sorted(_LABEL.findall(labels[:4096])):
        if key in ("rank", "replica", "gpu", "device", "worker"):
            parts.append(f"{key}_{value}" if value.isdigit() else value)
        elif key in ("layer", "param", "module", "split", "phase", "dataset", "group"):
            parts.append(value)
    return "/".join(parts)
