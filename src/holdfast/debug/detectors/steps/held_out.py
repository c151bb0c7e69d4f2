"""What was held out speaks against a run whose training loss falls: too little to raise an alarm, too much to pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.steps.baseline import TENTH
from holdfast.debug.detectors.steps.progress import ProgressRule, badness, count_of
from holdfast.debug.detectors.steps.select import SelectRule, evaluation_losses, of_kind
from holdfast.debug.types import Signal

__all__ = ["HeldOutRule", "Worse", "held_out_series"]


@dataclass(frozen=True, slots=True)
class Worse:
    """A held-out series that speaks against a run: where it was, or what it is compared with, where it is, and how."""

    signal: Signal
    before: float
    after: float
    claim: str

    @property
    def name(self) -> str:
        """The name of the series."""
        return self.signal.name


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOutRule:
    """When a run cannot be called healthy for what was measured on data it does not train on."""

    minimum_points: int = 6
    """Fewer evaluations than this say nothing."""
    worse_pairs: float = 0.9
    """Of pairs of a late and an early evaluation, the share in which the late one must be worse to have got worse …"""
    worse_span: float = 0.25
    """… by this share of how far the series ever moved, …"""
    worse_share: float = 0.15
    """… and of where it began: a few percent are what evaluations differ by."""
    good: float = 0.9
    """A share of right answers above this has little to lose."""
    alike: float = 1.5
    """Training and held-out loss began alike within this factor: they measure the same …"""
    apart: float = 4.0
    """… and end far apart where one is this many times the other, …"""
    apart_gain: float = 0.1
    """… of which the held-out one never gained more than this share."""
    left_best: float = 1.5
    """A held-out loss that ends at this many times the best it held is not where it was …"""
    kept: float = 0.1
    """… unless a held-out score ends within this share of its span of its best: of the span of its middle four fifths,
    which a wild first evaluation does not widen."""
    gap: float = 0.3
    """The share of wrong answers of what is held out from which training answers above ``good`` are learnt by heart,
    where no held-out share got better."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series a question is about."""
    progress: ProgressRule = field(default_factory=ProgressRule)
    """When a series gets better."""

    def doubts(self, signals: Sequence[Signal]) -> str | None:
        """Say what keeps a run whose loss falls from being called healthy; None where nothing does."""
        if (worse := self.got_worse(signals)) is not None:
            return f"{worse.name!r} {worse.claim}"
        if (apart := self.fell_behind(signals)) is not None:
            return f"{apart.name!r} {apart.claim}"
        return self._left_its_best(self._series(signals)) or self._gap(signals)

    def _series(self, signals: Sequence[Signal]) -> list[Signal]:
        """Return the series with enough evaluations; the batches of one of them are all at one step."""
        return [s for s in held_out_series(signals) if len(np.unique(s.steps)) >= self.minimum_points <= count_of(s)]

    def got_worse(self, signals: Sequence[Signal]) -> Worse | None:
        """Return a held-out series that got worse where none got better, and that is not good all the same."""
        series = self._series(signals)
        worse = [signal for signal in series if self._is_worse(signal) and not self._is_good(signal)]
        others = [signal for signal in _unplaced_metrics(signals) if count_of(signal) >= self.minimum_points]
        if not worse or any(self.progress.beats_chance(signal) for signal in (*series, *others)):
            return None
        first, last = _ends(worse[0].values[np.isfinite(worse[0].values)])
        claim = f"got worse, from {first:.4g} to {last:.4g}, and nothing held out got better"
        return Worse(worse[0], first, last, claim)

    def _is_worse(self, signal: Signal) -> bool:
        values = badness(signal)
        third = len(values) // 3
        early, late = np.sort(values[:third]), values[-third:]
        share = float(np.searchsorted(early, late, side="left").mean()) / third
        began = float(np.median(early))
        rise = float(np.median(late)) - began
        least = max(self.worse_span * float(np.ptp(values)), self.worse_share * abs(began))
        return share >= self.worse_pairs and rise >= least

    def _is_good(self, signal: Signal) -> bool:
        if not signal.metadata.get("higher_is_better"):
            return False
        share = self.select.as_share(signal.values[np.isfinite(signal.values)])
        return self.good <= _ends(share)[1] <= 1.0

    def fell_behind(self, signals: Sequence[Signal]) -> Worse | None:
        """Return a held-out loss that hardly fell while the training loss, which began alike, fell far below it."""
        pair, series = [*self.select.training_losses(signals), *evaluation_losses(signals)], self._series(signals)
        if len(pair) != 2 or count_of(pair[0]) < self.minimum_points or not any(s is pair[1] for s in series):
            return None  # Of several losses it is unknown which measure the same.
        own, other = (signal.values[np.isfinite(signal.values)] for signal in pair)
        (first, last), ended = _ends(other), _ends(own)[1]
        began = float(own[:3].max())  # It falls before the first evaluation.
        if min(began, first, ended) <= 0.0 or max(began / first, first / began) > self.alike:
            return None
        best = float(min(np.median(part) for part in np.array_split(other, self.minimum_points)))
        scores = [signal for signal in series if signal.kind == "metric"]
        scores += [signal for signal in _unplaced_metrics(signals) if count_of(signal) >= self.minimum_points]
        behind = last >= self.apart * ended and first - best <= self.apart_gain * first
        if not behind or any(self._kept(signal) for signal in scores):
            return None
        claim = f"hardly fell, from {first:.4g} to {last:.4g}, while {pair[0].name!r} fell to {ended:.4g}"
        return Worse(pair[1], ended, last, claim)

    def _gap(self, signals: Sequence[Signal]) -> str | None:
        """Say that the training data is answered right and what was held out is not, and never got better."""
        shares = [s for s in of_kind(signals, "metric") if s.metadata.get("higher_is_better") and s.layer is None]
        shares = [
            signal
            for signal in shares
            if count_of(signal) >= self.minimum_points and float(badness(signal).max()) <= 0.0
        ]
        ends = [_ends(self.select.as_share(signal.values[np.isfinite(signal.values)]))[1] for signal in shares]
        held_out = [signal.metadata.get("split") == "eval" for signal in shares]
        right = [end for end, held in zip(ends, held_out, strict=True) if not held and self.good <= end <= 1.0]
        stuck = [
            (signal, end)
            for signal, end, held in zip(shares, ends, held_out, strict=True)
            if held and end <= 1.0 - self.gap and not self.progress.beats_chance(signal)
        ]
        if not right or not stuck or len(stuck) < sum(held_out):
            return None
        name, end = stuck[0][0].name, stuck[0][1]
        return f"{name!r} ends at {end:.3g} and never got better, where training ends at {right[0]:.3g}"

    def _left_its_best(self, series: Sequence[Signal]) -> str | None:
        """Say that every held-out loss ends well above the best it held, and no score stayed near its own."""
        losses = [signal for signal in series if signal.kind == "eval_loss" and float(badness(signal).min()) > 0.0]
        left = [signal for signal in losses if self._rise(signal) >= self.left_best]
        scores = [signal for signal in series if signal.kind == "metric"]
        if not left or len(left) < len(losses) or any(self._kept(signal) for signal in scores):
            return None
        return f"{left[0].name!r} ends at {self._rise(left[0]):.3g} times the best it held"

    def _rise(self, signal: Signal) -> float:
        """Return the last level of a held-out loss over its best one, by medians, which one point cannot move."""
        values = badness(signal)
        levels = np.array([float(np.median(part)) for part in np.array_split(values, min(TENTH, len(values) // 3))])
        return float(levels[-1] / levels.min())

    def _kept(self, signal: Signal) -> bool:
        values = badness(signal)
        span = float(np.subtract(*np.quantile(values, (1 - 1 / TENTH, 1 / TENTH))))
        return float(_ends(values)[1] - values.min()) <= self.kept * span or self._is_good(signal)


def held_out_series(signals: Sequence[Signal]) -> list[Signal]:
    """Return the held-out losses, and the held-out metrics of which it is known what is better, that ever change."""
    metrics = [
        signal
        for signal in of_kind(signals, "metric")
        if signal.metadata.get("split") == "eval" and "higher_is_better" in signal.metadata
    ]
    found = [signal for signal in (*of_kind(signals, "eval_loss"), *metrics) if signal.layer is None]
    return [s for s in found if count_of(s) and float(np.ptp(s.values[np.isfinite(s.values)])) > 0.0]


def _unplaced_metrics(signals: Sequence[Signal]) -> list[Signal]:
    """Return the metrics that may be held out, though they do not say so; none where others do."""
    metrics = [signal for signal in of_kind(signals, "metric") if "higher_is_better" in signal.metadata]
    if any(signal.metadata.get("split") == "eval" for signal in metrics):
        return []
    return [signal for signal in metrics if signal.layer is None and "train" not in signal.name.lower()]


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return where a series began and where it ended, by the medians of three points."""
    return float(np.median(values[:3])), float(np.median(values[-3:]))
