"""JSON lines: LLaMA-Factory's ``trainer_log.jsonl``, mmengine's ``scalars.json``, holdfast's own run log, any other.

The quick way is pyarrow's reader over blocks, with ``NaN`` and ``Infinity`` (which are not JSON, and which every
framework writes) swapped for numbers no run holds and swapped back after. What pyarrow refuses is read line by line.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json as arrow_json
from numpy.typing import NDArray

from holdfast.debug.ingestion.columns import read_columns
from holdfast.debug.ingestion.config_text import canonical_config
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.names import EPOCH_NAMES, STEP_NAMES, meaning_of, plain
from holdfast.debug.ingestion.record_columns import ColumnBuilder
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.ingestion.structures import flatten_record

__all__ = ["JsonLinesFormat"]

_BLOCK = 16 << 20
_PIECE = 1 << 20  # What one thread parses at a time.
_QUICK_FROM = 1 << 20
_STAND_INS = {
    b"NaN": b"-1.2345678901234e308",
    b"Infinity": b"1.5432109876543e308",
    b"-Infinity": b"-1.5432109876543e308",
}
_MEANT = {float(number): float(word) for word, number in ((w.decode(), n.decode()) for w, n in _STAND_INS.items())}
_RECORDS = ("config", "hparams", "args", "params", "hyperparameters")


class JsonLinesFormat(LogFormat):
    """One JSON object a line."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "jsonl"

    def sniff(self, file: LogFile) -> float:
        """Lines that are JSON objects, with a step-like field or a known metric among their fields."""
        if not file.is_text:
            return 0.0
        lines = [line for line in file.sample_lines if line.strip()][:200]
        records = [record for record in map(_object, lines) if record is not None]
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

    def read(self, file: LogFile) -> RunLog:
        """Read every line that is an object; others are counted and said."""
        builder = self._quickly(file) if file.size >= _QUICK_FROM else None
        config: dict[str, Any] = {}
        events: list[Mapping[str, Any]] = []
        name, bad = self.name, 0
        if builder is None:
            builder, config, events, name, bad = self._slowly(file)
        columns, labels = builder.finish()
        if "current_steps" in {column.name for column in columns}:
            name = "llamafactory"
        reading = read_columns(builder.count, columns, labels, source_name=file.name)
        if not reading.signals:
            raise file.unreadable("holds JSON objects without numbers")
        notes = [*builder.notes, *reading.notes]
        if bad:
            notes.append(f"{bad} lines were not JSON objects and were left out")
        return RunLog(
            str(file.path), name, tuple(reading.signals), config, (*events, *reading.events), tuple(notes),
            1.0 if reading.has_step else 0.75,
        )  # fmt: skip

    def _quickly(self, file: LogFile) -> ColumnBuilder | None:
        """Read with pyarrow; None where the file is not regular enough for it."""
        if b'"holdfast"' in file.head[:200] or file.compressed:
            return None
        builder = ColumnBuilder(file.limits, restore=_restore)
        try:
            for block in _blocks(file):
                longest = max(_PIECE, 2 * file.limits.line_characters)
                table = arrow_json.read_json(io.BytesIO(block), arrow_json.ReadOptions(block_size=longest))
                for batch in table.combine_chunks().to_batches():
                    builder.add_batch(batch)
                if builder.count > file.limits.rows:
                    builder.notes.append(f"only the first {builder.count:,} rows were read")
                    break
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError):
            return None
        return builder

    def _slowly(self, file: LogFile) -> tuple[ColumnBuilder, dict[str, Any], list[Mapping[str, Any]], str, int]:
        builder = ColumnBuilder(file.limits)
        config: dict[str, Any] = {}
        events: list[Mapping[str, Any]] = []
        name, bad = self.name, 0
        for line in file.lines(longest=file.limits.structured_line_characters):
            if not line or line.isspace():
                continue
            record = _object(line)
            if record is None:
                bad += 1
                continue
            if record.get("holdfast") == "run-log":
                name = "holdfast"
                config.update(canonical_config(record.get("config") or {}))
                continue
            if isinstance(record.get("event"), str) and name == "holdfast":
                events.append({**record, "type": record["event"]})
                continue
            for key in _RECORDS:
                if isinstance(record.get(key), dict):
                    config.update(canonical_config(record.pop(key)))
            builder.add_row(flatten_record(record))
        return builder, config, events, name, bad


def _object(line: str) -> dict[str, Any] | None:
    text = line.strip()
    if not text.startswith("{"):
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _nested(record: dict[str, Any]) -> bool:
    return any(isinstance(value, (dict, list)) for value in record.values())


def _blocks(file: LogFile) -> Iterator[bytes]:
    """The file in blocks of whole lines, with the numbers JSON lacks swapped for stand-ins."""
    pending = b""
    with file.path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            block = pending + block
            end = block.rfind(b"\n") + 1
            pending = block[end:]
            if len(pending) > file.limits.structured_line_characters:
                raise ValueError("a line is too long")
            if end:
                yield _swap(block[:end])
    if pending.strip():
        try:
            json.loads(pending)
        except (ValueError, RecursionError):
            return  # A last line cut short by a crash: the rest stands.
        yield _swap(pending)


def _swap(block: bytes) -> bytes:
    if b"NaN" not in block and b"Infinity" not in block:
        return block
    for word, number in _STAND_INS.items():
        for colon in (b": ", b":"):
            block = block.replace(colon + word, colon + number)
    return block


def _restore(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Swap the stand-ins back."""
    strange = np.abs(values) > 1e308
    if not strange.any():
        return values
    values = values.copy()
    for number, meant in _MEANT.items():
        values[values == number] = meant
    return values
