"""How a log is read: how much of it, so that a hostile one costs bounded time and memory, and by which rules."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.debug.ingestion.reading_rules import EndingRule, ListRule, RestartRule, TableRule, TextRule

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of reading. Whatever is left out is said in a note of the report."""

    text_bytes: int = 4 << 30
    """Bytes read from one text or table file."""
    document_bytes: int = 256 << 20
    """Bytes of one JSON document, pickle or decompressed file: these are held in memory whole."""
    line_characters: int = 65536
    """Characters kept of one line of free text; structured lines (JSON) may be ``structured_line_characters`` long."""
    structured_line_characters: int = 4 << 20
    """Characters kept of one line of JSON."""
    rows: int = 20_000_000
    """Rows of one file."""
    signals: int = 20_000
    """Series of one file."""
    files: int = 5_000
    """Files looked at in one folder."""
    depth: int = 12
    """Levels of folders."""
    restarts: RestartRule = field(default_factory=RestartRule)
    """When a file holds several runs."""
    ending: EndingRule = field(default_factory=EndingRule)
    """When an error ended the job."""
    text: TextRule = field(default_factory=TextRule)
    """Which lines of free text are rows."""
    lists: ListRule = field(default_factory=ListRule)
    """Which lists of numbers are series."""
    table: TableRule = field(default_factory=TableRule)
    """Which lines are a table, and what its columns may be."""
