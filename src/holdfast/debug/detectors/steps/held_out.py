"""Held-out evidence against a run whose training loss falls: too little for an alarm, too much to call it healthy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.steps.baseline import TENTH
from holdfast.debug.detectors.steps.progress import ProgressRule, badness, count_of
from holdfast.debug.detectors.steps.score import ACCURACY
from holdfast.debug.detectors.steps.select import SelectRule, evaluation_losses, of_kind
from holdfast.debug.types import Signal

__all__ = ["HeldOutRule", "Worse", "held_out_series"]


@dataclass(frozen=True, slots=True)
class Worse:
    """A held-out series that got worse: its reference level, its current level, and in what way."""

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
    """When held-out results keep a run from being called healthy."""

    minimum_points: int = 6
    """Minimum number of evaluations."""
    worse_pairs: float = 0.9
    """A series got worse if the late evaluation is worse in this fraction of the pairs of a late and an early one, …"""
    worse_span: float = 0.25
    """… by this fraction of its whole range, …"""
    worse_share: float = 0.15
    """… and of its first level: evaluations differ by a few percent."""
    few_points: int = 4
    """Minimum number of evaluations of a score that ends at its worst …"""
    sunk_evaluations: int = 3
    """… after it fell at each of this many last evaluations, …"""
    rare: int = 5
    """… if a training loss has at least this many times as many points: otherwise it may be a score of batches."""
    good: float = 0.9
    """An accuracy above this has little to lose."""
    alike: float = 1.5
    """Training and held-out loss that began within this factor of each other measure the same quantity …"""
    apart: float = 4.0
    """… and are far apart if one ends at this many times the other, …"""
    apart_gain: float = 0.1
    """… while the held-out loss never gained more than this fraction."""
    left_best: float = 1.5
    """A held-out loss that ends at this many times its best level has left it …"""
    kept: float = 0.1
    """… unless a held-out score ends within this fraction of its range from its best; the range is that of its middle
    four fifths, which a wild first evaluation does not widen."""
    gap: float = 0.3
    """Minimum held-out error rate at which training accuracies above ``good`` are memorised, if no held-out accuracy
    improved. With fewer than ``minimum_points`` evaluations, it also takes a held-out loss above all of the training
    loss's first three values, and ``apart`` from its last."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""
    progress: ProgressRule = field(default_factory=ProgressRule)
    """When a series improves."""

    def doubts(self, signals: Sequence[Signal]) -> str | None:
        """Return what keeps a run whose loss falls from being called healthy, or None."""
        if (worse := self.got_worse(signals)) is not None:
            return f"{worse.name!r} {worse.claim}"
        if (apart := self.fell_behind(signals)) is not None:
            return f"{apart.name!r} {apart.claim}"
        if (sunk := self.sank(signals)) is not None:
            return f"{sunk.name!r} {sunk.claim}"
        return self._left_its_best(self._series(signals)) or self._gap(signals) or self._fails_at_the_end(signals)

    def _series(self, signals: Sequence[Signal]) -> list[Signal]:
        """Return the series with enough evaluations; the batches of one evaluation are all at the same step."""
        return [s for s in held_out_series(signals) if len(np.unique(s.steps)) >= self.minimum_points <= count_of(s)]

    def got_worse(self, signals: Sequence[Signal]) -> Worse | None:
        """Return a held-out series that got worse if none improved, and that is not good nevertheless."""
        series = self._series(signals)
        worse = [signal for signal in series if self._is_worse(signal) and not self._is_good(signal)]
        others = [signal for signal in _unplaced_metrics(signals) if count_of(signal) >= self.minimum_points]
        if not worse or any(self.progress.beats_chance(signal) for signal in (*series, *others)):
            return None
        first, last = _ends(worse[0].values[np.isfinite(worse[0].values)])
        claim = f"got worse, from {first:.4g} to {last:.4g}, and nothing held out got better"
        return Worse(worse[0], first, last, claim)

    def sank(self, signals: Sequence[Signal]) -> Worse | None:
        """Return a score of a few evaluations that sank to the end, well below the first, if no other improved."""
        longest = max((count_of(s) for s in self.select.training_losses(signals)), default=0)
        scores = [
            signal
            for signal in of_kind(signals, "metric")
            if "higher_is_better" in signal.metadata
            and signal.layer is None
            and "train" not in signal.name.lower()
            and self.few_points <= count_of(signal) <= longest // self.rare
            and self.select.began(signal.steps)
        ]
        sunk = [signal for signal in scores if self._sinks(signal) and not self._is_good(signal)]
        if not sunk or any(badness(signal)[-1] < badness(signal)[0] for signal in scores):
            return None
        deepest = max(sunk, key=_fallen_share)
        first, last = float(deepest.values[0]), float(deepest.values[-1])
        claim = f"sank from {first:.4g} to {last:.4g}, lower at each of the last evaluations"
        return Worse(deepest, first, last, claim)

    def _sinks(self, signal: Signal) -> bool:
        values = badness(signal)
        steadily = bool(np.all(np.diff(values[-1 - self.sunk_evaluations :]) > 0.0))
        return steadily and values[-1] == values.max() and _fallen_share(signal) >= self.worse_share

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
            return None  # Of several losses it is unknown which measure the same quantity.
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
        """Return a claim that training accuracy is high while held-out accuracy is low and never improved."""
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

    def _fails_at_the_end(self, signals: Sequence[Signal]) -> str | None:
        """Return a claim that the few evaluations there are end with wrong answers, and worse than training began."""
        held_out = [s for s in of_kind(signals, "metric") if s.metadata.get("split") == "eval" and count_of(s)]
        shares = [s for s in held_out if ACCURACY.search(s.name) and s.layer is None]
        losses = [s for s in evaluation_losses(signals) if count_of(s)]
        training = [s for s in self.select.training_losses(signals) if count_of(s) >= self.minimum_points]
        if not shares or not losses or not training or any(count_of(s) >= self.minimum_points for s in shares):
            return None
        ends = [float(self.select.as_share(s.values[np.isfinite(s.values)])[-1]) for s in shares]
        last = min(float(s.values[np.isfinite(s.values)][-1]) for s in losses)
        own = [s.values[np.isfinite(s.values)] for s in training]
        worse = all(last > float(values[:3].max()) and last >= self.apart * _ends(values)[1] for values in own)
        if not worse or max(ends) > 1.0 - self.gap:
            return None
        return f"{shares[0].name!r} ends at {max(ends):.3g}, and {losses[0].name!r} above all of {training[0].name!r}"

    def _left_its_best(self, series: Sequence[Signal]) -> str | None:
        """Return a claim that every held-out loss ends well above its best level, and no score stayed near its best."""
        losses = [signal for signal in series if signal.kind == "eval_loss" and float(badness(signal).min()) > 0.0]
        left = [signal for signal in losses if self._rise(signal) >= self.left_best]
        scores = [signal for signal in series if signal.kind == "metric"]
        if not left or len(left) < len(losses) or any(self._kept(signal) for signal in scores):
            return None
        return f"{left[0].name!r} ends at {self._rise(left[0]):.3g} times the best it held"

    def _rise(self, signal: Signal) -> float:
        """Return the ratio of the last level of a held-out loss to its best, by medians, robust to single points."""
        values = badness(signal)
        levels = np.array([float(np.median(part)) for part in np.array_split(values, min(TENTH, len(values) // 3))])
        return float(levels[-1] / levels.min())

    def _kept(self, signal: Signal) -> bool:
        values = badness(signal)
        span = float(np.subtract(*np.quantile(values, (1 - 1 / TENTH, 1 / TENTH))))
        return float(_ends(values)[1] - values.min()) <= self.kept * span or self._is_good(signal)


def _fallen_share(signal: Signal) -> float:
    """Return the fraction of its first level by which a score ends worse."""
    values = badness(signal)
    return float(values[-1] - values[0]) / max(abs(float(values[0])), float(np.finfo(np.float64).tiny))


def held_out_series(signals: Sequence[Signal]) -> list[Signal]:
    """Return the held-out losses that ever change, and the held-out metrics whose better direction is known."""
    metrics = [
        signal
        for signal in of_kind(signals, "metric")
        if signal.metadata.get("split") == "eval" and "higher_is_better" in signal.metadata
    ]
    found = [signal for signal in (*of_kind(signals, "eval_loss"), *metrics) if signal.layer is None]
    return [s for s in found if count_of(s) and float(np.ptp(s.values[np.isfinite(s.values)])) > 0.0]


def _unplaced_metrics(signals: Sequence[Signal]) -> list[Signal]:
    """Return the metrics that may be held out although their names do not say so; none if others do."""
    metrics = [signal for signal in of_kind(signals, "metric") if "higher_is_better" in signal.metadata]
    if any(signal.metadata.get("split") == "eval" for signal in metrics):
        return []
    return [signal for signal in metrics if signal.layer is None and "train" not in signal.name.lower()]


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    """Return the first and last level of a series, as medians of three points."""
    return float(np.median(values[:3])), float(np.median(values[-3:]))
