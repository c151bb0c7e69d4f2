"""Which detector gets which signals: decided once per set of kinds, then cached."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.debug.base import BaseDetector
from holdfast.debug.types import Signal

__all__ = ["Router"]

OTHER = "other"
"""The kind under which a detector asks for series of unknown meaning."""


class Router:
    """Routes signals to the detectors that declared their kinds."""

    def __init__(self, detectors: Sequence[BaseDetector]) -> None:
        self._required = tuple((detector, frozenset(detector.get_required_signals())) for detector in detectors)
        self._always = [detector for detector, required in self._required if not required]
        self._routes: dict[frozenset[str], tuple[tuple[BaseDetector, frozenset[str]], ...]] = {}

    @property
    def cached_routes(self) -> int:
        """The number of sets of kinds seen so far."""
        return len(self._routes)

    def route(self, signals: Sequence[Signal]) -> list[tuple[BaseDetector, tuple[Signal, ...]]]:
        """Return each detector that has something to read, with its signals, in the order of the run's signals."""
        by_kind: dict[str, list[tuple[int, Signal]]] = {}
        for place, signal in enumerate(signals):
            by_kind.setdefault(signal.kind or OTHER, []).append((place, signal))
        present = frozenset(by_kind)
        routes = self._routes.get(present)
        if routes is None:
            matched = ((detector, required & present) for detector, required in self._required)
            # A detector that asks for no signals reads only events.
            routes = self._routes[present] = tuple(
                (detector, kinds) for detector, kinds in matched if kinds or detector in self._always
            )
        routed = []
        for detector, kinds in routes:
            own = sorted((pair for kind in kinds for pair in by_kind[kind]), key=lambda pair: pair[0])
            routed.append((detector, tuple(signal for _, signal in own)))
        return routed
