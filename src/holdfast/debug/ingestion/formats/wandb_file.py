"""``run-*.wandb`` files: LevelDB-style log blocks of ``Record`` messages, read without wandb.

A running or killed run leaves a file whose last blocks are missing or empty: the rest is read.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from holdfast.debug.ingestion.config_text import canonical_config
from holdfast.debug.ingestion.crash_lines import CrashScanner
from holdfast.debug.ingestion.log_file import LogFile, clean_line
from holdfast.debug.ingestion.log_format import LogFormat
from holdfast.debug.ingestion.protobuf import BytesLike, WireError, fields
from holdfast.debug.ingestion.rows import RowCollector, number_of
from holdfast.debug.ingestion.run_log import RunLog

__all__ = ["WandbFormat"]

_MAGIC = b":W&B"
_HEADER, _BLOCK, _RECORD_HEADER = 7, 32768, 7
_FULL, _FIRST, _MIDDLE, _LAST = 1, 2, 3, 4
# Fields of Record, and of the messages inside it.
_HISTORY, _OUTPUT, _CONFIG, _RAW_OUTPUT, _RUN, _EXIT = 2, 4, 5, 13, 17, 18
_PRINTED = 3
_ITEM, _STEP, _KEY, _NESTED, _JSON = 1, 2, 1, 2, 16
_MAX_RECORD_BYTES = 64 << 20
_STOPPED, _FAILED = 255, 1
MIN_PRINTED = 20
"""Minimum number of printed lines that shows that the console was recorded; an error would be among them."""


class WandbFormat(LogFormat):
    """Local files of Weights & Biases."""

    @property
    def name(self) -> str:
        """The format's name."""
        return "wandb"

    def sniff(self, file: LogFile) -> float:
        """Recognise the file by its first four bytes."""
        return 1.0 if file.head[:4] == _MAGIC else 0.0

    def read(self, file: LogFile) -> RunLog:
        """Read the history and the configuration."""
        rows = RowCollector(file.limits)
        rows.prefer_logged_step = True
        config: dict[str, Any] = {}
        notes: list[str] = []
        damaged = 0
        exit_code: Any = 0
        scanner, printed = CrashScanner(), 0
        for record in _records(file, notes):
            try:
                for number, value in fields(record):
                    if isinstance(value, int):
                        continue
                    if number == _HISTORY:
                        _history(value, rows)
                        scanner.went_on()
                    elif number in (_OUTPUT, _RAW_OUTPUT):
                        printed = _scan(value, scanner, printed)
                    elif number == _CONFIG:
                        _items(value, config)
                    elif number == _EXIT:
                        exit_code = next((part for inner, part in fields(value) if inner == 1), 0)
                    elif number == _RUN:
                        for inner, part in fields(value):
                            if inner == 4 and not isinstance(part, int):
                                _items(part, config)
            except WireError:
                damaged += 1
        if damaged:
            notes.append(f"{damaged} damaged records were left out")
        signals, more, events = rows.finish()
        told = scanner.events(end=printed)
        events += [*_crash(exit_code, silent=printed >= MIN_PRINTED and not told), *told]
        if not signals and not events:
            raise file.unreadable("is a wandb file without history", hint="the run ended before its first wandb.log")
        return RunLog(
            str(file.path), self.name, tuple(signals), canonical_config(config), tuple(events), (*notes, *more)
        )


def _scan(message: BytesLike, scanner: CrashScanner, printed: int) -> int:
    """Scan what the program printed; return the number of the last line that is not blank."""
    for number, value in fields(message):
        if number == _PRINTED and not isinstance(value, int):
            for line in bytes(value).decode("utf-8", errors="replace").splitlines():
                if line.strip():
                    printed += 1
                    scanner.feed(printed, clean_line(line))
    return printed


def _crash(exit_code: Any, *, silent: bool) -> list[Mapping[str, Any]]:
    """Return the event of a run that ended in an error; wandb writes 255 for a run stopped by hand.

    Lightning exits with 1 if it is interrupted. An exception would be in the recorded console: if that is ``silent``,
    there was none.
    """
    if not isinstance(exit_code, int) or exit_code == 0:
        return []
    stopped = exit_code == _STOPPED or (exit_code == _FAILED and silent)
    kind = "interrupted" if stopped else "exit_code"
    message = f"wandb recorded exit code {exit_code}"
    if stopped and silent:
        message += ", but the program printed no error: it was probably interrupted"
    return [{"type": "crash", "kind": kind, "message": message, "line": None, "lines": ()}]


def _records(file: LogFile, notes: list[str]) -> Iterator[bytes]:
    """Join the fragments of the blocks."""
    parts: list[bytes] = []
    size = 0
    with file.path.open("rb") as stream:
        # The file header is inside the first block and counts towards it.
        block = stream.read(_BLOCK)
        at = _HEADER
        while block:
            while at + _RECORD_HEADER <= len(block):
                length = int.from_bytes(block[at + 4 : at + 6], "little")
                kind = block[at + 6]
                if kind == 0 and length == 0:
                    break  # The rest of the block is padding, or was never written.
                begin, at = at + _RECORD_HEADER, at + _RECORD_HEADER + length
                if at > len(block):
                    notes.append("the file is truncated; the last record was left out")
                    return
                piece = block[begin:at]
                if kind == _FULL:
                    yield piece
                    parts, size = [], 0
                elif kind == _FIRST:
                    parts, size = [piece], length
                elif parts and kind in (_MIDDLE, _LAST) and size + length <= _MAX_RECORD_BYTES:
                    parts.append(piece)
                    size += length
                    if kind == _LAST:
                        yield b"".join(parts)
                        parts, size = [], 0
                else:
                    parts, size = [], 0
            block, at = stream.read(_BLOCK), 0


def _history(message: BytesLike, rows: RowCollector) -> None:
    step: float | None = None
    values: dict[str, Any] = {}
    for number, value in fields(message):
        if number == _ITEM and not isinstance(value, int):
            _item(value, values)
        elif number == _STEP and not isinstance(value, int):
            for inner, part in fields(value):
                if inner == 1 and isinstance(part, int):
                    step = float(part)
    epoch = number_of(values.pop("epoch", None))
    recorded = number_of(values.pop("_step", None))
    numbers = {
        name: reading
        for name, value in values.items()
        if not name.startswith("_") and (reading := number_of(value)) is not None
    }
    # W&B writes NaN and Infinity as these strings; number_of converts them back.
    rows.add(step if recorded is None else recorded, dict(numbers), epoch=epoch)


def _items(message: BytesLike, into: dict[str, Any]) -> None:
    for number, value in fields(message):
        if number == 1 and not isinstance(value, int):
            _item(value, into)


def _item(message: BytesLike, into: dict[str, Any]) -> None:
    key, nested, text = "", [], ""
    for number, value in fields(message):
        if isinstance(value, int):
            continue
        if number == _KEY:
            key = bytes(value).decode("utf-8", errors="replace")
        elif number == _NESTED:
            nested.append(bytes(value).decode("utf-8", errors="replace"))
        elif number == _JSON:
            text = bytes(value).decode("utf-8", errors="replace")
    name = key or "/".join(nested)
    if not name or not text:
        return
    try:
        into[name] = json.loads(text)
    except (ValueError, RecursionError):
        return
