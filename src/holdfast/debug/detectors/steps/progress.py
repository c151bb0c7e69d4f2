"""Whether a series improved: a healthy run needs one that did, and a stuck run has none."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.steps.baseline import noise_of
from holdfast.debug.types import Signal

__all__ = ["ProgressRule", "badness", "count_of", "is_fraction"]

# Fractions that may be written in percent; a PSNR of 30 is not one.
_PERCENT = re.compile(r"(?:^|[^a-z])(?:m?acc(?:uracy)?|top|f1|m?dice|m?iou|m?ap|auc|precision|recall)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgressRule:
    """When a series improved, when it ended worse than it began, and when it left its best level."""

    worse: float = 0.1
    """A series may end this fraction of its range worse than it began: the last few points are noise."""
    better_deviations: float = 2.0
    """A series improved if its last third is below its first more often than chance allows, by this many standard
    deviations …"""
    better_start: float = 0.9
    """… or if it began above this fraction of its last third: many fall in their first rows and then stay level."""
    start_points: int = 3
    """Number of rows it began with."""
    most_compared: int = 2048
    """Maximum number of points of a third that are compared."""
    least_fall: float = 0.02
    """Minimum fraction of its level by which a loss must have fallen: one that falls by less may have learnt
    nothing."""
    least_gain: float = 0.02
    """The same for an accuracy: of its value or of what is missing to 1, whichever is less."""
    far_above_best: float = 3.0
    """A loss that ends at this many times its best level has left it and may have lost its progress …"""
    best_noises: float = 2.0
    """… beyond this many times the noise of a level, since the best of many levels is partly luck, …"""
    best_parts: int = 50
    """… if both levels are medians of 1/n of its points, …"""
    best_points: int = 12
    """… with at least this many points, …"""
    usual_share: float = 0.5
    """… unless its last level was usual for this last fraction of its points, unlike the lowest of noisy ones: …"""
    far_fall: float = 0.2
    """… both their median and its last level are below this fraction of its first …"""
    late_share: float = 0.25
    """… and the median of this last fraction of its points …"""
    usual_rise: float = 1.5
    """… is at most this many times that of the others among them, whose highest is above the last level."""
    stretches: int = 10
    """A best that was lost, and not only left, is that of 1/n of the points, …"""
    least_stretch: int = 5
    """… and of at least this many."""
    halved: float = 0.5
    """A series without a name falls as only a loss does if it ends below this fraction of its first level, …"""
    counted: float = 1.0
    """… began above this, as learning rates, accuracies and other fractions do not, …"""
    steady: float = 0.1
    """… and never regained more than this fraction of its fall."""
    converged: float = 0.001
    """A loss that ends below this fraction of its start has converged: factors between its last values are noise."""

    def improves(self, signal: Signal) -> bool:
        """Return whether a short series improves: its end is below its start, and no point is far above it."""
        values = badness(signal)
        fall = float(values[0] - values[-1])
        return fall > 0.0 and float(values.max() - values[0]) <= self.worse * fall

    def got_better(self, signal: Signal) -> bool:
        """Return whether a series ends better than it began, beyond chance and by more than a trace."""
        return self.beats_chance(signal) and not self._hardly_gained(signal)

    def _hardly_gained(self, signal: Signal) -> bool:
        """Return whether a fraction gained almost nothing, by the level of its last third or by its best tenth."""
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
        """Return whether a series is better at its end than at its start, beyond chance."""
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
        """Return whether a loss ends many times above the best level it held for a few points."""
        values = badness(signal)
        if len(values) < self.best_points or float(values.min()) <= 0.0:
            return False
        values = values[:: -max(1, len(values) // self.most_compared)][::-1]  # with its last point
        width = max(self.start_points, len(values) // self.best_parts)
        held = np.median(np.lib.stride_tricks.sliding_window_view(values, width), axis=-1)
        lost = float(held[-1]) > self.converged * float(held[0])
        luck = float(np.exp(self.best_noises * noise_of(np.log(values)) / np.sqrt(width)))
        left = lost and float(held[-1]) > self.far_above_best * luck * float(held.min())
        return left and not self._is_usual(values, float(held[0]), float(held[-1]))

    def _is_usual(self, values: NDArray[np.float64], first: float, last: float) -> bool:
        """Return whether a loss fell far and ends where it has been for half of the run, without having risen."""
        settled = values[-max(self.best_points, int(self.usual_share * len(values))) :]
        late = max(self.start_points, int(self.late_share * len(values)))
        if len(settled) < 2 * late:
            return False
        before, after = float(np.median(settled[:-late])), float(np.median(settled[-late:]))
        far = max(float(np.median(settled)), last) <= self.far_fall * first
        return far and after <= self.usual_rise * before and last <= float(settled[:-late].max())

    def falls_throughout(self, signal: Signal) -> bool:
        """Return whether a series of whatever name falls as only a loss does: far, from above 1, and steadily."""
        values = signal.values[np.isfinite(signal.values)]
        if len(values) < self.best_points or len(values) < len(signal.values) or float(values.min()) < 0.0:
            return False
        levels = np.array([float(np.median(part)) for part in np.array_split(values, self.stretches)])
        fall = float(levels[0] - levels[-1])
        regained = float(np.max(levels - np.minimum.accumulate(levels)))
        far = float(levels[0]) > self.counted and float(levels[-1]) <= self.halved * float(levels[0])
        return far and regained <= self.steady * fall and not self.ends_in_a_jump(signal)

    def ends_in_a_jump(self, signal: Signal) -> bool:
        """Return whether the last point of a loss is many times above every earlier one."""
        values = badness(signal)
        return len(values) > 1 and float(values[-1]) > self.far_above_best * float(np.abs(values[:-1]).max())

    def lost_its_best(self, signal: Signal) -> bool:
        """Return whether every point of the last range is many times above every one of the best range.

        Stricter than ``left_its_best``, and robust to the noise of single points.
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


def is_fraction(name: str) -> bool:
    """Return whether a metric of this name is a fraction, possibly in percent, such as an accuracy."""
    return _PERCENT.search(name) is not None


def count_of(signal: Signal) -> int:
    """Return the number of values of a series that are numbers."""
    return int(np.isfinite(signal.values).sum())


def badness(signal: Signal) -> NDArray[np.float64]:
    """Return the finite values, with the sign under which lower is better."""
    values = signal.values[np.isfinite(signal.values)]
    better_up = signal.metadata.get("higher_is_better") or signal.kind == "reward"
    return -values if better_up else values
