"""Whether an agent gets better: its reward says so, its losses rise and fall for reasons of their own."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.steps.baseline import TENTH
from holdfast.debug.detectors.steps.select import finite_median, of_kind
from holdfast.debug.types import Signal

__all__ = ["NOT_TRAINED", "Fall", "RewardRule"]


_MEAN = re.compile(r"(?:^|[^a-z])(?:mean|avg|average|ma\d*)(?:[^a-z]|$)", re.IGNORECASE)


# What was measured of a policy that does not learn: of a trained one, of one to compare with. Flat by design.
NOT_TRAINED = re.compile(
    r"(?:^|[^a-z])(?:test(?:ing)?|eval(?:uation)?|valid(?:ation)?|val|random|baseline|human|expert|demo|teacher|ref)"
    r"(?:[^a-z]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Fall:
    """A reward that lost all it had gained: its level at its best and at the end, and the point the fall began at."""

    best: float
    end: float
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRule:
    """When a reward rises, and when it at least does not fall."""

    tolerance: float = 0.1
    """A reward that ends within this share of where it began did not fall."""
    minimum_points: int = 3
    """Fewer rewards than this say nothing."""
    parts: int = 5
    """Early and late rewards are those of the first and of the last of this many parts."""
    win_share: float = 0.6
    """Of pairs of a late and an early reward, the share in which the late one must be higher: one half is chance."""
    blocks: int = 20
    """Blocks over which the slow ups and downs of rewards are seen …"""
    block_points: int = 8
    """… of at least this many points each …"""
    minimum_blocks: int = 5
    """… and at least this many blocks."""
    wandering: float = 2.0
    """How many times the difference of neighbouring blocks late rewards must be above early ones: less is wandering."""

    given_back_share: float = 0.3
    """The share of its gain that a reward may lose at the end and still have shown that its agent got better."""
    fall_share: float = 0.9
    """Of pairs of a reward at its best and a late one, the share in which the late one must be lower to have fallen."""
    fall_points: int = 300
    """The rewards, spread over the run, that this is decided by."""
    lowest_share: float = 0.05
    """The share of all earlier rewards that may lie below the last tenth: a swing ends where it was before."""
    flat_points: int = 500
    """Rewards from which one that never rises says that nothing was learnt: many agents need hundreds of episodes."""
    mean_points: int = 200
    """The same for means over many episodes, which one that wandered down as far as up was not raised by."""
    flat_noises: float = 0.5
    """How far the mean of any tenth may be from that of the first, in units of how far rewards of one tenth differ …"""
    flat_step: float = 2.0
    """… and how far the first may lie below the others, in units of how far these differ: more was learnt at first."""
    flat_start_errors: float = 3.0
    """How many standard errors the first hundredth may lie below the first tenth: more was learnt at once."""
    floor_points: int = 200
    """Rewards from which one that lies at the lowest there is says the same …"""
    floor_share: float = 0.75
    """… at this share of the points of its second half, where the mean of that half is no better than of the first."""
    constant_points: int = 100
    """Rewards from which one that is the same at every point, and not above zero, says that nothing is earned …"""
    constant_share: float = 1e-3
    """… to within this share of it."""
    many_steps: float = 1e6
    """Steps after which a reward that is still nothing, or still where it began, is not merely late: few rows do …"""
    still_points: int = 8
    """… if this many means are all exactly 0, or the same, next to nothing and beside an idle value function, …"""
    still_level: float = 0.05
    """… where next to nothing is at most this, …"""
    idle_value_loss: float = 1e-6
    """… and one whose loss is at most this has nothing to predict; …"""
    still_means: int = 50
    """… or if each tenth of this many means below zero …"""
    still_share: float = 0.05
    """… lies within this share of the level they began at, and the last is no better."""
    ceiling_share: float = 0.05
    """The share of the rewards that are the highest there is, from which there may be no more to learn."""

    def holds(self, signals: Sequence[Signal]) -> bool:
        """Return whether a reward was logged and did not fall: an agent's loss may rise as it gets better.

        One that is the same at every point measures nothing.
        """
        for signal in of_kind(signals, "reward"):
            values = signal.values[np.isfinite(signal.values)]
            if len(values) >= self.minimum_points and float(np.ptp(values)) > 0.0:
                third = max(1, len(values) // 3)
                before, after = float(np.median(values[:third])), float(np.median(values[-third:]))
                return after >= before - self.tolerance * abs(before)
        return False

    def any_rises(self, signals: Sequence[Signal]) -> bool:
        """Return whether a reward was logged that is clearly higher at the end than at the beginning."""
        rewards = [signal for signal in of_kind(signals, "reward") if len(signal.values) >= self.minimum_points]
        return any(self.rises(signal) for signal in rewards)

    def rises(self, signal: Signal) -> bool:
        """Return whether late values beat early ones clearly more often than chance, and by more than they wander."""
        values = signal.values[np.isfinite(signal.values)]
        width = max(1, min(len(values) // 2, max(3, len(values) // self.parts)))
        early, late = values[:width], values[-width:]
        if not len(early) or _wins(late, early) < self.win_share:
            return False
        blocks = min(self.blocks, len(values) // self.block_points)
        if blocks < self.minimum_blocks:
            return True
        levels = np.array([np.median(part) for part in np.array_split(values, blocks)])
        gain = float(np.median(late) - np.median(early))
        return gain > 0.0 and gain >= self.wandering * float(np.median(np.abs(np.diff(levels))))

    def given_back(self, signal: Signal) -> bool:
        """Return whether a reward ends well below the best it held: a good part of its gain is gone.

        By means: an agent that fails in every other episode has the median of one that never does.
        """
        values = signal.values[np.isfinite(signal.values)]
        blocks = min(self.blocks, len(values) // self.block_points)
        if blocks < self.minimum_blocks:
            return False
        levels = np.array([float(part.mean()) for part in np.array_split(values, blocks)])
        best, wander = float(levels.max()), float(np.median(np.abs(np.diff(levels))))
        fell = best - float(levels[-1])
        return fell >= self.given_back_share * (best - float(levels[0])) and fell >= self.wandering * wander > 0.0

    def stands(self, signal: Signal) -> bool:
        """Return whether a long and noisy reward is at its first level in every tenth, and not at a ceiling.

        Means, not medians: a reward that comes in one episode of twenty has a median of zero whatever is learnt.
        """
        values = signal.values[np.isfinite(signal.values)]
        averaged = bool(_MEAN.search(signal.name))
        if len(values) < (self.mean_points if averaged else self.flat_points):
            return False
        if float(np.mean(values == values.max())) >= self.ceiling_share:
            return False
        tenths = np.array_split(values, TENTH)
        levels = np.array([float(part.mean()) for part in tenths])
        noise = float(np.median([part.std() for part in tenths]))
        if averaged and abs(levels[-1] - levels[0]) <= noise:
            return float(levels.max() - levels[0]) <= float(levels[0] - levels.min())
        if float(np.abs(levels - levels[0]).max()) > self.flat_noises * noise:
            return False
        if float(np.median(levels[1:])) - levels[0] > self.flat_step * float(levels[1:].std()):
            return False
        start = tenths[0][: max(1, len(tenths[0]) // TENTH)]
        return float(levels[0] - start.mean()) <= self.flat_start_errors * noise / float(np.sqrt(len(start)))

    def at_floor(self, signal: Signal) -> bool:
        """Return whether a reward is mostly the lowest there is later on, and no better on average.

        One that is the same at every point and above zero may be the highest there is.
        """
        values = signal.values[np.isfinite(signal.values)]
        level = float(np.abs(values).max(initial=0.0))
        if len(values) >= self.constant_points and float(np.ptp(values)) <= self.constant_share * level:
            return float(values[0]) <= 0.0
        early, late = np.array_split(values, 2)
        if len(values) < self.floor_points or float(np.ptp(values)) == 0.0 or float(late.mean()) > float(early.mean()):
            return False
        return float(np.mean(late == values.min())) >= self.floor_share

    def never_rose(self, signal: Signal) -> bool:
        """Return whether a long reward that was logged from the beginning stayed where it was, or sank."""
        return self.stands(signal) or self.at_floor(signal) or self._hardly_moves(signal)

    def earns_nothing(self, signal: Signal, critics: Sequence[Signal]) -> bool:
        """Return whether a reward is zero at every point, in a run so long that an excerpt is enough to tell."""
        values = signal.values[np.isfinite(signal.values)]
        if len(values) < self.still_points or float(signal.steps[-1]) < self.many_steps or float(np.ptp(values)) > 0.0:
            return False
        idle = [critic for critic in critics if finite_median(np.abs(critic.values)) <= self.idle_value_loss]
        level = float(values[0])
        return level == 0.0 or (0.0 < level <= self.still_level and bool(idle))

    def _hardly_moves(self, signal: Signal) -> bool:
        """Return whether means over many steps stay close to a level below zero, and end no better than they began.

        One above zero may be the highest there is.
        """
        values = signal.values[np.isfinite(signal.values)]
        spans = float(signal.steps[-1] - signal.steps[0]) >= self.many_steps
        if len(values) < self.still_means or not spans or not _MEAN.search(signal.name):
            return False
        tenths = np.array_split(values, TENTH)
        levels = np.array([float(part.mean()) for part in tenths])
        start = float(np.median(values[: self.minimum_points]))
        noise = float(np.median([part.std() for part in tenths]))
        near = float(np.abs(np.append(levels, start) - levels[0]).max()) <= self.still_share * -float(levels[0])
        return near and float(levels[-1] - levels[0]) <= noise

    def fall(self, signal: Signal) -> Fall | None:
        """Return a reward that rose, then lost all it had gained, and ends lower than it ever was.

        Decided by ranks, because returns of single episodes differ by as much as there is to lose: the third at which
        the reward was best beats the first third by ``win_share`` and the last one by ``fall_share`` of all pairs.
        """
        places = np.flatnonzero(np.isfinite(signal.values))
        places = places[:: max(1, len(places) // self.fall_points)]  # All pairs and all thirds are looked at.
        values = signal.values[places]
        third, tenth = len(values) // 3, max(2, len(values) // 10)
        if third < self.minimum_points:
            return None
        windows = np.lib.stride_tricks.sliding_window_view(values[:-third], third)
        begin = int(np.argmax(np.median(windows, axis=-1)))
        early, best, late = values[:third], windows[begin], values[-third:]
        rose = begin > 0 and _wins(best, early) >= self.win_share
        if not rose or _wins(best, late) < self.fall_share or float(np.median(late)) > float(np.median(early)):
            return None
        end = float(np.median(values[-tenth:]))
        if float(np.mean(values[:-tenth] < end)) > self.lowest_share:
            return None
        top = float(np.median(best))
        high = np.flatnonzero(values >= (top + end) / 2)
        return Fall(top, end, int(places[min(int(high[-1]) + 1, len(places) - 1)]))


def _wins(values: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return of all pairs of a value and another, the share in which the value is higher; ties count half."""
    ranked = np.sort(others)
    below = np.searchsorted(ranked, values, side="left") + np.searchsorted(ranked, values, side="right")
    return float(below.mean()) / (2.0 * len(ranked))
