"""Rows of a table of texts: lists of tasks, tickets or samples, whose cells may quote any error."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from functools import partial

from holdfast.debug.ingestion.log_file import LogFile

__all__ = ["row_test"]

MIN_CELLS = 3
"""Minimum number of names in the header of a table of texts: a sentence has a comma or two."""
_SEPARATORS = ",;\t|"
_NAME = re.compile(r"[^\W\d][\w .()/%#-]{0,39}")


def row_test(file: LogFile) -> Callable[[str], bool]:
    """Return a function that says whether a line is a row of the file's table; if the file is no table, no line is.

    The first line names the columns, and most lines have as many cells as there are names.
    """
    lines = [line for line in file.sample_lines if line.strip()]
    for separator in _SEPARATORS:
        names = _cells(lines[0], separator) if lines else []
        if len(names) < MIN_CELLS or len(set(names)) < len(names):
            continue
        if not all(_NAME.fullmatch(name.strip()) for name in names):
            continue
        fitting = sum(len(_cells(line, separator)) == len(names) for line in lines)
        if fitting >= file.limits.table.fitting_share * len(lines):
            return partial(_is_row, cells=len(names), separator=separator)
    return partial(_is_row, cells=0, separator=",")


def _is_row(line: str, *, cells: int, separator: str) -> bool:
    return cells > 0 and len(_cells(line, separator)) == cells


def _cells(line: str, separator: str) -> list[str]:
    try:
        return next(csv.reader([line], delimiter=separator), [])
    except csv.Error:
        return []
