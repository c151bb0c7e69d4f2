"""Lost time: a rank slower than the rest, and a data loader that makes the model wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.steps.baseline import Array, robust_spread, running_median
from holdfast.debug.detectors.steps.evidence import detection, graded
from holdfast.debug.detectors.steps.select import of_kind, per_replica
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Failure, Severity, Signal

__all__ = ["DataStarvationDetector", "StragglerDetector"]

TINY_TIME = 1e-12
"""Minimum time, so that ratios are finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerDetector(BaseDetector):
    """Detects a rank whose steps consistently take longer than the others'."""

    failure: ClassVar[Failure] = Failure.STRAGGLER
    slowdown: float = 1.3
    """Minimum ratio to the median time of the others."""
    share: float = 0.6
    """Minimum fraction of the steps at which it must be the slow one: ranks that take turns are no stragglers."""
    minimum_points: int = 8
    """Minimum number of steps."""
    smoothed_points: int = 40
    """From this many steps the ranks are compared over smoothed times: single steps differ by factors on a busy
    machine."""
    smooth_reach: int = 4
    """Number of steps on either side that are smoothed over."""
    spreads: float = 2.0
    """Minimum distance from the others, in units of their spread."""
    quiet_quantile: float = 0.2
    """Even its faster steps, up to this quantile …"""
    quiet_slowdown: float = 1.1
    """… must take this many times as long."""
    minimum_share: int = 4
    """The slow range covers at least 1/n of the steps."""
    surest: float = 2.0
    """The ratio at which a slow rank has maximum confidence."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "straggler"

    def get_required_signals(self) -> frozenset[str]:
        """Return times and throughputs by rank."""
        return frozenset(("step_time", "data_time", "throughput"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Compare ranks with each other, step by step."""
        for kind in ("step_time", "throughput", "data_time"):
            replicas = {rank: group[0] for rank, group in per_replica(signals, kind).items()}
            count = min((len(signal.values) for signal in replicas.values()), default=0)
            if len(replicas) < 2 or count < self.minimum_points:
                continue
            ranks = sorted(replicas)
            table = np.stack([replicas[rank].values[:count] for rank in ranks])
            table = 1.0 / np.maximum(table, TINY_TIME) if kind == "throughput" else table
            found = [
                seen for row, rank in enumerate(ranks) if (seen := self._slow(table, row, replicas[rank])) is not None
            ]
            # With two ranks one is always slower; with more, "most ranks are slow" means that none is.
            if found and len(found) * 2 <= len(ranks):
                return DetectionResult(self.name, tuple(found))
        return DetectionResult(self.name)

    def _slow(self, table: Array, row: int, signal: Signal) -> Detection | None:
        count, rest = table.shape[1], np.delete(table, row, axis=0)
        ratio = table[row] / np.maximum(np.median(rest, axis=0), TINY_TIME)
        if count >= self.smoothed_points:
            ratio = running_median(ratio, self.smooth_reach)
        # It is slow for good from its first slow step.
        slow = ratio > self.slowdown
        begin = int(np.argmax(slow)) if slow.any() else count
        stretch = ratio[begin:]
        if len(stretch) < max(self.minimum_points // 2, count // self.minimum_share):
            return None
        typical = float(np.median(stretch))
        spread = robust_spread((rest / np.maximum(np.median(rest, axis=0), TINY_TIME)).ravel())
        if (
            typical < max(self.slowdown, 1 + self.spreads * spread)
            or float(np.mean(stretch > self.slowdown)) < self.share
            or float(np.quantile(stretch, self.quiet_quantile)) < self.quiet_slowdown
        ):
            return None
        first = float(signal.steps[begin])
        return detection(
            self.failure,
            signal,
            f"rank {signal.replica} takes {typical:.2f} times as long as the others from step {first:g} on",
            severity=Severity.WARNING,
            confidence=graded(typical / self.surest),
            first=first,
            last=float(signal.steps[count - 1]),
            numbers={"slowdown": typical},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStarvationDetector(BaseDetector):
    """Detects steps that are mostly spent waiting for data."""

    failure: ClassVar[Failure] = Failure.DATA_STARVATION
    share: float = 0.4
    """Minimum fraction of the step time spent waiting."""
    minimum_points: int = 10
    """Minimum number of steps."""
    severe_share: float = 0.75
    """From this fraction the wait is a warning; below, it costs time but no quality and is information only."""
    warm_up: float = 0.1
    """The fraction of first steps that is left out: they compile, fill caches and fill the loader's queue."""

    @property
    def name(self) -> str:
        """The name used in reports."""
        return "data_starvation"

    def get_required_signals(self) -> frozenset[str]:
        """Return loader times and step times."""
        return frozenset(("data_time", "step_time"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Compare the time spent waiting with the time of the whole step."""
        times = {signal.replica: signal for signal in reversed(of_kind(signals, "step_time"))}
        for waiting in of_kind(signals, "data_time"):
            whole = times.get(waiting.replica)
            if whole is not None and (seen := self._starved(waiting, whole)) is not None:
                return DetectionResult(self.name, (seen,))
        return DetectionResult(self.name)

    def _starved(self, waiting: Signal, whole: Signal) -> Detection | None:
        if min(len(whole.values), len(waiting.values)) < self.minimum_points:
            return None
        wait, step = self._settled(waiting), self._settled(whole)
        if wait <= 0 or step <= 0:
            return None
        share = wait / step if wait <= step else wait / (wait + step)
        if share < self.share:
            return None
        return detection(
            self.failure,
            waiting,
            f"{share:.0%} of a step of {step:.3g} is spent waiting for data, {wait:.3g} on the median",
            severity=Severity.WARNING if share >= self.severe_share else Severity.INFO,
            confidence=graded(share),
            first=float(waiting.steps[0]),
            last=float(waiting.steps[-1]),
            numbers={"share": share, "wait": wait, "step": step},
        )

    def _settled(self, signal: Signal) -> float:
        values = signal.values[np.isfinite(signal.values)]
        return float(np.median(values[int(len(values) * self.warm_up) :])) if len(values) else 0.0
