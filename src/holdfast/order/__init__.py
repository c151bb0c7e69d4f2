"""Which sample stands where: pure arithmetic over NumPy arrays, with no state and no random generator."""

from __future__ import annotations

__all__: list[str] = []
