"""A run that never learnt: its loss stays where guessing puts it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.doubt import Chance, Doubt, chance_loss, find_doubt
from holdfast.debug.detectors.select import evaluation_losses, of_kind, training_losses
from holdfast.debug.detectors.statistics import Shape, shape_of
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Evidence, Failure, Severity, Signal

__all__ = ["LossPlateauDetector", "Stall", "find_stall", "guessing_loss"]

# Class counts people really have; ln(k) is what a model that guesses evenly pays.
# Few on purpose: the more are listed, the more healthy language models would stand at one of them by chance.
_CLASS_COUNTS = (2, 10, 100, 1000, 50257)
# On a live run there is time: wait until nobody could still be warming up.
LIVE_SPAN = 2000.0
# A loss that may have fallen by more than this, for all the noise lets us see, is not called stuck.
MOST_IMPROVEMENT = 0.025
# How far a loss may fall, beyond its error, and still be called stuck where something else says so too.
DOUBTED_DECLINE = 0.04
# How far from the loss of guessing a run may end whose accuracy is that of guessing.
CHANCE_DECLINE = 0.08
# Squared error of always answering the middle of balanced 0/1 or -1/1 targets, and of standardised ones.
_SQUARED = (0.25, 1.0)


def guessing_loss(value: float, *, tolerance: float = 0.02) -> str | None:
    """Name the constant guess whose loss this is, or None.

    >>> guessing_loss(0.6935)
    'an even guess among 2 classes (ln 2 = 0.6931)'
    """
    for count in _CLASS_COUNTS:
        if abs(value - np.log(count)) <= tolerance * np.log(count):
            return f"an even guess among {count} classes (ln {count} = {np.log(count):.4f})"
    for squared in _SQUARED:
        if abs(value - squared) <= 0.1 * tolerance * squared:
            return f"a constant answer to balanced targets (squared error {squared:g})"
    return None


@dataclass(frozen=True, slots=True)
class Stall:
    """A loss that did not fall: where, at what level, and by how much it fell all the same."""

    signal: Signal
    first_step: float
    level: float
    improvement: float
    guess: str | None
    shape: Shape
    doubt: Doubt | None = None


def find_stall(
    signals: Sequence[Signal],
    *,
    minimum_improvement: float,
    guess_improvement: float,
    minimum_points: int,
    minimum_span: float = 100.0,
) -> Stall | None:
    """The loss of a run that never learnt; None when it did, or when that cannot be told."""
    doubt = find_doubt(signals)
    chance = chance_loss(signals)
    if _anything_improved(signals) and chance is None and (doubt is None or not doubt.certain):
        return None
    candidates = training_losses(signals) or evaluation_losses(signals)
    flat = any(_is_flat(signal, minimum_improvement) for signal in evaluation_losses(signals))
    for signal in candidates:
        shape = shape_of(signal)
        if shape is None or shape.is_signed or shape.count < minimum_points or signal.kind == "perplexity":
            continue
        if not np.isfinite(signal.values[-1]) or float(np.max(shape.values)) == 0.0:
            continue
        stall = _stalled_from_the_start(signal, shape, minimum_improvement, guess_improvement, flat)
        stall = stall or _pinned_to_a_guess(signal, shape)
        if stall is None and chance is not None:
            stall = _at_chance(signal, shape, chance)
        if stall is None and doubt is not None:
            stall = _not_falling(signal, shape, doubt)
        # A few dozen steps may be too soon to have learnt anything, unless the loss names a guess over whole epochs.
        span = float(shape.steps[-1] - shape.steps[0])
        if stall is not None and (span >= minimum_span or (stall.guess is not None and minimum_span <= 100.0)):
            return stall
    return None


def _stalled_from_the_start(
    signal: Signal, shape: Shape, minimum_improvement: float, guess_improvement: float, held_out_flat: bool
) -> Stall | None:
    blocks = len(shape.level)
    head = float(np.median(shape.level[: max(1, blocks // 10)]))
    # The best the run ever held for a while counts, not only its end.
    held = _held_low(shape.level)
    improvement = (head - held) / head
    guess = _guessed(shape)
    # In noise this large, would a run that learns have shown it? The error of comparing two fifths of the log:
    error = float(np.median(shape.noise)) * 1.25 * np.sqrt(2.0 / max(1.0, shape.count / 5)) / head
    at_most = max(improvement + 2.0 * error, _most_decline(shape, head))
    stuck = improvement <= minimum_improvement and at_most <= MOST_IMPROVEMENT
    if _flat_since_early(shape, error):
        # A first drop of a few per cent and nothing ever after is the bias of the last layer finding its place.
        stuck = stuck or improvement <= (0.08 if held_out_flat else 0.04)
    if held_out_flat:
        stuck = stuck or improvement <= max(minimum_improvement, 2.0 * error)
    elif guess is None and float(np.median(shape.noise)) > 0.15 * head:
        # A loss whose batches differ this much (diffusion, small batches) is flat to the eye in healthy runs too.
        return None
    if not (stuck or (guess is not None and improvement <= guess_improvement)) or shape.end > 1.5 * head:
        return None
    if not _has_beginning(shape):
        return None
    return Stall(signal, float(shape.steps[0]), shape.end, improvement, guess, shape)


def _most_decline(shape: Shape, head: float) -> float:
    """The largest decline over the log, as a share of its start, that a straight line through it leaves possible."""
    decline, error = _decline(shape)
    return (decline + 2.0 * error) / head


def _decline(shape: Shape) -> tuple[float, float]:
    """How far a straight line through the log falls from first to last, and the error of that."""
    places = np.linspace(-0.5, 0.5, len(shape.level))
    slope = float(np.dot(places, shape.level) / np.dot(places, places))
    return -slope, float(np.sqrt(12.0)) * float(np.median(shape.noise)) / float(np.sqrt(shape.count))


def _not_falling(signal: Signal, shape: Shape, doubt: Doubt) -> Stall | None:
    """With another reason to think that nothing can be learnt, the loss need not be quiet: it only must not fall."""
    head = float(np.median(shape.level[: max(1, len(shape.level) // 10)]))
    decline, error = _decline(shape)
    if not _has_beginning(shape) or decline - 2.0 * error > DOUBTED_DECLINE * head or shape.end > 1.5 * head:
        return None
    return Stall(signal, float(shape.steps[0]), shape.end, (head - shape.end) / head, None, shape, doubt)


def _at_chance(signal: Signal, shape: Shape, chance: Chance) -> Stall | None:
    """A loss about where guessing puts it to the end, with an accuracy that says the same."""
    near = abs(shape.end - chance.loss) <= CHANCE_DECLINE * chance.loss
    head = float(np.median(shape.level[: max(1, len(shape.level) // 10)]))
    # Coming down from far above, a loss passes where guessing among fewer classes would stand.
    stayed = head <= 1.2 * chance.loss and _held_low(shape.level) >= (1.0 - CHANCE_DECLINE) * chance.loss
    if not _has_beginning(shape) or not near or not stayed:
        return None
    return Stall(signal, float(shape.steps[0]), shape.end, (head - shape.end) / head, chance.guess, shape)


def _has_beginning(shape: Shape) -> bool:
    """An excerpt from the middle of a run is flat and healthy; only the whole log can say "never learnt"."""
    return float(shape.steps[0]) <= 0.2 * float(shape.steps[-1])


def _flat_since_early(shape: Shape, error: float) -> bool:
    """Whether four fifths of the log, from the second to the last, show no progress at all."""
    fifths = [float(np.median(part)) for part in np.array_split(shape.level, 5)] if len(shape.level) >= 10 else []
    return bool(fifths) and abs(fifths[1] - fifths[4]) + 2.0 * error * fifths[1] <= 0.015 * fifths[1]


def _guessed(shape: Shape) -> str | None:
    """The guess a loss ends on, was never below, and no longer moves away from."""
    guess = guessing_loss(shape.end)
    fifths = [float(np.median(part)) for part in np.array_split(shape.level, 5)] if len(shape.level) >= 5 else []
    if guess is None or not fifths:
        return guess
    flat = abs(fifths[2] - fifths[4]) <= 0.01 * shape.end
    return guess if flat and min(fifths) >= 0.985 * shape.end else None


def _pinned_to_a_guess(signal: Signal, shape: Shape) -> Stall | None:
    """A loss that fell and then froze exactly where a constant answer stands."""
    half = shape.level[len(shape.level) // 2 :]
    if len(half) < 4 or float(np.ptp(half)) > 2e-3 * shape.end:
        return None
    guess = guessing_loss(shape.end, tolerance=0.005)
    if guess is None:
        return None
    frozen = np.flatnonzero(np.abs(shape.level - shape.end) > 0.01 * shape.end)
    first = int(frozen[-1]) + 1 if len(frozen) else 0
    return Stall(signal, shape.step_of_block(first), shape.end, (shape.start - shape.end) / shape.start, guess, shape)


def _is_flat(signal: Signal, minimum_improvement: float) -> bool:
    """Whether a held-out loss, which averages much noise away, shows no progress from first to last."""
    values = signal.values[np.isfinite(signal.values)]
    if len(values) < 6 or values[0] <= 0:
        return False
    third = max(1, len(values) // 3)
    levels = [float(np.median(part)) for part in (values[:third], values[third:-third], values[-third:])]
    return max(levels) - min(levels) <= minimum_improvement * levels[0]


def _held_low(level: np.ndarray) -> float:
    """The lowest median of any fifth of the run."""
    width = max(1, len(level) // 5)
    windows = np.lib.stride_tricks.sliding_window_view(level, width)
    return float(np.min(np.median(windows, axis=-1)))


def _anything_improved(signals: Sequence[Signal]) -> bool:
    """Whether a metric or a held-out loss got clearly better, which no stuck run does."""
    for signal in of_kind(signals, "metric", "eval_loss", "reward"):
        values = signal.values[np.isfinite(signal.values)]
        if len(values) < 3 or signal.layer is not None:
            continue
        third = max(1, len(values) // 3)
        before, after = float(np.median(values[:third])), float(np.median(values[-third:]))
        better = (
            after - before
            if signal.kind == "reward" or signal.metadata.get("higher_is_better", False)
            else before - after
        )
        spread = float(np.median(np.abs(np.diff(values)))) if len(values) > 2 else 0.0
        if better > 0.12 * max(abs(before), abs(after)) and better > 4 * spread:
            return True
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class LossPlateauDetector(BaseDetector):
    """Sees a loss that stays at its first level, or freezes where a constant answer would be.

    Args:
        minimum_improvement: a loss that fell by less than this share of its start did not learn.
        guess_improvement: the same, for a loss that sits where guessing puts it.
        minimum_points: fewer points than this say nothing.
    """

    minimum_improvement: float = 0.012
    guess_improvement: float = 0.15
    minimum_points: int = 8

    @property
    def name(self) -> str:
        """Its name in reports."""
        return "plateau"

    def get_required_signals(self) -> frozenset[str]:
        """Losses; metrics and rewards that may show it learns after all; what shows whether the parameters moved."""
        return frozenset(("loss", "eval_loss", "metric", "reward", "update_norm", "weight_norm", "lr", "grad_norm"))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Report the first total loss that is stuck."""
        stall = find_stall(
            signals,
            minimum_improvement=self.minimum_improvement,
            guess_improvement=self.guess_improvement,
            minimum_points=self.minimum_points,
            minimum_span=LIVE_SPAN if context.live else 100.0,
        )
        if stall is None:
            return DetectionResult(self.name)
        where = f", where {stall.guess} stands" if stall.guess else ""
        doubt = (Evidence(stall.doubt.signal, stall.doubt.claim, stall.doubt.numbers),) if stall.doubt else ()
        claim = (
            f"stays at {stall.level:.4g}{where}: fell by {max(stall.improvement, 0):.1%} in {stall.shape.count} points"
        )
        detection = Detection(
            failure=Failure.PLATEAU,
            severity=Severity.CRITICAL,
            confidence=0.93 if stall.guess else 0.8,
            first_step=stall.first_step,
            last_step=float(stall.shape.steps[-1]),
            evidence=(
                Evidence(stall.signal.name, claim, {"level": stall.level, "improvement": stall.improvement}),
                *doubt,
            ),
            signal=stall.signal.name,
            facts={"improvement": stall.improvement, "guess": stall.guess or "", "level": stall.level},
        )
        return DetectionResult(self.name, (detection,))
