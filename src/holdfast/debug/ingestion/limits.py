"""How a log is read: limits that bound the time and memory of a hostile log, and the rules of reading."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.debug.ingestion.reading_rules import EndingRule, ListRule, RestartRule, TableRule, TextRule

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of reading. A note in the report says what was left out."""

    text_bytes: int = 4 << 30
    """Maximum number of bytes read from one text or table file."""
    document_bytes: int = 256 << 20
    """Maximum size of one JSON document, pickle or decompressed file: these are held in memory."""
    line_characters: int = 65536
    """Maximum number of characters kept of one line of free text."""
    structured_line_characters: int = 4 << 20
    """Maximum number of characters kept of one line of JSON."""
    rows: int = 20_000_000
    """Maximum number of rows of one file."""
    signals: int = 20_000
    """Maximum number of series of one file."""
    files: int = 5_000
    """Maximum number of files checked in one folder."""
    depth: int = 12
    """Maximum depth of folders."""
    restarts: RestartRule = field(default_factory=RestartRule)
    """When a file contains several runs."""
    ending: EndingRule = field(default_factory=EndingRule)
    """When an error ended the job."""
    text: TextRule = field(default_factory=TextRule)
    """Which lines of free text are rows."""
    lists: ListRule = field(default_factory=ListRule)
    """Which lists of numbers are series."""
    table: TableRule = field(default_factory=TableRule)
    """Which lines are a table, and what its columns may be."""
