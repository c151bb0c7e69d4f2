"""A loss that jumps and comes back (or was coming back when the log ended)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.divergence import is_still_recovering
from holdfast.debug.detectors.periodic import periodic_swing, takes_turns
from holdfast.debug.detectors.rise import Rise, find_bursts, find_hump, lasting_rise
from holdfast.debug.detectors.select import of_kind, reward_holds, total_gradient_norms, training_losses
from holdfast.debug.detectors.statistics import Shape, noise_of, shape_of
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Evidence, Failure, Severity, Signal

__all__ = ["LossSpikeDetector"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSpikeDetector(BaseDetector):
    """Sees several consecutive losses far above their surroundings.

    Args:
        minimum_noises: how far above, in units of the noise around them.
        minimum_height: how far above, relative to the level around them.
        minimum_points: how many points must be high; fewer are noise unless their neighbours are raised as well, they
            tower over everything else, or the gradient norm jumps with them.
    """

    minimum_noises: float = 8.0
    minimum_height: float = 0.35
    minimum_points: int = 3

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "spike"

    def get_required_signals(self) -> frozenset[str]:
        """Losses; gradient norms to confirm a jump of a single point; learning rates, whose cycles are no fault."""
        return frozenset(("loss", "grad_norm", "perplexity", "lr", "reward"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Look at every total loss."""
        found: list[Detection] = []
        norms = total_gradient_norms(signals)
        if reward_holds(signals):
            return DetectionResult(self.name)
        for signal in training_losses(signals):
            shape = shape_of(signal)
            if shape is None or shape.is_signed:
                continue
            if shape.count < 6:
                found.extend(self._short_log(signal, shape, norms))
                continue
            rise = lasting_rise(signal, minimum_noises=6.0, minimum_lost=0.2)
            if rise is not None and is_still_recovering(rise):
                found.append(self._spike(signal, [rise], at_end=True))
                continue
            bursts = find_bursts(
                shape, minimum_noises=self.minimum_noises, minimum_height=self.minimum_height, minimum_points=1
            )
            # The first moments of a run are all over the place; only what rises above its own beginning counts there.
            settled = [b for b in bursts if b.first_step > shape.steps[0] and b.peak > b.before]
            factor = shape.factor_noise()
            kept = [
                b
                for b in settled
                if b.points >= self.minimum_points
                or b.extent > self.minimum_points
                or _stands_out(b, factor)
                or _confirmed(b, norms)
            ]
            turns = takes_turns(signal)  # their levels differ, from the first round on
            if not kept and not turns and (early := self._early(shape)) is not None:
                kept = [early]
            hump = find_hump(signal, minimum_noises=self.minimum_noises, minimum_height=self.minimum_height)
            if not kept and rise is None and hump is not None:
                kept = [hump]
            if kept and (rise is None or rise.first_step > kept[0].first_step):
                found.append(self._spike(signal, kept, at_end=False))
            explained = kept or turns or rise is not None
            if not explained and (period := periodic_swing(signal, of_kind(signals, "lr"))) is not None:
                found.append(_swinging(signal, shape, *period))
        return DetectionResult(self.name, tuple(found))

    def _early(self, shape: Shape) -> Rise | None:
        """A jump in the first moments: several points far above the very first ones, gone again later."""
        head = shape.values[: max(8, shape.count // 7)]
        if shape.count < 30:
            return None
        # The loss of an untrained model is about the highest of a run; a first batch that happens to be easy is no
        # reference.
        first = max(float(head[0]), float(np.quantile(shape.values[len(head) :], 0.9)))
        if first <= 0 or float(shape.values.min()) <= 0:
            return None
        # Batches of a heavy-tailed loss differ by factors; a jump must beat the run's own factor between neighbours.
        factor = noise_of(np.log(shape.values[:: max(1, shape.count // 4096)]))
        height = np.log(head / first)
        high = np.flatnonzero(height > max(np.log(1.5), 4.0 * factor))
        raised = np.flatnonzero(height > max(np.log(1.35), 3.0 * factor))
        jumped = len(high) >= self.minimum_points or (
            len(raised) >= self.minimum_points and float(height.max()) > max(np.log(2.0), 6.0 * factor)
        )
        if not jumped or len(high) == 0 or high[0] == 0:
            return None
        return Rise(
            first_step=float(shape.steps[high[0]]),
            last_step=float(shape.steps[high[-1]]),
            before=first,
            peak=float(head.max()),
            after=shape.end,
            noise=float(shape.noise[0]),
            points=len(high),
            lost=0.0,
            recovered=1.0,
        )

    def _short_log(self, signal: Signal, shape: Shape, norms: list[Signal]) -> list[Detection]:
        """In a handful of lines only an unmistakable jump counts: many times the level, with the gradients agreeing."""
        if shape.count < 2:
            return []
        worst = int(np.argmax(shape.values))
        before = shape.values[:worst]
        if worst == 0 or shape.values[worst] < 5.0 * float(np.max(before)):
            return []
        rise = Rise(
            first_step=float(shape.steps[worst]),
            last_step=float(shape.steps[-1]),
            before=float(np.median(before)),
            peak=float(shape.values[worst]),
            after=float(shape.values[-1]),
            noise=float(np.median(before)) * 0.1,
            points=1,
            lost=1.0,
            recovered=0.0,
        )
        return [self._spike(signal, [rise], at_end=True)] if _confirmed(rise, norms) or rise.ratio > 20 else []

    def _spike(self, signal: Signal, bursts: list[Rise], *, at_end: bool) -> Detection:
        worst = max(bursts, key=lambda burst: burst.height)
        claim = (
            f"jumped from {worst.before:.4g} to {worst.peak:.4g} at step {worst.first_step:g}"
            + (f", {len(bursts)} times in all" if len(bursts) > 1 else "")
            + (" and had not come back when the log ended" if at_end else f", back at {worst.after:.4g} after it")
        )
        return Detection(
            failure=Failure.SPIKE,
            severity=Severity.CRITICAL if at_end and worst.recovered < 0.7 else Severity.WARNING,
            confidence=min(
                0.97, 0.6 + 0.1 * min(worst.points, 3) + 0.02 * min(worst.height / max(worst.noise, 1e-12), 5)
            ),
            first_step=bursts[0].first_step,
            last_step=bursts[-1].last_step,
            evidence=(
                Evidence(signal.name, claim, {"before": worst.before, "peak": worst.peak, "count": len(bursts)}),
            ),
            replica=signal.replica,
            signal=signal.name,
            facts={
                "count": len(bursts),
                "ratio": min(worst.ratio, 1e12),
                "points": worst.points,
                "recovered": worst.recovered,
                "at_end": at_end,
            },
        )


def _stands_out(burst: Rise, factor: float) -> bool:
    """One or two points far beyond every other high point of the run: averages over a bad stretch look like this."""
    least = max(1.6, float(np.exp(min(5.5 * factor, 50.0))))
    return burst.ratio > least and burst.standing > (3.0 if burst.points >= 2 else 4.0)


def _swinging(signal: Signal, shape: Shape, period: float, swing: float) -> Detection:
    return Detection(
        failure=Failure.SPIKE,
        severity=Severity.WARNING,
        confidence=0.8,
        first_step=float(shape.steps[0]),
        last_step=float(shape.steps[-1]),
        evidence=(
            Evidence(
                signal.name,
                f"swings by {swing:.0%} of its level every {period:g} steps",
                {"period": period, "swing": swing},
            ),
        ),
        replica=signal.replica,
        signal=signal.name,
        facts={"periodic": True, "period": period, "swing": swing, "count": 1, "ratio": 1 + swing},
    )


def _confirmed(burst: Rise, norms: list[Signal]) -> bool:
    """Whether a gradient norm jumped tenfold while a loss at least doubled: one high point may then be believed."""
    if burst.ratio < 2.0:
        return False
    for norm in norms:
        finite = np.isfinite(norm.values)
        near = norm.values[finite & (norm.steps >= burst.first_step) & (norm.steps <= burst.last_step)]
        before = norm.values[finite & (norm.steps < burst.first_step)]
        if len(near) and len(before) and float(near.max()) > 10.0 * float(before[-200:].max()):
            return True
    return False
