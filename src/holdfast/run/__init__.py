"""Recorder, live monitor and rollback: where the parts meet a training loop."""

from __future__ import annotations

__all__: list[str] = []
