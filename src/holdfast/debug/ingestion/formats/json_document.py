"""One JSON document: Hugging Face's ``trainer_state.json``, Keras' History, Megatron's golden values, any other.

Any document with records, columns, or series keyed by step is read, whatever its name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from holdfast.debug.ingestion.config_text import canonical_config
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.names import EPOCH_NAMES, STEP_NAMES, plain
from holdfast.debug.ingestion.run_log import RunLog, log_of_readings
from holdfast.debug.ingestion.structures import read_structure, structure_of
from holdfast.errors import UnreadableLogError

__all__ = ["JsonDocumentFormat", "holds_texts", "load_json"]

# A date in brackets begins a logger's line: "[2023-08-04 16:30:11,661][__main__][INFO] - …".
_OPENING = re.compile(r"^\s*[\[{](?!\d{2,4}[-/.]\d\d[-/.]\d\d|\d\d:\d\d)\s*($|[\[{\"}\]\-\d])")
_STRUCTURE = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{},]')
_PYTHON = re.compile(r"\s*\{\s*'[^'\n]{1,60}'\s*:\s*(?:[\[{(]|array|tensor|defaultdict)")
_WRAPPED = re.compile(
    r"(?:np\.|numpy\.|torch\.)?(?:float\d{1,3}|int\d{1,3}|array|tensor)\(([^()]{0,1000000}?)"
    r"(?:,\s?(?:dtype|device|grad_fn|requires_grad)=[^()]{0,80})?\)"
)
_QUOTED = re.compile(r"'([^'\\\n]{0,200})'")
_WORD = re.compile(r"\b(?:None|True|False|nan|inf)\b")
_TUPLES = str.maketrans("()", "[]")
MAX_HEADER_LINES = 4
"""Maximum number of lines before a document: a title, a comment."""
MIN_TEXT_WORDS = 4
"""Minimum number of words of a text: names of models, splits and runs have fewer."""
_HF_SETTINGS = ("max_steps", "num_train_epochs", "logging_steps", "train_batch_size", "eval_steps", "save_steps")


def load_json(file: LogFile) -> Any:
    """Return the document, with NaN and Infinity as numbers.

    Raises:
        UnreadableLogError: it is not JSON, nested too deeply, or too large.
    """
    return _load(file)[0]


def holds_texts(file: LogFile) -> bool:
    """Return whether the file is a JSON document of texts (messages, samples) with numbers beside them, but no step.

    Such numbers are not a series, whatever the order of the texts.
    """
    if not file.is_text or _opening_line(file.head_text[:4096]) is None:
        return False
    try:
        lists = [records for records in _lists_of_records(_load(file)[0]) if records]
    except UnreadableLogError:
        return False
    records = max(lists, key=len, default=[])
    texts = sum(any(_is_text(value) for value in record.values()) for record in records)
    counted = any(plain(str(name)) in (*STEP_NAMES, *EPOCH_NAMES) for record in records for name in record)
    return 2 * texts > len(records) > 1 and not counted


def _lists_of_records(data: Any, depth: int = 4) -> Iterator[list[dict[str, Any]]]:
    """Yield the lists of objects in a document."""
    inner = data.values() if isinstance(data, dict) else data if isinstance(data, list) else ()
    if isinstance(data, list):
        yield [record for record in data if isinstance(record, dict)]
    for value in inner if depth else ():
        yield from _lists_of_records(value, depth - 1)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and len(value.split(maxsplit=MIN_TEXT_WORDS)) >= MIN_TEXT_WORDS


def _load(file: LogFile) -> tuple[Any, bool]:
    """Return the document, and whether it is truncated: its complete part is read nevertheless."""
    try:
        text = file.read_text().lstrip("\0")
        text = text[_opening_line(text) or 0 :]
        try:
            return json.loads(text), False
        except ValueError:
            if _PYTHON.match(text):
                return json.loads(_from_python(text)), False
            whole = _whole_part(text)
            if whole is None:
                raise
            return json.loads(whole), True
    except RecursionError as error:
        raise file.unreadable("is JSON nested too deeply to be a log") from error
    except ValueError as error:
        raise file.unreadable(f"is not valid JSON: {error}") from error


def _from_python(text: str) -> str:
    """Convert a printed Python dictionary to JSON: a history that a script wrote with ``str``.

    >>> _from_python("{'loss': [np.float32(0.5), nan], 'acc': array([0.1, 0.2]), 'best': None}")
    '{"loss": [0.5, NaN], "acc": [0.1, 0.2], "best": null}'
    """
    for pattern in (_WRAPPED, _WRAPPED):  # A number in an array.
        text = pattern.sub(r"\1", text)
    parts = _QUOTED.split(text)
    words = {"None": "null", "True": "true", "False": "false", "nan": "NaN", "inf": "Infinity"}
    plain = (_WORD.sub(lambda match: words[match[0]], part).translate(_TUPLES) for part in parts[::2])
    return "".join(
        part + (json.dumps(quoted) if number < len(parts) // 2 else "")
        for number, (part, quoted) in enumerate(zip(plain, [*parts[1::2], ""], strict=True))
    )


def _whole_part(text: str) -> str | None:
    """Return a truncated document up to its last complete element, or None for any other.

    >>> _whole_part('{"loss": [0.5, 0.4, 0.')
    '{"loss": [0.5, 0.4]}'
    """
    closing: list[str] = []
    end, missing = 0, ""
    for token in _STRUCTURE.finditer(text):
        mark = token.group()
        if mark in "[{":
            closing.append("]" if mark == "[" else "}")
        elif mark in "]}":
            if not closing or closing.pop() != mark:
                return None
            end, missing = token.end(), "".join(reversed(closing))
        elif mark == ",":
            end, missing = token.start(), "".join(reversed(closing))
    return text[:end] + missing if closing and end else None


def _opening_line(text: str) -> int | None:
    """Return where the document begins: at the first character, or after a line or two that name it."""
    offset = 0
    for line in text.split("\n", MAX_HEADER_LINES)[:MAX_HEADER_LINES]:
        if _OPENING.match(line) or _PYTHON.match(line):
            return offset
        offset += len(line) + 1
        if line.lstrip()[:1] in ("{", "["):
            return None  # It starts like JSON but is something else.
    return None


def _unwrapped(data: Any) -> Any:
    """Return a list without the single-element lists around its elements."""
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
        """Return whether it starts like a JSON document, and continues past its first line or has only one."""
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
        data, cut = _load(file)
        data = _unwrapped(data)
        notes = ("the document is truncated; its complete part was read",) if cut else ()
        if isinstance(data, dict) and isinstance(data.get("log_history"), list):
            return self._trainer_state(file, data, notes)
        stem = file.path.stem.split("tag-")[-1]
        reading = read_structure(data, file.limits, source_name=stem)
        if not reading.signals:
            raise file.unreadable("is JSON without series of numbers")
        kind = structure_of(data)
        name = "megatron-golden" if kind == "golden" else self.name
        config = canonical_config(data) if isinstance(data, dict) else {}
        confidence = 0.95 if kind in ("golden", "records") else 0.85
        log = RunLog(str(file.path), name, config=config, confidence=confidence, notes=notes)
        return log_of_readings(log, reading)

    def _trainer_state(self, file: LogFile, data: dict[str, Any], notes: tuple[str, ...]) -> RunLog:
        # The last record summarises the run under names (train_loss, …) that look like points of series.
        records = [row for row in data["log_history"] if isinstance(row, dict) and "train_runtime" not in row]
        reading = read_structure(records, file.limits)
        if not reading.signals:
            raise file.unreadable("is a trainer state whose log history is empty", hint="log at least one step first")
        config = canonical_config({name: data[name] for name in _HF_SETTINGS if data.get(name) is not None})
        return log_of_readings(RunLog(str(file.path), "hf-trainer-state", config=config, notes=notes), reading)
