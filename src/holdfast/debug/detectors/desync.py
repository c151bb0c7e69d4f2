"""Replicas that should hold the same parameters and no longer do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.select import of_kind
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Evidence, Failure, Severity, Signal

__all__ = ["DistributedDesyncDetector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DistributedDesyncDetector(BaseDetector):
    """Sees replicated parameters whose hashes differ between ranks, and the step at which that began.

    Sharded parameters differ by design. They are known by ``metadata["sharded"]``, or by differing from the very first
    hash on while other parameters agree throughout.

    Args:
        minimum_parameters: how many parameters must differ.
    """

    minimum_parameters: int = 1

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "desync"

    def get_required_signals(self) -> frozenset[str]:
        """Parameter hashes by parameter and rank."""
        return frozenset(("param_hash",))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Compare the ranks parameter by parameter, at the steps they share."""
        groups: dict[str, list[Signal]] = {}
        for signal in of_kind(signals, "param_hash"):
            if signal.replica is not None and not signal.metadata.get("sharded"):
                groups.setdefault(signal.layer or signal.name, []).append(signal)
        differing: dict[str, tuple[float, float, frozenset[int], bool]] = {}
        agreeing = 0
        for layer, group in groups.items():
            if len({signal.replica for signal in group}) < 2:
                continue
            difference = _difference(group)
            if difference is None:
                agreeing += 1
            else:
                differing[layer] = difference
        if any(not from_start for *_, from_start in differing.values()) or agreeing:
            # Some parameters do start out equal, so those that never were equal are shards.
            differing = {layer: found for layer, found in differing.items() if not found[3]}
        if len(differing) < self.minimum_parameters or not differing:
            return DetectionResult(self.name)
        return DetectionResult(self.name, (_detection(differing, len(groups)),))


def _difference(group: list[Signal]) -> tuple[float, float, frozenset[int], bool] | None:
    """First and last differing step, the ranks in the minority, and whether it was so from the start."""
    shared = group[0].steps
    for signal in group[1:]:
        shared = np.intersect1d(shared, signal.steps)
    if len(shared) == 0:
        return None
    # Of several hashes at one step the last one counts: that is the state the step ended with.
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
    return float(shared[first]), float(shared[last]), odd, bool(unequal[0])


def _detection(differing: dict[str, tuple[float, float, frozenset[int], bool]], parameters: int) -> Detection:
    first_layer = min(differing, key=lambda layer: differing[layer][0])
    first = differing[first_layer][0]
    last = max(found[1] for found in differing.values())
    ranks = sorted(frozenset[int]().union(*(found[2] for found in differing.values() if found[0] == first)))
    names = sorted(differing, key=lambda layer: (differing[layer][0], layer))
    claim = (
        f"{len(differing)} of {parameters} replicated parameters differ between ranks from step {first:g} on "
        f"(first {', '.join(names[:3])})"
    )
    return Detection(
        failure=Failure.DESYNC,
        severity=Severity.CRITICAL,
        confidence=0.97,
        first_step=first,
        last_step=last,
        evidence=(Evidence(first_layer, claim, {"parameters": float(len(differing)), "first_step": first}),),
        layer=first_layer if len(differing) == 1 else None,
        replica=ranks[0] if len(ranks) == 1 else None,
        signal=first_layer,
        facts={"parameters": tuple(names), "ranks": tuple(ranks), "from_start": all(f[3] for f in differing.values())},
    )
