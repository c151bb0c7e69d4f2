"""JSON lines: LLaMA-Factory's ``trainer_log.jsonl``, mmengine's ``scalars.json``, holdfast's run log, any other.

A large file is read in blocks (``holdfast.debug.ingestion.json_blocks``); a small or irregular one line by line.
Non-standard numbers that scripts print into their JSON (``nan``, ``1.``, ``+0.5``) are accepted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.debug.ingestion.columns import read_columns
from holdfast.debug.ingestion.config_text import canonical_config
from holdfast.debug.ingestion.endings import with_ending
from holdfast.debug.ingestion.json_blocks import json_object, read_blocks
from holdfast.debug.ingestion.line_reading import LineReading
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.names import EPOCH_NAMES, STEP_NAMES, meaning_of, plain
from holdfast.debug.ingestion.record_columns import CONFIG_FIELDS, ColumnBuilder
from holdfast.debug.ingestion.run_log import RunLog, log_of_readings
from holdfast.debug.ingestion.structures import flatten_record
from holdfast.debug.thinning import thin
from holdfast.debug.types import Coverage

__all__ = ["JsonLinesFormat"]

_QUICK_FROM = 1 << 20


class JsonLinesFormat(LogFormat):
    """One JSON object per line."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "jsonl"

    def sniff(self, file: LogFile) -> float:
        """Recognise lines that are JSON objects, with a step-like field or a known metric among their fields."""
        if not file.is_text:
            return 0.0
        lines = [line for line in file.sample_lines if line.strip()][:200]
        records = [record for record in map(json_object, lines) if record is not None]
        if (
            not records
            or len(records) * 2 < len(lines)
            or (len(lines) == 1 and len(records[0]) and _nested(records[0]))
        ):
            return 0.0
        names = {name for record in records for name in flatten_record(record)}
        stepped = bool({plain(name) for name in names} & {*STEP_NAMES, *EPOCH_NAMES})
        known = stepped + any(meaning_of(name).kind for name in names)
        return (0.3, 0.7, 0.93)[known] * (0.5 if len(lines) == 1 else 1.0)

    def follow(self, file: LogFile) -> LineReading:
        """Return a reading of this file's lines."""
        return _JsonReading(file)

    def read(self, file: LogFile) -> RunLog:
        """Read every line that is an object; others are counted and reported."""
        own = b'"holdfast"' in file.head[:200]
        builder = read_blocks(file) if file.size >= _QUICK_FROM and not own and not file.compressed else None
        if builder is not None:
            return _JsonReading(file, builder).close()
        reading = self.follow(file)
        for line in file.lines(longest=file.limits.structured_line_characters):
            reading.feed(line)
        return reading.close()


class _JsonReading(LineReading):
    """Records, and the few lines between them that are not records."""

    def __init__(self, file: LogFile, builder: ColumnBuilder | None = None) -> None:
        self._file = file
        self._builder = builder or ColumnBuilder(file.limits)
        self._config: dict[str, Any] = {}
        self._events: list[Mapping[str, Any]] = []
        self._name, self._bad = "jsonl", self._builder.bad

    def feed(self, line: str) -> None:
        if not line or line.isspace():
            return
        record = json_object(line)
        if record is None:
            self._bad += 1
            return
        if record.get("holdfast") == "run-log":
            self._name = "holdfast"
            self._config.update(canonical_config(record.get("config") or {}))
            return
        if isinstance(record.get("event"), str) and self._name == "holdfast":
            self._events.append({**record, "type": record["event"]})
            return
        for key in CONFIG_FIELDS:
            if isinstance(record.get(key), dict):
                self._config.update(canonical_config(record.pop(key)))
        self._builder.add_row(flatten_record(record))

    def thin(self, most: int) -> bool:
        return thin(self._builder, most)

    def so_far(self) -> RunLog:
        return self.close()  # Nothing is buffered and nothing is consumed.

    def close(self) -> RunLog:
        builder = self._builder
        columns, labels = builder.finish()
        if "current_steps" in {column.name for column in columns}:
            self._name = "llamafactory"
        reading = read_columns(builder.count, columns, labels, source_name=self._file.name, limits=self._file.limits)
        if not reading.signals:
            raise self._file.unreadable("contains JSON objects without numbers")
        notes = list(builder.notes)
        if self._bad:
            notes.append(f"{self._bad} lines were not JSON objects and were left out")
        for settings in builder.settings:
            self._config.update(canonical_config(settings))
        rows = builder.count
        log = RunLog(
            str(self._file.path),
            self._name,
            config=self._config,
            events=tuple(self._events),
            notes=tuple(notes),
            confidence=1.0 if reading.has_step else 0.75,
            coverage=Coverage(rows + self._bad, rows + self._bad, rows),
        )
        return with_ending(log_of_readings(log, reading), self._file)


def _nested(record: dict[str, Any]) -> bool:
    return any(isinstance(value, (dict, list)) for value in record.values())
