"""Lines with several parts: a traceback after a progress bar, records without a line break between them."""

from __future__ import annotations

import itertools
import re
from collections import Counter

__all__ = ["apart_from_traceback", "parts_of_line"]

_BEGINS_TRACEBACK = "Traceback (most recent call last)"
_BAR_ENDS = ("]", "|", "it", "s", "%")
MIN_RECORDS = 3
"""Minimum number of increasing counters on a line for it to contain that many records."""
MIN_RECORDS_CHARACTERS = 120
"""Minimum length of a line with several records."""
_COUNTER = re.compile(r"(?<![A-Za-z_.])(epoch|step|iter|iteration|episode)[ _:#=\[(]{0,3}(\d{1,12})\b", re.IGNORECASE)


def apart_from_traceback(line: str) -> tuple[str, ...]:
    """Separate a line from a traceback that begins in it: a progress bar ends without a line break.

    >>> apart_from_traceback("9%|# | 3/90 [00:01<00:30, loss=nan]Traceback (most recent call last):")
    ('9%|# | 3/90 [00:01<00:30, loss=nan]', 'Traceback (most recent call last):')
    """
    at = line.find(_BEGINS_TRACEBACK)
    head = line[: max(at, 0)].rstrip()
    bar = head.endswith(_BAR_ENDS) and ("%" in head or not head.endswith("|"))  # Containers put "name | " before lines.
    return (line[:at], line[at:]) if bar else (line,)


def parts_of_line(line: str) -> tuple[str, ...]:
    """Separate a line from a traceback that begins in it, and records without a line break between them.

    >>> parts_of_line("epoch 1 loss: 0.91, time 6.7 s" + " " * 80 + "epoch 2 loss: 0.73 epoch 3 loss: 0.52")[1:]
    ('epoch 2 loss: 0.73 ', 'epoch 3 loss: 0.52')
    """
    if len(line) >= MIN_RECORDS_CHARACTERS and (begins := _records(line)):
        return tuple(line[begin:end] for begin, end in zip(begins, [*begins[1:], len(line)], strict=True))
    return apart_from_traceback(line)


def _records(line: str) -> list[int]:
    """Return where the records of a line begin: at each occurrence of its most frequent counter."""
    found = [(match.start(), match[1].lower(), int(match[2])) for match in _COUNTER.finditer(line)]
    if len(found) < MIN_RECORDS:
        return []
    word, times = Counter(word for _, word, _ in found).most_common(1)[0]
    own = [(begin, number) for begin, name, number in found if name == word]
    on = sum(after > before for (_, before), (_, after) in itertools.pairwise(own))
    if times < MIN_RECORDS or 2 * on < times - 1:
        return []
    # Text before the first counter belongs to the first record.
    return [0, *(begin for begin, _ in own[1:])]
