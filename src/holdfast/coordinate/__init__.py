"""Health, takeover and rebalancing on torch's own store."""

from __future__ import annotations

__all__: list[str] = []
