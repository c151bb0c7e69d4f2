"""Datasets and the loader: batches as a pure function of their step."""

from __future__ import annotations

__all__: list[str] = []
