"""A run in which nothing improved: no loss, no metric and no reward, at any point."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.debug.detectors.steps.progress import ProgressRule, badness, count_of
from holdfast.debug.detectors.steps.select import SelectRule, evaluation_losses, main_losses, of_kind
from holdfast.debug.types import LOSS_LIKE, Signal

__all__ = ["StandstillRule"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandstillRule:
    """When no series of a run improved.

    Weaker than a loss that stays at its first level, for runs in which noise or a rise hides that. A training loss
    alone is not enough: that of a good model being fine-tuned, or of a diffusion model, is just as flat.
    """

    minimum_points: int = 20
    """Minimum number of points of the series that is judged."""
    beside_points: int = 5
    """Minimum number of points of another series that may show improvement."""
    good: float = 0.9
    """An accuracy that ends above this leaves little to learn: the model was already trained."""
    small: float = 0.02
    """So does a loss that begins below this: one for classes or standardised targets is higher."""
    least_gain: float = 0.02
    """Minimum fraction of its level by which the last third of a series must be better than the first: less is
    noise."""
    halted_share: float = 0.5
    """Minimum fraction of rows in which a learning rate is 0: a schedule may end there …"""
    halted_digits: float = 1e-5
    """… if another row shows a rate as small as this: with fewer digits an ordinary rate is also printed as 0."""
    frozen_points: int = 20
    """Minimum number of final points at which a loss is identical to the last digit, and of points before that give its
    noise …"""
    frozen_share: float = 0.2
    """… the minimum fraction of the log that these are …"""
    frozen_noise: float = 0.01
    """… if neighbours differed by more than this fraction of the level before …"""
    frozen_level: float = 0.5
    """… and it is at more than this fraction of its start: fully learnt losses differ by less than is printed."""
    motionless_points: int = 20
    """Minimum number of points at which a loss, and everything else that was measured, must be identical for a finding
    …"""
    motionless_digits: int = 2
    """… if the loss shows at least this many digits: with one, a small loss looks constant while it falls."""
    progress: ProgressRule = field(default_factory=ProgressRule)
    """When a series improves."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""

    def find(self, signals: Sequence[Signal]) -> Signal | None:
        """Return the series by which a run is judged if neither it nor any other improved.

        An agent is judged by its reward, under separate rules: its losses say nothing.
        """
        like = [s for s in of_kind(signals, *LOSS_LIKE) if s.layer is None and np.isfinite(s.values[-1:]).all()]
        if of_kind(signals, "reward", "entropy", "kl", "value_loss"):
            return None
        judged = [*main_losses(signals), *evaluation_losses(signals)]
        judged = judged or [s for s in like if s.kind == "metric" and s.metadata.get("higher_is_better") is not None]
        halted = self.halted(signals) is not None
        long = [s for s in judged if s in like and count_of(s) >= self.minimum_points]
        long = [s for s in long if halted or self.select.began(s.steps)]
        witnessed = any(
            count_of(s) >= self.beside_points
            and (s.kind in ("eval_loss", "perplexity") or s.metadata.get("higher_is_better") is not None)
            for s in like
        )
        if not witnessed or not long or any(self._is_good(signal) for signal in like):
            return None
        told = [signal for signal in like if count_of(signal) >= self.beside_points]
        return None if any(self._gained(signal, halted=halted) for signal in told) else long[0]

    def halted(self, signals: Sequence[Signal]) -> Signal | None:
        """Return a learning rate that is 0, or printed as 0 with enough digits, in most rows; no other may be more.

        It explains why nothing else moves, even in an excerpt.
        """
        rates = of_kind(signals, "lr")
        zero = all(float(np.mean(rate.values == 0.0)) >= self.halted_share for rate in rates)
        fine = any(np.any((rate.values > 0.0) & (rate.values <= self.halted_digits)) for rate in rates)
        return rates[0] if zero and fine else None

    def frozen(self, signals: Sequence[Signal]) -> tuple[Signal, int] | None:
        """Return a loss whose batches differed and that is identical to the last digit from some point to the end.

        From there on nothing is learnt or measured. A loss that falls smoothly to its minimum has converged, and may be
        measured on all data at each step.
        """
        for signal in main_losses(signals):
            values = signal.values[np.isfinite(signal.values)]
            last = np.flatnonzero(values != values[-1]) if len(values) else values
            begin = int(last[-1]) + 1 if len(last) else 0
            before = values[max(0, begin - self.frozen_points) : begin]
            if len(values) - begin < max(self.frozen_points, self.frozen_share * len(values)):
                continue
            if len(before) < self.frozen_points or values[-1] <= self.frozen_level * float(np.median(before)):
                continue
            if values[-1] > before.max():  # It rose: another failure, wherever it stays.
                continue
            started = float(np.median(values[: self.beside_points]))
            alike = float(np.median(np.abs(np.diff(before)))) <= self.frozen_noise * abs(float(values[-1]))
            if not alike and float(values[-1]) > self.frozen_level * started:
                return signal, begin
        return None

    def motionless(self, signals: Sequence[Signal]) -> Signal | None:
        """Return a loss that is identical to the last digit at every point, as is everything else that was measured.

        Changing batches or parameters move any loss, whatever its sign.
        """
        measured = [s for s in of_kind(signals, *LOSS_LIKE, "value_loss", "entropy", "kl") if s.layer is None]
        told = [s for s in measured if count_of(s) >= self.beside_points]
        if any(float(np.ptp(s.values[np.isfinite(s.values)])) > 0.0 for s in told):
            return None
        long = [s for s in main_losses(signals) if count_of(s) >= self.motionless_points]
        long = [s for s in long if self._digits(float(s.values[0])) >= self.motionless_digits]
        return next((s for s in long if "not_collected" not in s.metadata and self.select.began(s.steps)), None)

    @staticmethod
    def _digits(value: float) -> int:
        """Return the number of significant digits of a number."""
        digits = f"{abs(value):.12g}".partition("e")[0].replace(".", "")
        return len(digits.strip("0"))

    def _gained(self, signal: Signal, *, halted: bool) -> bool:
        """Return whether a series improved, beyond chance or by more than ``least_gain``."""
        values = badness(signal)
        third = max(1, len(values) // 3)
        gain = float(np.median(values[:third]) - np.median(values[-third:]))
        better = self.progress.got_better(signal) if halted else self.progress.beats_chance(signal)
        return better or gain > self.least_gain * abs(float(np.median(values[:third])))

    def _is_good(self, signal: Signal) -> bool:
        """Return whether a series leaves little to gain."""
        values = signal.values[np.isfinite(signal.values)]
        if signal.kind == "metric" and signal.metadata.get("higher_is_better") and len(values):
            return self.good <= float(np.median(self.select.as_share(values)[-3:])) <= 1.0
        return signal.kind in ("loss", "eval_loss") and len(values) > 0 and 0.0 <= float(values[0]) < self.small
