"""Whether an agent improves, judged by its reward; its losses rise and fall for other reasons."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.steps.baseline import TENTH
from holdfast.debug.detectors.steps.select import SelectRule, finite_median, of_kind
from holdfast.debug.types import Signal

__all__ = ["NOT_TRAINED", "Fall", "RewardRule", "is_running_mean"]


# What DPO, KTO, ORPO and their kin log of the two answers that they compare.
_PREFERENCE = re.compile(r"(?:^|[^a-z])rewards?[_ ./-](?:margins?|accurac(?:y|ies))(?:[^a-z]|$)", re.IGNORECASE)
_MEAN = re.compile(r"(?:^|[^a-z])(?:mean|avg|average|ma\d*)(?:[^a-z]|$)", re.IGNORECASE)


# Rewards of a policy that does not learn (a trained one, or a baseline) are flat by design.
NOT_TRAINED = re.compile(
    r"(?:^|[^a-z])(?:test(?:ing)?|eval(?:uation)?|valid(?:ation)?|val|random|baseline|human|expert|demo|teacher|ref)"
    r"(?:[^a-z]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Fall:
    """A reward that lost all it had gained: its best and final levels, and the point at which the fall began."""

    best: float
    end: float
    first: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardRule:
    """When a reward rises, and when it at least does not fall."""

    tolerance: float = 0.1
    """A reward that ends within this fraction of its start did not fall."""
    minimum_points: int = 3
    """Minimum number of rewards."""
    parts: int = 5
    """Early and late rewards are those in the first and last 1/n."""
    win_share: float = 0.6
    """Minimum fraction of pairs of a late and an early reward in which the late one is higher: one half is chance."""
    blocks: int = 20
    """Number of blocks that show the slow variation of rewards …"""
    block_points: int = 8
    """… of at least this many points each …"""
    minimum_blocks: int = 5
    """… and at least this many blocks."""
    wandering: float = 2.0
    """Minimum gain of late rewards over early ones, in differences of neighbouring blocks: less is random drift."""
    mean_gain: float = 0.05
    """Minimum gain of a running mean, as a fraction of its first level: the mean of an agent that learns nothing drifts
    by a few percent, for as long as its window."""

    preferred_share: float = 0.9
    """Minimum fraction of pairs of a late and an early reward margin, or accuracy, in which the late one is higher, for
    a preference to be learnt: such a loss begins at ln 2 and falls by little while it is …"""
    preferred_points: int = 8
    """… over at least this many points: among fewer, so clear an order is not rare by chance."""
    given_back_share: float = 0.3
    """Maximum fraction of its gain that a reward may lose at the end and still show that the agent improved …"""
    given_back_blocks: int = 2
    """… where the end is the mean of this many blocks, since a single one may be low by chance, or the last if that is
    higher: the reward came back."""
    fall_share: float = 0.9
    """Minimum fraction of pairs of a best and a late reward in which the late one is lower, for a fall."""
    fall_points: int = 300
    """Number of rewards, spread over the run, that decide this."""
    lowest_share: float = 0.05
    """Maximum fraction of all earlier rewards below the last tenth: a swing ends where it was before."""
    flat_points: int = 500
    """Minimum number of rewards for one that never rises to show that nothing was learnt: many agents need hundreds of
    episodes."""
    mean_points: int = 200
    """The same for means over many episodes, if they drifted down as far as up."""
    sunk_level: float = 0.25
    """Maximum fall of such means, as a fraction of their first level, if no tenth is above the first: a task that gets
    harder costs more."""
    flat_noises: float = 0.5
    """Maximum distance of the mean of any tenth from that of the first, in standard deviations within a tenth …"""
    flat_step: float = 2.0
    """… and maximum distance of the first below the others, in standard deviations between these: more was learnt at
    first."""
    flat_start_errors: float = 3.0
    """Maximum distance of the first hundredth below the first tenth in standard errors: more was learnt at once."""
    floor_points: int = 200
    """Minimum number of rewards for one at its minimum to show that nothing was learnt …"""
    floor_share: float = 0.75
    """… at this fraction of the points of its second half, if the mean of that half is no better than of the first."""
    constant_points: int = 100
    """Minimum number of rewards for one that is constant, and not above zero, to show that nothing is learnt …"""
    constant_share: float = 1e-3
    """… to within this fraction of it, …"""
    steady_share: float = 0.01
    """… or one of ``floor_points`` below zero whose standard deviation is below this fraction of its level, and whose
    second half is no better than its first, by standard errors (``flat_start_errors``): nothing that the agent tries
    makes a difference, …"""
    nothing_share: float = 0.75
    """… or one that is exactly 0, its minimum, at this fraction of the points of each half, and no better in the second
    …"""
    sunk_share: float = 0.9
    """… or one of which this fraction of all pairs of an early and a late reward sank, and no block of which was ever
    higher than its first by ``flat_noises``; of means over many episodes, ``still_means`` are enough for that."""
    sunk_evaluation: float = 0.4
    """The policy has collapsed if the return of an evaluation, whose task stays the same, sank in that way by at least
    this fraction of its first level …"""
    sunk_below_zero: float = 2.0
    """… or any other return above zero, whose task may get harder, by at least this fraction."""
    many_steps: float = 1e6
    """Steps after which a reward that is still nothing, or still at its start, is not merely late: few rows are enough
    …"""
    still_points: int = 8
    """… if this many means are all exactly 0, or equal, almost nothing and with an idle value function, …"""
    still_level: float = 0.05
    """… where almost nothing is at most this, …"""
    idle_value_loss: float = 1e-6
    """… and a value function whose loss is at most this has nothing to predict; …"""
    still_means: int = 50
    """… or if each tenth of this many means below zero …"""
    still_share: float = 0.05
    """… is within this fraction of their first level, and the last is no better."""
    settled: float = 0.15
    """An entropy that stays below this fraction of its start in the second half of a run, of ``blocks`` blocks of
    ``block_points`` points or more, is that of a policy that has settled: it hardly tries anything else."""
    one_answer: float = 0.02
    """An entropy that stays below this fraction of its start leaves one answer …"""
    one_answer_by: float = 0.5
    """… if it does so from this fraction of the run on, …"""
    one_answer_points: int = 50
    """… and has at least this many points."""
    idle_gain: float = 0.1
    """Maximum gain of a reward since then, as a fraction of it, if the value function is idle too."""
    stage_points: int = 100
    """Minimum number of rewards between two restarts of the counter of episodes for these to separate stages, each with
    its own task and level of rewards."""
    ceiling_share: float = 0.05
    """The fraction of rewards at the maximum from which there may be nothing more to learn."""
    select: SelectRule = field(default_factory=SelectRule)
    """Whether a log contains the beginning of its run."""

    def stages(self, signal: Signal) -> list[Signal]:
        """Return the parts of a reward between restarts of its counter: episodes do not come in passes over data."""
        restarts = signal.metadata.get("restarts")
        if restarts is None:
            return [signal]
        bounds = [0, *np.searchsorted(signal.steps, restarts).tolist(), len(signal.steps)]
        if min(np.diff(bounds[:-1]), default=0) < self.stage_points:
            return [signal]
        rest = {key: value for key, value in signal.metadata.items() if key != "restarts"}
        parts = [slice(begin, end) for begin, end in pairwise(bounds) if end > begin]
        return [replace(signal, steps=signal.steps[p], values=signal.values[p], metadata=rest) for p in parts]

    def holds(self, signals: Sequence[Signal]) -> bool:
        """Return whether a reward was logged and did not fall: an agent's loss may rise as it improves.

        A constant reward does not count.
        """
        for signal in of_kind(signals, "reward"):
            values = signal.values[np.isfinite(signal.values)]
            if len(values) >= self.minimum_points and float(np.ptp(values)) > 0.0:
                third = max(1, len(values) // 3)
                before, after = float(np.median(values[:third])), float(np.median(values[-third:]))
                return after >= before - self.tolerance * abs(before)
        return False

    def any_rises(self, signals: Sequence[Signal]) -> bool:
        """Return whether a logged reward is clearly higher at the end than at the start."""
        rewards = [signal for signal in of_kind(signals, "reward") if len(signal.values) >= self.minimum_points]
        return any(self.rises(signal) for signal in rewards)

    def prefers(self, signals: Sequence[Signal]) -> bool:
        """Return whether a preference is learnt: the better answers are told from the worse ones ever more clearly."""
        for signal in of_kind(signals, "metric", "reward", "other"):
            values = signal.values[np.isfinite(signal.values)]
            third = len(values) // 3
            if len(values) < self.preferred_points or not _PREFERENCE.search(signal.name):
                continue
            if _wins(values[-third:], values[:third]) >= self.preferred_share:
                return True
        return False

    def rises(self, signal: Signal) -> bool:
        """Return whether late values beat early ones clearly more often than chance, and by more than they drift."""
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
        if not gain > 0.0 or gain < self.wandering * float(np.median(np.abs(np.diff(levels)))):
            return False
        # Neighbouring blocks of a running mean share their episodes, and differ by less than it drifts.
        drifts = is_running_mean(signal) and len(values) >= self.mean_points
        return not drifts or gain >= self.mean_gain * abs(float(np.median(early)))

    def given_back(self, signal: Signal) -> bool:
        """Return whether a reward ends well below its best level: much of its gain is gone.

        Uses means: an agent that fails in almost every other episode has the median of one that never does.
        """
        values = signal.values[np.isfinite(signal.values)]
        blocks = min(self.blocks, len(values) // self.block_points)
        if blocks < self.minimum_blocks:
            return False
        levels = np.array([float(part.mean()) for part in np.array_split(values, blocks)])
        best, wander = float(levels.max()), float(np.median(np.abs(np.diff(levels))))
        fell = best - max(float(levels[-1]), float(levels[-self.given_back_blocks :].mean()))
        return fell >= self.given_back_share * (best - float(levels[0])) and fell >= self.wandering * wander > 0.0

    def stands(self, signal: Signal) -> bool:
        """Return whether a long and noisy reward is at its first level in every tenth, and not at a ceiling.

        Uses means: a reward that occurs in one episode of twenty has a median of zero whatever is learnt.
        """
        values = signal.values[np.isfinite(signal.values)]
        averaged = is_running_mean(signal)
        if len(values) < (self.mean_points if averaged else self.flat_points):
            return False
        if float(np.mean(values == values.max())) >= self.ceiling_share:
            return False
        tenths = np.array_split(values, TENTH)
        levels = np.array([float(part.mean()) for part in tenths])
        noise = float(np.median([part.std() for part in tenths]))
        if averaged and 0.0 <= float(levels[0] - levels[1:].max()) <= self.sunk_level * abs(float(levels[0])):
            return float(levels[0] - levels.min()) <= self.sunk_level * abs(float(levels[0]))
        if averaged and abs(levels[-1] - levels[0]) <= noise:
            return float(levels.max() - levels[0]) <= float(levels[0] - levels.min())
        if self._lucky_start(levels, noise, float(values.std())):
            return True
        if float(np.abs(levels - levels[0]).max()) > self.flat_noises * noise:
            return False
        if float(np.median(levels[1:])) - levels[0] > self.flat_step * float(levels[1:].std()):
            return False
        start = tenths[0][: max(1, len(tenths[0]) // TENTH)]
        return float(levels[0] - start.mean()) <= self.flat_start_errors * noise / float(np.sqrt(len(start)))

    def _lucky_start(self, levels: NDArray[np.float64], noise: float, spread: float) -> bool:
        """Return whether the first tenth was better than all others, which are at one level: luck, not learning.

        ``noise`` is that within a tenth, ``spread`` that of the run.
        """
        later = levels[1:]
        fell = float(levels[0] - later.max())
        back = float(np.max(later - np.minimum.accumulate(later)))  # the largest gain after a low
        return fell > 0.0 and float(levels[0] - later.min()) <= spread and back <= self.flat_noises * noise

    def at_floor(self, signal: Signal) -> bool:
        """Return whether a reward is mostly at its minimum later on, and no better on average.

        A constant reward above zero may be the maximum.
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
        """Return whether a long reward that was logged from the start stayed where it was, or sank."""
        stages = self.stages(signal)
        if len(stages) > 1:
            counted = [replace(stage, steps=stage.steps - stage.steps[0]) for stage in stages]
            return all(self.never_rose(stage) for stage in counted)
        return (
            self.stands(signal)
            or self.at_floor(signal)
            or self.hardly_moves(signal)
            or self._makes_no_difference(signal)
            or self._never_gains(signal)
        )

    def _makes_no_difference(self, signal: Signal) -> bool:
        """Return whether all of many rewards below zero are almost the same, and late ones no better than early ones.

        A level above zero may be the maximum.
        """
        values = signal.values[np.isfinite(signal.values)]
        if len(values) < self.floor_points or float(values.max()) >= 0.0:
            return False
        early, late = np.array_split(values, 2)
        spread = float(values.std())
        gain = float(late.mean() - early.mean())
        steady = spread <= self.steady_share * -float(values.mean())
        return steady and gain <= self.flat_start_errors * spread * float(np.sqrt(4.0 / len(values)))

    def _never_gains(self, signal: Signal) -> bool:
        """Return whether a reward that is too short to be called flat is zero at most points, or only sank."""
        values = signal.values[np.isfinite(signal.values)]
        if is_running_mean(signal) and self.still_means <= len(values) < self.constant_points:
            return self._only_sank(values) is not None
        if len(values) < self.constant_points or float(np.ptp(values)) == 0.0:
            return False
        early, late = np.array_split(values, 2)
        if float(values.min()) == 0.0 and float(late.mean()) <= float(early.mean()):
            return min(float(np.mean(early == 0.0)), float(np.mean(late == 0.0))) >= self.nothing_share
        return self._only_sank(values) is not None

    def _only_sank(self, values: NDArray[np.float64]) -> tuple[float, float] | None:
        """Return the first and last levels of a reward that sank and was never clearly above its first level."""
        blocks = np.array_split(values, min(self.blocks, len(values) // self.block_points))
        levels = np.array([float(block.mean()) for block in blocks])
        noise = float(np.median([block.std() for block in blocks]))
        width = len(values) // self.parts
        sank = _wins(values[:width], values[-width:]) >= self.sunk_share
        if not sank or float(levels.max() - levels[0]) > self.flat_noises * noise:
            return None
        return float(levels[0]), float(levels[-1])

    def sink(self, signal: Signal) -> Fall | None:
        """Return a reward above zero that only sank, and lost more than a task that gets harder explains."""
        places = np.flatnonzero(np.isfinite(signal.values))
        values = signal.values[places]
        if len(values) < self.constant_points or not self.select.began(signal.steps):
            return None
        levels = self._only_sank(values)
        if levels is None:
            return None
        first, last = levels
        least = self.sunk_evaluation if signal.metadata.get("split") == "eval" else self.sunk_below_zero
        if first <= 0.0 or first - last < least * first:
            return None
        return Fall(first, last, int(places[np.argmax(values < (first + last) / 2)]))

    def earns_nothing(self, signal: Signal, critics: Sequence[Signal]) -> bool:
        """Return whether a reward is zero at every point, in a run so long that an excerpt is enough to decide."""
        values = signal.values[np.isfinite(signal.values)]
        if len(values) < self.still_points or float(signal.steps[-1]) < self.many_steps or float(np.ptp(values)) > 0.0:
            return False
        idle = [critic for critic in critics if finite_median(np.abs(critic.values)) <= self.idle_value_loss]
        level = float(values[0])
        return level == 0.0 or (0.0 < level <= self.still_level and bool(idle))

    def hardly_moves(self, signal: Signal, *, steps: float | None = None) -> bool:
        """Return whether means over many steps stay close to a level below zero, and end no better than they began.

        A level above zero may be the maximum.
        """
        values = signal.values[np.isfinite(signal.values)]
        lasts = float(signal.steps[-1]) >= (self.many_steps if steps is None else steps)
        if len(values) < self.still_means or not lasts or not is_running_mean(signal):
            return False
        tenths = np.array_split(values, TENTH)
        levels = np.array([float(part.mean()) for part in tenths])
        start = float(np.median(values[: self.minimum_points]))
        noise = float(np.median([part.std() for part in tenths]))
        near = float(np.abs(np.append(levels, start) - levels[0]).max()) <= self.still_share * -float(levels[0])
        return near and float(levels[-1] - levels[0]) <= noise

    def settled_for_nothing(self, signals: Sequence[Signal]) -> tuple[Signal, Signal] | None:
        """Return a return that never left its first level, and the entropy of a policy that settled nevertheless."""
        rewards = of_kind(signals, "reward")
        entropy = next((signal for signal in of_kind(signals, "entropy") if self._settles(signal)), None)
        if entropy is None or not rewards or not all(self.hardly_moves(reward, steps=0.0) for reward in rewards):
            return None
        return (rewards[0], entropy) if self.select.began(rewards[0].steps) else None

    def stopped_trying(self, signals: Sequence[Signal]) -> tuple[Signal, Signal] | None:
        """Return a reward that has not risen since the entropy beside it vanished, early in the run, and the entropy.

        A reward at its maximum needs no other answer. If the value function has had nothing to predict either, a rise
        of up to ``idle_gain`` is chance: it depends on which episodes ended.
        """
        idle = self._unrewarded(of_kind(signals, "value_loss"))
        rewards = [signal for signal in of_kind(signals, "reward") if len(signal.values) >= self.one_answer_points]
        for entropy in of_kind(signals, "entropy"):
            values = np.abs(entropy.values[np.isfinite(entropy.values)])
            if len(values) < self.one_answer_points or not self.select.began(entropy.steps):
                continue
            left = np.flatnonzero(values > self.one_answer * float(values[: self.minimum_points].max()))
            first = int(left[-1]) + 1 if len(left) else 0
            if 0 < first <= self.one_answer_by * len(values):
                step = float(entropy.steps[np.isfinite(entropy.steps)][first])
                stuck = [reward for reward in rewards if self._stuck_since(reward, step, idle=idle)]
                if rewards and len(stuck) == len(rewards):
                    return stuck[0], entropy
        return None

    def stopped_for_nothing(self, signals: Sequence[Signal]) -> tuple[Signal, Signal] | None:
        """Return what ``stopped_trying`` does, if the value function is idle as well."""
        return self.stopped_trying(signals) if self._unrewarded(of_kind(signals, "value_loss")) else None

    def _stuck_since(self, reward: Signal, step: float, *, idle: bool) -> bool:
        """Return whether a reward does not rise after a step, and is not at a ceiling."""
        later = reward.values[(reward.steps >= step) & np.isfinite(reward.values)]
        if len(later) < 2 * self.minimum_points:
            return False
        third = len(later) // 3
        before, after = float(np.median(later[:third])), float(np.median(later[-third:]))
        if idle and after - before <= self.idle_gain * abs(before):
            return True
        if float(np.mean(later == later.max())) >= self.ceiling_share:
            return False
        return not self.rises(Signal(reward.name, np.arange(len(later), dtype=np.float64), later))

    def _unrewarded(self, critics: Sequence[Signal]) -> bool:
        """Return whether a value function has had nothing to predict in the second half of the run."""
        return any(
            len(critic.values) >= self.one_answer_points
            and finite_median(np.abs(critic.values[len(critic.values) // 2 :])) <= self.idle_value_loss
            for critic in critics
        )

    def _settles(self, entropy: Signal) -> bool:
        """Return whether an entropy is almost gone for half of a run; that of a density changes its sign."""
        values = entropy.values[np.isfinite(entropy.values)]
        if len(values) < self.blocks * self.block_points or float(values.min()) * float(values.max()) < 0.0:
            return False
        levels = np.array([float(np.median(np.abs(part))) for part in np.array_split(values, self.blocks)])
        late = float(levels[self.blocks // 2 :].max())
        return self.select.began(entropy.steps) and late <= self.settled * float(levels[0])

    def fall(self, signal: Signal) -> Fall | None:
        """Return a reward that rose, then lost its whole gain, and ends lower than ever before.

        Decided by ranks, because returns of single episodes differ by as much as there is to lose: the best third of
        the run beats the first by ``win_share`` and the last by ``fall_share`` of all pairs.
        """
        places = np.flatnonzero(np.isfinite(signal.values))
        places = places[:: max(1, len(places) // self.fall_points)]  # All pairs and all thirds are compared.
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


def is_running_mean(signal: Signal) -> bool:
    """Return whether a reward is averaged over episodes, judged by its name."""
    return bool(_MEAN.search(signal.name))


def _wins(values: NDArray[np.float64], others: NDArray[np.float64]) -> float:
    """Return the fraction of pairs of a value and another in which the value is higher; ties count half."""
    ranked = np.sort(others)
    below = np.searchsorted(ranked, values, side="left") + np.searchsorted(ranked, values, side="right")
    return float(below.mean()) / (2.0 * len(ranked))
