"""From any training log to a named failure, its cause and what to do. Runs without torch."""

from __future__ import annotations

__all__: list[str] = []
