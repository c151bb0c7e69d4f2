"""The ends of chunks as text: one line each, in pages that each fit into one record of any store.

The model: an end never changes, so it becomes text once. A million of them are a few hundred pages, which a saved state
includes as they are: saving again costs only as much as what has ended since.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from holdfast.coordinate.records import Dead, Done, from_line

__all__ = ["Pages", "count_dead", "read_ends"]

# The beginning of the line of a chunk that was given up: a million lines are counted without decoding them.
_DEAD = re.compile(r'^\[\d+, ?"dead",', re.MULTILINE)

# Characters per page: the smallest limit of a store is etcd's, 1 MiB.
PAGE = 512 << 10


class Pages:
    """Lines that are added one by one. Not thread-safe: its owner serialises calls."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        self._full: list[str] = []
        self._lines: list[str] = []
        self._size = 0
        for line in lines:
            self.add(line)

    def add(self, line: str) -> None:
        """Add a line."""
        if self._lines and self._size + len(line) > PAGE:
            self._full.append("\n".join(self._lines))
            self._lines, self._size = [], 0
        self._lines.append(line)
        self._size += len(line) + 1

    def texts(self) -> list[str]:
        """Return all pages so far; only the last one is built again."""
        return [*self._full, "\n".join(self._lines)] if self._lines else list(self._full)


def read_ends(pages: Iterable[str]) -> Iterator[Done | Dead]:
    """Yield the ends on these pages."""
    for page in pages:
        for line in page.splitlines():
            entry = from_line(line)
            if isinstance(entry, (Done, Dead)):
                yield entry


def count_dead(pages: Iterable[str]) -> int:
    """Return how many chunks on these pages were given up."""
    return sum(len(_DEAD.findall(page)) for page in pages)
