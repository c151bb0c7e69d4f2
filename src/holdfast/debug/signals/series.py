"""Collects points by name and layer, and returns them as signals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from holdfast.debug.types import Signal

__all__ = ["SeriesBuilder"]


class SeriesBuilder:
    """Points of many series."""

    def __init__(self, replica: int | None) -> None:
        self._replica = replica
        self._points: dict[tuple[str, str | None], tuple[list[float], list[float], dict[str, Any]]] = {}

    def add(
        self,
        name: str,
        layer: str | None,
        step: float,
        value: float,
        *,
        kind: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Add one point."""
        entry = self._points.get((name, layer))
        if entry is None:
            details = dict(metadata or {})
            if kind is not None:
                details["kind"] = kind
            entry = self._points[(name, layer)] = ([], [], details)
        entry[0].append(step)
        entry[1].append(value)

    def signals(self) -> list[Signal]:
        """Return one signal per series."""
        return [
            Signal(name, np.array(steps), np.array(values), layer=layer, replica=self._replica, metadata=metadata)
            for (name, layer), (steps, values, metadata) in self._points.items()
        ]
