"""How much of a log is read, so that a hostile or huge one costs bounded time and memory."""

from __future__ import annotations

from dataclasses import dataclass

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
    rows: int = 20_000_000
    signals: int = 20_000
    files: int = 5_000
    """Files looked at in one folder."""
    depth: int = 12
    """Levels of folders."""
