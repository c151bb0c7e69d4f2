"""Files of a job's folder: written so that they are on disk when the call returns, read so that damage is named."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from holdfast.errors import CoordinationError

__all__ = ["damaged", "read_json", "read_text", "sync_folder", "told", "write"]


def damaged(problem: str, path: Path, **more: Any) -> CoordinationError:
    """Return the error for a file whose content is not what was written to it."""
    return CoordinationError(
        f"a file of the job is damaged: {problem}",
        file=str(path),
        **more,
        hint="restore the job's folder from a backup, or begin the job again in a new folder",
    )


@contextmanager
def told(what: str, place: str | Path) -> Iterator[None]:
    """Turn a disk failure into an error that says what could not be done, and where.

    A missing file is left to the caller: it means that another worker was faster.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CoordinationError(
            f"{what}: {error.strerror or error}",
            place=str(place),
            hint="free some space or make the place writable, then start again: what was committed is kept",
        ) from error


def write(path: Path, text: str) -> None:
    """Write a file and flush it to disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Flush the names in a folder to disk; do nothing if the folder was renamed in the meantime."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_text(path: Path) -> str | None:
    """Return a file's text; None if another worker has moved its content elsewhere in the meantime."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if not path.parent.exists():
            raise
        return None
    except UnicodeDecodeError as error:
        raise damaged(str(error), path) from error


def read_json(path: Path) -> Mapping[str, Any]:
    """Return a file's JSON value."""
    try:
        value: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise damaged(str(error), path) from error
    return value
