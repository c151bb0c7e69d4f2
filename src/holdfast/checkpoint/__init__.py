"""Restore of torch's distributed checkpoints at the speed of the disk, verified."""

from __future__ import annotations

__all__: list[str] = []
