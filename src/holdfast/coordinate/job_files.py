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
    """Return the error for a file that does not say what was once written to it."""
    return CoordinationError(
        f"a file of the job is damaged: {problem}",
        file=str(path),
        **more,
        hint="bring the job's folder back from a copy, or begin the job again in a new folder",
    )


@contextmanager
def told(what: str, place: str | Path) -> Iterator[None]:
    """Turn a failure of the disk into an error that says what could not be done, and where.

    A file that is not there is left to the caller, to whom it means that another worker was quicker.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise CoordinationError(
            f"{what}: {error.strerror or error}",
            place=str(place),
            hint="make room, or make it writable, and start again: what was committed is kept",
        ) from error


def write(path: Path, text: str) -> None:
    """Write a file and bring it to disk."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def sync_folder(path: Path) -> None:
    """Bring the names in a folder to disk; one that was renamed meanwhile is none of ours."""
    try:
        handle = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_text(path: Path) -> str | None:
    """Return a file's text; None if another worker has moved its content on meanwhile."""
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
