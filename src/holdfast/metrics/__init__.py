"""Metrics that merge exactly over ranks, restarts and changed world sizes."""

from __future__ import annotations

__all__: list[str] = []
