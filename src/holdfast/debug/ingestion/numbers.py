"""Numbers as logs print them: ``1.5E+00``, ``12,345``, ``3,1416``, ``nan``, ``-inf``, ``[0.001]``, ``109K``, ``5%``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

__all__ = ["NUMBER", "SUFFIX", "joined_rows", "to_number", "to_scaled"]

# Repetitions are bounded and never adjacent, so that a hostile line cannot cause backtracking.
_EXPONENT = r"(?:[eE][-+]?\d{1,5})?"
NUMBER = (
    rf"[-+]?(?:(?:0,\d{{1,64}}|\d{{1,64}},(?:\d{{1,2}}|\d{{4,64}}))(?![\d,]){_EXPONENT}"
    rf"|\d{{1,3}}(?:,\d{{3}}){{1,20}}(?:\.\d{{1,64}})?{_EXPONENT}"
    rf"|\d{{1,64}}(?:\.\d{{0,64}})?(?!\d){_EXPONENT}|\.\d{{1,64}}(?!\d){_EXPONENT}"
    r"|(?:[nN][aA][nN]|[iI]nf(?:inity)?|INF)\b)"
)
"""A pattern (no groups) for one number."""

SUFFIX = r"(?:[kKMGT](?![A-Za-z0-9]))?"
"""A pattern for the factor after a number."""

MAX_ROW_LINES = 1000
"""Maximum number of lines over which a bracket may stay open: one that is never closed must not swallow the file."""

_FACTORS = {"k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
_LEADING = re.compile(NUMBER)
_OPEN_ROW = re.compile(r"\[[-+.,;\d\sEeainfNI]*$")
_ROW_GOES_ON = re.compile(r"[-+.,;\d\sEeainfNI]*\]?[\],;\s]*$")
# Many countries write 3,1416. Three digits after a comma are thousands, unless a zero comes before it.
_DECIMAL_COMMA = re.compile(r"[-+]?(?:0,\d+|\d+,(?:\d{1,2}|\d{4,}))(?:[eE][-+]?\d+)?$")


def to_number(text: str) -> float | None:
    """Return the number at the start of ``text`` without thousands separators, or None."""
    match = _LEADING.match(text.strip().lstrip("[("))
    if match is None:
        return None
    text = match.group()
    try:
        return float(text.replace(",", "." if _DECIMAL_COMMA.match(text) else ""))
    except ValueError:
        return None


def to_scaled(text: str) -> float | None:
    """Return the number at the start of ``text``, times the factor at its end: ``1.2k`` is 1200."""
    number = to_number(text)
    return None if number is None else number * _FACTORS.get(text[-1:], 1.0)


def joined_rows(lines: Iterable[str]) -> Iterator[str]:
    """Join a bracketed row of numbers that is printed over several lines, as numpy does with long rows.

    >>> list(joined_rows(["[0.25 0.5", " 0.75]", "[[1 2]", " [3 4]]"]))
    ['[0.25 0.5  0.75]', '[[1 2]', ' [3 4]]']
    """
    held: list[str] = []
    for line in lines:
        if held and not (_ROW_GOES_ON.match(line) and len(held) < MAX_ROW_LINES):
            yield from held  # It was not a row: its apparent start is a line by itself.
            held = []
        held.append(line)
        if not _OPEN_ROW.search(line) and (len(held) == 1 or "]" in line):
            yield " ".join(held)
            held = []
    yield from held
