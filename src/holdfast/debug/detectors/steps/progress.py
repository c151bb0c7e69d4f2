"""Whether a loss-like series got better: what *healthy* needs one to show, and what no series of a stuck run shows."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.types import Signal

__all__ = ["ProgressRule", "badness", "count_of"]

# Shares that may be written in percent; a PSNR of 30 is none.
_PERCENT = re.compile(r"(?:^|[^a-z])(?:m?acc(?:uracy)?|top|f1|m?dice|m?iou|m?ap|auc|precision|recall)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRule:
    """When a series got better, when it ended worse than it began, and when it left the best it held."""

    worse: float = 0.1
    """A series may end this share of its span worse than it began: the last few points are noise."""
    better_deviations: float = 2.0
    """A series got better where its last third is below its first more often than chance allows, by this many standard
    deviations of that share …"""
    better_start: float = 0.9
    """… or where it began above this share of its last third: many fall in their first rows and rest after that."""
    start_points: int = 3
    """The rows it began with."""
    most_compared: int = 2048
    """Points of a third that are enough to compare."""
    least_fall: float = 0.02
    """The share of its level that a loss must have fallen by: what falls by less may have learnt nothing."""
    least_gain: float = 0.02
    """The same for a share of right answers: of what it was, or of what was missing, whichever is less."""
    far_above_best: float = 3.0
    """A loss that ends at this many times the best it held is not where it was: it may have been lost …"""
    best_parts: int = 50
    """… where both are the middle of this part of its points, …"""
    best_points: int = 12
    """… of which there are this many."""
    stretches: int = 10
    """A best that was lost and not only left is that of one in this many points, …"""
    least_stretch: int = 5
    """… and of this many at least."""
    converged: float = 0.001
    """A loss that ends below this share of its start has converged: by what factor it differs there is noise."""

    def improves(self, signal: Signal) -> bool:
        """Return whether a short series gets better: its end below its beginning, and no point far above it."""
        values = badness(signal)
        fall = float(values[0] - values[-1])
        return fall > 0.0 and float(values.max() - values[0]) <= self.worse * fall

    def got_better(self, signal: Signal) -> bool:
        """Return whether a series ends better than it began, beyond chance and by more than a trace."""
        return self.beats_chance(signal) and not self._hardly_gained(signal)

    def _hardly_gained(self, signal: Signal) -> bool:
        """Return whether a share gained next to nothing, by the level of its last third or by its best tenth."""
        values = signal.values[np.isfinite(signal.values)]
        if signal.kind != "metric" or not signal.metadata.get("higher_is_better") or float(values.min()) < 0.0:
            return False
        if float(values.max()) > 1.0:
            if float(values.max()) > 100.0 or not _PERCENT.search(signal.name):
                return False
            values = values / 100.0
        began = min(float(np.median(values[: self.start_points])), float(np.median(values[: len(values) // 3])))
        best = float(np.median(np.sort(values)[-max(self.start_points, len(values) // 10) :]))
        return best - began < self.least_gain * min(best, 1.0 - began)

    def beats_chance(self, signal: Signal) -> bool:
        """Return whether a series is better at its end than at its beginning, beyond chance."""
        values = badness(signal)
        stride = max(1, len(values) // 3 // self.most_compared)
        early, late = np.sort(values[: len(values) // 3][::stride]), values[-(len(values) // 3) :][::stride]
        above = len(early) - np.searchsorted(early, late, side="right")
        ties = np.searchsorted(early, late, side="right") - np.searchsorted(early, late, side="left")
        share = float(np.mean(above + ties / 2)) / len(early)
        chance = float(np.sqrt((len(early) + len(late) + 1) / (12 * len(early) * len(late))))
        began = float(np.median(values[: self.start_points]))
        best = float(np.median(late))
        if signal.kind in ("loss", "eval_loss") and best > 0.0 and began - best < self.least_fall * began:
            return False
        return share >= min(1.0, 0.5 + self.better_deviations * chance) or began > float(
            np.quantile(late, self.better_start)
        )

    def ends_worse(self, signal: Signal) -> bool:
        """Return whether the last tenth of a series is clearly worse than its first."""
        values = badness(signal)
        width = max(1, len(values) // 10)
        first, last = float(np.median(values[:width])), float(np.median(values[-width:]))
        return last - first > self.worse * float(np.ptp(values))

    def left_its_best(self, signal: Signal) -> bool:
        """Return whether a loss ends many times above the best it held for a few points."""
        values = badness(signal)
        if len(values) < self.best_points or float(values.min()) <= 0.0:
            return False
        values = values[:: -max(1, len(values) // self.most_compared)][::-1]  # with its last point
        width = max(self.start_points, len(values) // self.best_parts)
        held = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=-1)
        lost = float(held[-1]) > self.converged * float(held[0])
        return lost and float(held[-1]) > self.far_above_best * float(held.min())

    def ends_in_a_jump(self, signal: Signal) -> bool:
        """Return whether the last point of a loss lies many times above every one before it."""
        values = badness(signal)
        return len(values) > 1 and float(values[-1]) > self.far_above_best * float(np.abs(values[:-1]).max())

    def lost_its_best(self, signal: Signal) -> bool:
        """Return whether every point of the last stretch lies many times above every one of the best stretch.

        Stricter than :meth:`left_its_best`, and beyond what the noise of single points does.
        """
        values = badness(signal)
        width = max(self.least_stretch, len(values) // self.stretches)
        if len(values) < 2 * width or float(values.min()) <= 0.0 or not self.left_its_best(signal):
            return False
        values = values[:: -max(1, len(values) // self.most_compared)][::-1]
        width = max(self.least_stretch, len(values) // self.stretches)
        held = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=-1)
        best = int(np.argmin(held))
        return float(values[-width:].min()) > float(values[best : best + width].max())


def count_of(signal: Signal) -> int:
    """Return how many numbers a series has."""
    return int(np.isfinite(signal.values).sum())


def badness(signal: Signal) -> NDArray[np.float64]:
    """Return the finite values with the sign that makes lower better."""
    values = signal.values[np.isfinite(signal.values)]
    better_up = signal.metadata.get("higher_is_better") or signal.kind == "reward"
    return -values if better_up else values
