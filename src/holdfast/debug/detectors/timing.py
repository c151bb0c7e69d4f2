"""Time that is lost: a rank slower than the rest, and a loader that lets the model wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.select import of_kind, per_replica
from holdfast.debug.detectors.statistics import robust_spread, running_median
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Evidence, Failure, Severity, Signal

__all__ = ["DataStarvationDetector", "StragglerDetector"]

# The first steps compile, fill caches and fill the loader's queue.
WARM_UP_SHARE = 0.1
# With this many steps the ranks are compared over stretches of nine.
LONG_ENOUGH = 40


def _settled(signal: Signal) -> np.ndarray:
    values = signal.values[np.isfinite(signal.values)]
    return values[int(len(values) * WARM_UP_SHARE) :]


@dataclass(frozen=True, slots=True, kw_only=True)
class StragglerDetector(BaseDetector):
    """Sees a rank whose steps take longer than the others', step after step.

    Args:
        slowdown: how many times the others' median time.
        share: at what share of the steps it must be the slow one.
        minimum_points: fewer steps than this say nothing.
    """

    slowdown: float = 1.3
    share: float = 0.6
    minimum_points: int = 8

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "straggler"

    def get_required_signals(self) -> frozenset[str]:
        """Times and throughputs by rank."""
        return frozenset(("step_time", "data_time", "throughput"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Compare ranks with each other, step by step."""
        for kind in ("step_time", "throughput", "data_time"):
            replicas = {rank: group[0] for rank, group in per_replica(signals, kind).items()}
            if len(replicas) >= 2 and (found := self._slow(replicas, kind)):
                return DetectionResult(self.name, tuple(found))
        return DetectionResult(self.name)

    def _slow(self, replicas: dict[int, Signal], kind: str) -> list[Detection]:
        ranks = sorted(replicas)
        count = min(len(replicas[rank].values) for rank in ranks)
        if count < self.minimum_points:
            return []
        table = np.stack([replicas[rank].values[:count] for rank in ranks])
        if kind == "throughput":
            table = 1.0 / np.maximum(table, 1e-12)
        found: list[Detection] = []
        for row, rank in enumerate(ranks):
            others = np.median(np.delete(table, row, axis=0), axis=0)
            ratio = table[row] / np.maximum(others, 1e-12)
            if count >= LONG_ENOUGH:
                # On a busy machine single steps differ by factors in every rank; their medians do not.
                ratio = running_median(ratio, 4)
            # Where does it begin to be slow for good? Look at the stretch after the first slow quarter.
            slow = ratio > self.slowdown
            begin = int(np.argmax(slow)) if slow.any() else count
            stretch = ratio[begin:]
            if len(stretch) < max(self.minimum_points // 2, count // 4):
                continue
            typical = float(np.median(stretch))
            rest = np.delete(table, row, axis=0)
            spread = robust_spread((rest / np.maximum(np.median(rest, axis=0), 1e-12)).ravel())
            if (
                typical < max(self.slowdown, 1 + 2 * spread)
                or float(np.mean(stretch > self.slowdown)) < self.share
                or float(np.quantile(stretch, 0.2)) < 1.1
            ):
                continue
            steps = replicas[rank].steps
            claim = f"rank {rank} takes {typical:.2f} times as long as the others from step {steps[begin]:g} on"
            found.append(
                Detection(
                    failure=Failure.STRAGGLER,
                    severity=Severity.WARNING,
                    confidence=min(0.95, 0.6 + 0.2 * typical),
                    first_step=float(steps[begin]),
                    last_step=float(steps[count - 1]),
                    evidence=(Evidence(replicas[rank].name, claim, {"slowdown": typical}),),
                    replica=rank,
                    signal=replicas[rank].name,
                    facts={"slowdown": typical, "kind": kind},
                )
            )
        # With two ranks one is always the slower; with more, "most ranks are slow" means none is.
        return found if len(found) * 2 <= len(ranks) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class DataStarvationDetector(BaseDetector):
    """Sees steps that are mostly spent waiting for data.

    Args:
        share: the share of the step time that goes into waiting.
        minimum_points: fewer steps than this say nothing.
    """

    share: float = 0.4
    minimum_points: int = 10

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "data_starvation"

    def get_required_signals(self) -> frozenset[str]:
        """Loader times and step times."""
        return frozenset(("data_time", "step_time"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Compare the time spent waiting with the time of the whole step."""
        times = list(of_kind(signals, "step_time"))
        found: list[Detection] = []
        for waiting in of_kind(signals, "data_time"):
            whole = next((t for t in times if t.replica == waiting.replica), None)
            if whole is None or min(len(whole.values), len(waiting.values)) < self.minimum_points:
                continue
            wait, step = float(np.median(_settled(waiting))), float(np.median(_settled(whole)))
            if wait <= 0 or step <= 0:
                continue
            share = wait / step if wait <= step else wait / (wait + step)
            if share < self.share:
                continue
            claim = f"{share:.0%} of a step of {step:.3g} is spent waiting for data"
            found.append(
                Detection(
                    failure=Failure.DATA_STARVATION,
                    severity=Severity.WARNING,
                    confidence=min(0.95, 0.6 + 0.4 * share),
                    first_step=float(waiting.steps[0]),
                    last_step=float(waiting.steps[-1]),
                    evidence=(Evidence(waiting.name, claim, {"share": share, "wait": wait, "step": step}),),
                    replica=waiting.replica,
                    signal=waiting.name,
                    facts={"share": share},
                )
            )
        return DetectionResult(self.name, tuple(found[:1]))
