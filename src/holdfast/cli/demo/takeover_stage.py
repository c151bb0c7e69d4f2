"""A worker is killed in the middle of its work, and the others finish it: every position once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from holdfast.cli.demo import Row

__all__ = ["run"]


def run(folder: Path, say: Callable[[str], None]) -> list[Row]:
    """Lease positions to three processes, kill one, and count the commits."""
    return []
