"""Files that survive a crash: written whole or not at all, and on the disk when the call returns."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["sync", "write_whole"]


def write_whole(path: Path, text: str) -> None:
    """Write a file under a temporary name (``.<name>.<process>.tmp``), flush it to disk and rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
