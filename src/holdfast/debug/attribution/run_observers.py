"""Observers of the run as a whole: when it happened, what the learning rate did, and how the losses looked."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from holdfast.debug.attribution.observing import Scene, Seen, finite, middle, steps_of
from holdfast.debug.detectors.divergence import DivergenceFacts, DivergenceShape
from holdfast.debug.detectors.plateau import PlateauFacts
from holdfast.debug.detectors.policy import Answers, PolicyFacts
from holdfast.debug.detectors.spike import SpikeFacts
from holdfast.debug.detectors.steps.periodic import PeriodRule
from holdfast.debug.detectors.steps.select import evaluation_losses, of_kind
from holdfast.debug.types import Failure, Signal

__all__ = ["LossObserver", "PolicyObserver", "RateObserver", "TimeObserver"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeObserver:
    """When in the run it happened, how often, and how it ended."""

    early: float = 0.125
    """The fraction of the run, counted from step 0, that is early."""
    last_early_step: float = 10_000.0
    """No step after this counts as early: the longest warm-ups people publish (BERT, ViT) end there."""
    late: float = 0.25
    """The fraction of the run after which a failure is late: the run was healthy until then."""
    first_gaps: float = 2.0
    """A failure within this many logging intervals of the first row began at the first step."""
    few_points: int = 24
    """A loss with fewer points than this has few points."""
    came_back: float = 0.5
    """A jump is over once this fraction of it is gone."""
    single: int = 2
    """A jump of at most this many points comes from single batches: a derailed optimizer recovers slowly."""
    ruined: float = 0.9
    """A run that lost this fraction of its progress ends ruined."""
    swing: float = 0.12
    """The swing, relative to the level, that counts if another failure is already known."""
    period: PeriodRule = field(default_factory=PeriodRule)

    def observe(self, scene: Scene) -> Seen:
        """Observe the time, repetitions and outcome."""
        jumps, runaway = scene.facts(SpikeFacts), scene.facts(DivergenceFacts)
        losses = scene.losses[:1]
        rates = of_kind(scene.signals, "lr")
        swings = any(self.period.swing(signal, rates, least=self.swing) is not None for signal in losses)
        ruined = any(facts.lost >= self.ruined for facts in runaway) or scene.has(Failure.NAN, Failure.INF)
        return {
            **self._when(scene),
            "recovered": float(bool(jumps) and all(jump.recovered > self.came_back for jump in jumps)),
            "repeated": float(any(jump.count > 1 for jump in jumps)),
            "single_batches": float(any(jump.count > 1 and self._is_single(jump) for jump in jumps)),
            "periodic": float(swings or any(jump.period is not None for jump in jumps)),
            "order_repeats": float(any(self.period.repeated_order(signal) is not None for signal in losses)),
            "ends_ruined": float(ruined),
            "rate_released": float(any(facts.shape is DivergenceShape.HELD_UP for facts in runaway)),
            "rank_hangs": float(scene.has(Failure.HANG)),
            "at_guessing": float(any(facts.guess for facts in scene.facts(PlateauFacts))),
        }

    def _is_single(self, jump: SpikeFacts) -> bool:
        """Return whether each of several jumps lasted a step or two: bad samples recur and leave nothing behind."""
        return 0 < jump.widest <= self.single and jump.recovered > self.came_back and not jump.at_end

    def _when(self, scene: Scene) -> Seen:
        first, steps = scene.first_step, steps_of(scene.losses)
        if first is None or len(steps) == 0:
            return {}
        end = float(steps[-1])
        where = first / end if end > 0 else 0.0
        gap = float(np.median(np.diff(steps))) if len(steps) > 1 else 0.0
        return {
            "early": float(where <= self.early and first <= self.last_early_step),
            "from_start": float(first <= float(steps[0]) + self.first_gaps * gap),
            "late": float(where >= self.late or first > self.last_early_step),
            "excerpt": float(not scene.select.began(steps)),
            "few_points": float(len(steps) < self.few_points),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class RateObserver:
    """The size and schedule of the learning rate."""

    large: float = -1.5
    """The decimal logarithm above which a peak rate is large; certainly large ``decades`` higher."""
    small: float = -5.0
    """The decimal logarithm below which a peak rate is tiny; certainly tiny ``decades`` lower."""
    decades: float = 1.5
    """Decades over which an observation about size becomes certain."""
    smallest_ordinary: float = -5.3
    """The smallest decimal logarithm of ordinary rates …"""
    largest_ordinary: float = -1.0
    """… and the largest."""
    at_peak: float = 0.9
    """A rate that begins above this fraction of its peak has no warm-up."""
    warmed: float = 0.6
    """A rate that begins below this fraction of the peak of its first third is warmed up."""
    shortly: float = 0.1
    """"Shortly before" means within this fraction of the run."""
    rose: float = 1.5
    """Minimum factor of a rise shortly before the failure."""
    jumped: float = 2.5
    """A rate that changes by this factor within one logged point jumps."""
    held: float = 1.5
    """Maximum factor by which the first three rates may differ for a jump: only the first points of a warm-up rise as
    steeply."""

    def observe(self, scene: Scene) -> Seen:
        """Observe size, schedule and changes of the first learning rate."""
        rates = of_kind(scene.signals, "lr")
        seen: Seen = {"rate_unknown": float(not rates)}
        values = finite(rates[0].values) if rates else np.zeros(0)
        if len(values) < 2 or values.max() <= 0:
            return seen
        peak = float(np.log10(values.max()))
        seen["rate_large"] = float(np.clip((peak - self.large) / self.decades, 0.0, 1.0))
        seen["rate_small"] = float(np.clip((self.small - peak) / self.decades, 0.0, 1.0))
        seen["rate_ordinary"] = float(self.smallest_ordinary <= peak <= self.largest_ordinary)
        seen["rate_peaks_at_start"] = float(
            values[0] >= self.at_peak * values.max() and scene.select.began(rates[0].steps)
        )
        seen["rate_warms_up"] = float(values[0] <= self.warmed * values[: max(3, len(values) // 3)].max())
        return seen | self._changes(rates[0], scene.first_step)

    def _changes(self, rate: Signal, first: float | None) -> Seen:
        if first is None:
            return {}
        span = self.shortly * (rate.steps[-1] - rate.steps[0])
        before = rate.values[(rate.steps >= first - span) & (rate.steps <= first)]
        if len(before) < 2 or not before.min() > 0:
            return {}
        head = rate.values[rate.steps <= first][:3]
        steep = bool((before[1:] >= self.jumped * before[:-1]).any())
        return {
            "rate_rose_before": float(before[-1] >= self.rose * before[0]),
            "rate_jumped": float(steep and len(head) == 3 and head[2] <= self.held * head[0]),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class LossObserver:
    """How the training and held-out losses looked."""

    quiet: float = 1.6
    """Points before a jump that are below this many times their level were quiet."""
    quiet_points: int = 4
    """Number of points before a jump that must be quiet …"""
    level_points: int = 12
    """… and number of points that give their level."""
    slow: float = 0.2
    """A loss that falls by less than this fraction, in every quarter, creeps."""
    falls: float = 0.9
    """A loss that ends below this fraction of its start falls."""
    hot: float = 20.0
    """A loss that begins above this many times the level at which it soon settles, and above this value, began too
    high."""
    below: float = 0.93
    """A held-out loss below this fraction of the training loss is well below it."""
    rises: float = 1.07
    """A held-out loss that ends above this many times its minimum rises."""
    unharmed: float = 1.01
    """A held-out loss that stays below this many times its last value during the failure is unharmed …"""
    harmed: float = 1.05
    """… and one that exceeds this many times its minimum before the failure is harmed."""
    minimum_points: int = 4
    """Minimum number of points of a loss that show a shape."""

    def observe(self, scene: Scene) -> Seen:
        """Return the shape of the first loss, and what the held-out loss did at the same time."""
        seen: Seen = {}
        for loss in scene.losses[:1]:
            good = np.isfinite(loss.values)
            values, steps = loss.values[good], loss.steps[good]
            if len(values) < self.minimum_points:
                continue
            fifth = max(1, len(values) // 5)
            first, last = middle(values[:fifth]), middle(values[-fifth:])
            quarters = [middle(part) for part in np.array_split(values, 4)]
            falling = all(after < before for before, after in itertools.pairwise(quarters))
            tenth = middle(values[len(values) // 10 : len(values) // 10 + 5])
            begin = float(values[0])
            seen["slow_progress"] = float(falling and first > 0 and 0.0 < (first - last) / first < self.slow)
            seen["training_falls"] = float(first > 0 and last < self.falls * first)
            seen["start_too_high"] = float(tenth > 0 and begin > self.hot * tenth and begin > self.hot)
            seen["sudden"] = float(self._is_sudden(scene, values, steps))
            seen |= self._held_out(scene, last)
        return seen

    def _is_sudden(self, scene: Scene, values: np.ndarray, steps: np.ndarray) -> bool:
        for jump in scene.detections:
            if jump.failure != Failure.SPIKE or jump.first_step is None:
                continue
            before = values[steps < jump.first_step]
            level = middle(before[-self.level_points :])
            if len(before) >= 2 and level > 0 and float(before[-self.quiet_points :].max()) < self.quiet * level:
                return True
        return False

    def _held_out(self, scene: Scene, training: float) -> Seen:
        for held in evaluation_losses(scene.signals)[:1]:
            values = finite(held.values)
            if len(values) < 3:
                continue
            end = middle(values[-max(1, len(values) // 3) :])
            return {
                "evaluation_below_training": float(end < self.below * training),
                "evaluation_rises": float(end > self.rises * float(values.min())),
                **self._through_trouble(scene, held),
            }
        return {}

    def _through_trouble(self, scene: Scene, held: Signal) -> Seen:
        """Return what the held-out loss did while the training loss rose.

        Only a model that got worse shows a rise there as well.
        """
        for trouble in scene.detections:
            if trouble.failure not in (Failure.SPIKE, Failure.DIVERGENCE) or not trouble.first_step:
                continue
            before = held.values[held.steps < trouble.first_step][-2:]
            inside = held.values[held.steps >= trouble.first_step][:3]
            if len(before) and len(inside) and np.isfinite(before).all():
                lost = not np.isfinite(inside).all()
                return {
                    "evaluation_unharmed": float(not lost and inside.max() <= self.unharmed * before[-1]),
                    "evaluation_harmed": float(lost or inside.max() > self.harmed * before.min()),
                }
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyObserver:
    """The state of a reinforcement-learning policy."""

    infinite_points: int = 2
    """Minimum number of infinite values in a series; fewer are a glitch."""

    def observe(self, scene: Scene) -> Seen:
        """Return what the policy detector reported, and whether another series is infinite."""
        told = scene.facts(PolicyFacts)
        if not told and not of_kind(scene.signals, "reward"):
            return {}
        infinite = any(np.count_nonzero(np.isinf(s.values)) >= self.infinite_points for s in scene.signals)
        return {
            "agent": 1.0,
            "one_answer": float(any(facts.answers is Answers.ONE for facts in told)),
            "random_answers": float(any(facts.answers is Answers.NOISE for facts in told)),
            "policy_jumped": float(any(facts.kl_burst for facts in told)),
            "turned_infinite": float(infinite),
        }
