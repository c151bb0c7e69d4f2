"""The end of a table: what a shell or a program printed after its last row.

Text formats scan every line between their rows (``holdfast.debug.ingestion.crash_lines``); a table is read by
columns, so its last lines are scanned here.
"""

from __future__ import annotations

from dataclasses import replace

from holdfast.debug.ingestion.crash_lines import CrashScanner
from holdfast.debug.ingestion.json_blocks import json_object
from holdfast.debug.ingestion.line_parts import apart_from_traceback
from holdfast.debug.ingestion.log_file import LogFile, clean_line
from holdfast.debug.ingestion.rows import PLACEHOLDERS, number_of
from holdfast.debug.ingestion.run_log import RunLog

__all__ = ["with_ending"]

_SEPARATORS = str.maketrans(",;|\t[](){}", " " * 10)


def with_ending(log: RunLog, file: LogFile) -> RunLog:
    """Return the log with the crash that follows its last row, if there is one, attached to its last run."""
    scanner = CrashScanner()
    for number, line in enumerate(file.tail_lines(), 1):
        line = clean_line(line)
        if _is_row(line, file.limits.ending.numbers_share):
            scanner.went_on()
            continue
        for part in apart_from_traceback(line):
            scanner.feed(number, part)
    if not scanner.pending:
        return log
    before = file.count_lines_before_tail()
    events = tuple({**event, "line": before + event["line"]} for event in scanner.events())
    if log.later:
        *between, last = log.later
        return replace(log, later=(*between, replace(last, events=(*last.events, *events))))
    return replace(log, events=(*log.events, *events))


def _is_row(line: str, numbers_share: float) -> bool:
    """Return whether a line is a record or mostly numbers."""
    if line.lstrip().startswith("{"):
        return json_object(line) is not None
    cells = line.translate(_SEPARATORS).split()
    numbers = sum(number_of(cell) is not None or cell.lower() in PLACEHOLDERS for cell in cells)
    return bool(cells) and numbers >= numbers_share * len(cells)
