"""One JSON document: Hugging Face's ``trainer_state.json``, Keras' History, Megatron's golden values, any other.

Whatever it is called, a document is read that holds records, columns, or series keyed by step.
"""

from __future__ import annotations

import json
import re
from typing import Any

from holdfast.debug.ingestion.config_text import canonical_config
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.run_log import RunLog, log_of_readings
from holdfast.debug.ingestion.structures import read_structure, structure_of

__all__ = ["JsonDocumentFormat", "load_json"]

_OPENING = re.compile(r"^\s*[\[{]\s*($|[\[{\"}\]\-\d])")
MAX_HEADER_LINES = 4
"""Lines that may stand before a document: a title, a comment."""
_HF_SETTINGS = ("max_steps", "num_train_epochs", "logging_steps", "train_batch_size", "eval_steps", "save_steps")


def load_json(file: LogFile) -> Any:
    """Return the document, with NaN and Infinity as numbers.

    Raises:
        UnreadableLogError: it is no JSON, or nested too deeply, or too large.
    """
    try:
        text = file.read_text().lstrip("\0")
        return json.loads(text[_opening_line(text) or 0 :])
    except RecursionError as error:
        raise file.unreadable("is JSON nested too deeply to be a log") from error
    except ValueError as error:
        raise file.unreadable(f"is not valid JSON: {error}") from error


def _opening_line(text: str) -> int | None:
    """Return where the document begins: at the first character, or after a line or two that name it."""
    offset = 0
    for line in text.split("\n", MAX_HEADER_LINES)[:MAX_HEADER_LINES]:
        if _OPENING.match(line):
            return offset
        offset += len(line) + 1
        if line.lstrip()[:1] in ("{", "["):
            return None  # It opens like JSON and is something else.
    return None


def _unwrapped(data: Any) -> Any:
    """Return a list without the lists of one that each of its elements stands in."""
    if isinstance(data, list) and data and all(isinstance(row, list) and len(row) == 1 for row in data):
        return [row[0] for row in data]
    return data


class JsonDocumentFormat(LogFormat):
    """A JSON document with metrics in it."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "json"

    def sniff(self, file: LogFile) -> float:
        """Starts like a JSON document, and goes on past its first line or is one line only."""
        if not file.is_text:
            return 0.0
        text = file.head_text[:4096]
        if _opening_line(text) is None:
            return 0.0
        if '"log_history"' in file.head_text:
            return 0.99
        lines = [line for line in file.sample_lines[:3] if line.strip()]
        whole_lines = sum(line.lstrip().startswith("{") and line.rstrip().endswith("}") for line in lines)
        return 0.3 if whole_lines > 1 else 0.85

    def read(self, file: LogFile) -> RunLog:
        """Read the document."""
        data = _unwrapped(load_json(file))
        if isinstance(data, dict) and isinstance(data.get("log_history"), list):
            return self._trainer_state(file, data)
        stem = file.path.stem.split("tag-")[-1]
        reading = read_structure(data, file.limits, source_name=stem)
        if not reading.signals:
            raise file.unreadable("is JSON without series of numbers")
        kind = structure_of(data)
        name = "megatron-golden" if kind == "golden" else self.name
        config = canonical_config(data) if isinstance(data, dict) else {}
        confidence = 0.95 if kind in ("golden", "records") else 0.85
        return log_of_readings(RunLog(str(file.path), name, config=config, confidence=confidence), reading)

    def _trainer_state(self, file: LogFile, data: dict[str, Any]) -> RunLog:
        # The last record sums the run up under names (train_loss, …) that look like points of series.
        records = [row for row in data["log_history"] if isinstance(row, dict) and "train_runtime" not in row]
        reading = read_structure(records, file.limits)
        if not reading.signals:
            raise file.unreadable("is a trainer state whose log history is empty", hint="log at least one step first")
        config = canonical_config({name: data[name] for name in _HF_SETTINGS if data.get(name) is not None})
        return log_of_readings(RunLog(str(file.path), "hf-trainer-state", config=config), reading)
