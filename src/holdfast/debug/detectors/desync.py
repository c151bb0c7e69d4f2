"""Replicas that should hold the same parameters but no longer do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.evidence import CERTAIN, detection
from holdfast.debug.detectors.steps.select import of_kind
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Failure, Severity, Signal

__all__ = ["DistributedDesyncDetector"]


class _Difference(NamedTuple):
    """How one parameter differs between ranks."""

    first_step: float
    last_step: float
    odd_ranks: frozenset[int]
    from_start: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedDesyncDetector(BaseDetector):
    """Detects replicated parameters whose hashes differ between ranks, and the step at which that began.

    Sharded parameters differ by design. They are recognised by ``metadata["sharded"]``, or because they differ from the
    first hash while other parameters agree throughout.
    """

    failure: ClassVar[Failure] = Failure.DESYNC
    minimum_parameters: int = 1
    """Minimum number of parameters that must differ: hashes have no noise, so one is enough."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "desync"

    def get_required_signals(self) -> frozenset[str]:
        """Return parameter hashes by parameter and rank."""
        return frozenset(("param_hash",))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Compare the ranks parameter by parameter, at the steps they share."""
        groups: dict[str, list[Signal]] = {}
        for signal in of_kind(signals, "param_hash"):
            if signal.replica is not None and not signal.metadata.get("sharded"):
                groups.setdefault(signal.layer or signal.name, []).append(signal)
        compared = {layer: _difference(group) for layer, group in groups.items() if len({s.replica for s in group}) > 1}
        differing = {layer: found for layer, found in compared.items() if found is not None}
        if len(differing) < len(compared) or any(not found.from_start for found in differing.values()):
            # Some parameters start out equal, so those that never were equal are shards.
            differing = {layer: found for layer, found in differing.items() if not found.from_start}
        if len(differing) < max(self.minimum_parameters, 1):
            return DetectionResult(self.name)
        return DetectionResult(self.name, (self._told(differing, groups),))

    def _told(self, differing: dict[str, _Difference], groups: dict[str, list[Signal]]) -> Detection:
        first_layer = min(differing, key=lambda layer: differing[layer].first_step)
        first = differing[first_layer].first_step
        ranks = sorted(frozenset[int]().union(*(f.odd_ranks for f in differing.values() if f.first_step == first)))
        names = sorted(differing, key=lambda layer: (differing[layer].first_step, layer))
        claim = (
            f"{len(differing)} of {len(groups)} replicated parameters differ between ranks from step {first:g} on "
            f"(first {', '.join(names[:3])})"
        )
        signal = groups[first_layer][0]
        return detection(
            self.failure,
            Signal(first_layer, signal.steps, signal.values, layer=first_layer if len(differing) == 1 else None),
            claim,
            severity=Severity.CRITICAL,
            confidence=CERTAIN,
            first=first,
            last=max(found.last_step for found in differing.values()),
            numbers={"parameters": float(len(differing)), "first_step": first},
            replica=ranks[0] if len(ranks) == 1 else None,
        )


def _difference(group: list[Signal]) -> _Difference | None:
    """Return where the hashes of one parameter first and last differ, and which ranks are in the minority."""
    shared = group[0].steps
    for signal in group[1:]:
        shared = np.intersect1d(shared, signal.steps)
    if len(shared) == 0:
        return None
    # Of several hashes at one step the last one counts: it is the state in which the step ended.
    columns = np.stack([signal.values[np.searchsorted(signal.steps, shared, side="right") - 1] for signal in group])
    unequal = np.any(columns != columns[0], axis=0)
    if not unequal.any():
        return None
    first = int(np.argmax(unequal))
    last = int(np.flatnonzero(unequal)[-1])
    values, counts = np.unique(columns[:, first], return_counts=True)
    common = values[int(np.argmax(counts))]
    odd = frozenset(
        int(signal.replica)
        for row, signal in enumerate(group)
        if signal.replica is not None and (counts.max() == 1 or columns[row, first] != common)
    )
    return _Difference(float(shared[first]), float(shared[last]), odd, bool(unequal[0]))
