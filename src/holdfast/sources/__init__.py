"""Named random-access storage: ``len()`` and ``read(indices) -> dict of columns``, many samples at once."""

from __future__ import annotations

__all__: list[str] = []
