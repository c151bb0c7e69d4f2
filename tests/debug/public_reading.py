"""Public logs read once per process: reading a large one costs more than everything that is asked of it."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from holdfast.debug.ingestion import read_path
from holdfast.debug.ingestion.run_log import RunLog


@cache
def read_once(path: Path) -> RunLog:
    """The one run at this path."""
    (log,) = read_path(path)
    return log
