"""What can be seen in a run that speaks for or against a cause: one table of named observations.

Each observation is a number between 0 (not so, or not to be seen) and 1 (clearly so). Rules and the learned ranker both
read this table and nothing else, so whatever one of them can know the other can too, and a report can show it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from holdfast.debug.attribution.model_observations import (
    facts_of,
    middle,
    observe_gradients,
    observe_layers,
    observe_parameters,
    observe_precision,
)
from holdfast.debug.detectors.periodic import periodic_swing, repeated_order
from holdfast.debug.detectors.select import evaluation_losses, of_kind, training_losses
from holdfast.debug.types import Detection, DetectionContext, Failure, Signal

__all__ = ["OBSERVATIONS", "observe"]

OBSERVATIONS: Mapping[str, str] = {
    "early": "it began in the first eighth of the log",
    "from_start": "it was so from the first logged step",
    "late": "the run was fine for a good while first",
    "recovered": "the loss came back by itself",
    "ends_ruined": "the loss ends above where it began, or is gone",
    "rate_peaks_at_start": "the learning rate is at its peak from the first step",
    "rate_warms_up": "the learning rate is warmed up",
    "rate_rose_before": "the learning rate rose shortly before",
    "rate_large": "the learning rate is large by any standard",
    "rate_small": "the learning rate is tiny by any standard",
    "rate_ordinary": "the learning rate is in the range people use",
    "rate_jumped": "the learning rate jumped manyfold just before",
    "rate_unknown": "no learning rate was logged",
    "rate_released": "a cut of the learning rate set the loss free",
    "gradient_led": "the gradient norm rose before the loss did",
    "gradient_smooth": "the gradient norm drifts smoothly, as a running sum does",
    "gradient_grows": "the gradient norm grows over the run",
    "gradient_fades": "the gradient norm fades over the run",
    "gradient_alive": "gradients of ordinary size are there all along",
    "gradient_heavy": "gradient norms are thousands of times larger than usual at times",
    "updates_zero": "the parameters do not move at all",
    "updates_tiny": "the parameters hardly move",
    "updates_ignore_gradient": "the parameters move by far less than the learning rate and the gradients ask for",
    "updates_unknown": "no update sizes were logged",
    "evaluation_frozen": "the held-out loss does not move",
    "layers_silent": "most layers never get a gradient",
    "activations_dead": "a layer's activations are dead or saturated",
    "died_later": "the layer was alive at first",
    "activations_collapsed": "a layer gives the same answer to every input",
    "inputs_wide": "the inputs are far from unit scale",
    "activations_wide": "activations are huge from the first step although the inputs are not",
    "weights_off_scale": "most weights are on another scale than any usual initialisation's from the first step",
    "recurrent_gain": "the recurrent matrix amplifies what it carries from the first step",
    "recurrent": "the model has a recurrent layer",
    "recurrent_widest": "the recurrent layer's activations are the widest",
    "half_precision": "a loss scale is in use",
    "scale_fell": "the loss scale fell and fell",
    "gradient_not_finite": "gradient norms are not finite at some steps",
    "sudden": "the loss jumped within a point or two, with nothing leading up to it",
    "repeated": "it happened several times",
    "periodic": "the loss swings with a fixed period",
    "order_repeats": "the loss repeats itself batch by batch, pass after pass",
    "evaluation_below_training": "the held-out loss lies well below the training loss",
    "evaluation_rises": "the held-out loss rises",
    "evaluation_unharmed": "the held-out loss goes on falling through the trouble",
    "evaluation_harmed": "the held-out loss rises with the trouble",
    "training_falls": "the training loss goes on falling",
    "slow_progress": "the loss creeps down steadily, but far too slowly",
    "at_guessing": "the loss stands where guessing puts it",
    "start_too_high": "the loss begins far above where it soon settles",
}
"""Every observation by name, in the words a report uses."""


def observe(detections: Sequence[Detection], signals: Sequence[Signal], context: DetectionContext) -> dict[str, float]:
    """Look the run over for everything in :data:`OBSERVATIONS`."""
    seen = dict.fromkeys(OBSERVATIONS, 0.0)
    losses = training_losses(signals)
    _when(seen, detections, losses, of_kind(signals, "lr"))
    _rates(seen, detections, signals)
    observe_gradients(seen, detections, signals)
    whole = _while_numbers_last(detections, signals)
    observe_parameters(seen, whole)
    observe_layers(seen, detections, whole, context)
    observe_precision(seen, detections, signals)
    _loss_shape(seen, detections, losses, signals)
    return seen


def _while_numbers_last(detections: Sequence[Detection], signals: Sequence[Signal]) -> list[Signal]:
    """The signals up to the step at which the numbers were lost: nothing that does not move after it is a cause."""
    ends = (Failure.NAN, Failure.INF, Failure.LOSS_SCALE_COLLAPSE)
    lost = [d.first_step for d in detections if d.failure in ends and d.first_step is not None]
    if not lost:
        return list(signals)
    cut = [(signal, int(np.searchsorted(signal.steps, min(lost)))) for signal in signals]
    return [replace(signal, steps=signal.steps[:at], values=signal.values[:at]) for signal, at in cut if at]


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _when(seen: dict[str, float], detections: Sequence[Detection], losses: list[Signal], rates: list[Signal]) -> None:
    firsts = [detection.first_step for detection in detections if detection.first_step is not None]
    steps = [signal.steps for signal in losses if len(signal.steps)]
    if firsts and steps:
        begin, end = min(float(s[0]) for s in steps), max(float(s[-1]) for s in steps)
        gap = min(float(np.median(np.diff(s))) if len(s) > 1 else 0.0 for s in steps)
        where = (min(firsts) - begin) / (end - begin) if end > begin else 0.0
        seen["early"] = float(where <= 0.125)
        seen["from_start"] = float(min(firsts) <= begin + 2 * gap)
        seen["late"] = float(where >= 0.25)
    spikes = facts_of(detections, Failure.SPIKE)
    seen["recovered"] = float(
        bool(spikes) and all(_number(f.get("recovered")) > 0.5 for f in spikes if "recovered" in f)
    )
    seen["repeated"] = float(any(_number(f.get("count")) >= 2 for f in spikes))
    swings = [periodic_swing(signal, rates, least=0.12) for signal in losses[:1]]
    seen["order_repeats"] = float(any(repeated_order(signal) is not None for signal in losses[:1]))
    seen["periodic"] = float(any(f.get("periodic") for f in spikes) or any(swings))
    runaway = facts_of(detections, Failure.DIVERGENCE)
    ruined = any(_number(f.get("lost")) >= 0.9 for f in runaway)
    seen["ends_ruined"] = float(ruined or any(d.failure in (Failure.NAN, Failure.INF) for d in detections))
    seen["rate_released"] = float(any(f.get("shape") == "held_up" for f in runaway))
    seen["at_guessing"] = float(any(f.get("guess") for f in facts_of(detections, Failure.PLATEAU)))


def _rates(seen: dict[str, float], detections: Sequence[Detection], signals: Sequence[Signal]) -> None:
    rates = of_kind(signals, "lr")
    seen["rate_unknown"] = float(not rates)
    for rate in rates[:1]:
        values = rate.values[np.isfinite(rate.values)]
        if len(values) < 2 or values.max() <= 0:
            continue
        peak = np.log10(float(values.max()))
        seen["rate_large"] = float(np.clip((peak + 1.5) / 1.5, 0.0, 1.0))
        seen["rate_small"] = float(np.clip((-5.0 - peak) / 1.5, 0.0, 1.0))
        seen["rate_ordinary"] = float(-5.3 <= peak <= -1.0)
        seen["rate_peaks_at_start"] = float(values[0] >= 0.9 * values.max())
        seen["rate_warms_up"] = float(values[0] <= 0.6 * values[: max(3, len(values) // 3)].max())
        first = min((d.first_step for d in detections if d.first_step is not None), default=None)
        if first is not None:
            span = 0.1 * (rate.steps[-1] - rate.steps[0])
            before = rate.values[(rate.steps >= first - span) & (rate.steps <= first)]
            if len(before) >= 2 and before.min() > 0:
                seen["rate_rose_before"] = float(before[-1] >= 1.5 * before[0])
                # A step up within one logged point; a warm-up rises as steeply only from its very first points.
                held = rate.values[rate.steps <= first][:3]
                steep = before[1:] >= 2.5 * before[:-1]
                seen["rate_jumped"] = float(bool(steep.any()) and len(held) == 3 and held[2] <= 1.5 * held[0])


def _loss_shape(
    seen: dict[str, float], detections: Sequence[Detection], losses: list[Signal], signals: Sequence[Signal]
) -> None:
    held_out = evaluation_losses(signals)
    for loss in losses[:1]:
        finite = np.isfinite(loss.values)
        values, steps = loss.values[finite], loss.steps[finite]
        if len(values) < 4:
            continue
        for spike in (d for d in detections if d.failure == Failure.SPIKE and d.first_step is not None):
            before = values[steps < float(spike.first_step or 0)][-4:]
            level = middle(values[steps < float(spike.first_step or 0)][-12:])
            quiet = len(before) >= 2 and level > 0 and float(before.max()) < 1.6 * max(level, 1e-12)
            seen["sudden"] = max(seen["sudden"], float(quiet and not seen["gradient_led"]))
        fifth = max(1, len(values) // 5)
        first, last = middle(values[:fifth]), middle(values[-fifth:])
        quarters = [middle(part) for part in np.array_split(values, 4)]
        falling = all(after < before for before, after in itertools.pairwise(quarters))
        seen["slow_progress"] = float(falling and first > 0 and 0.0 < (first - last) / first < 0.2)
        seen["training_falls"] = float(last < 0.9 * first) if first > 0 else 0.0
        tenth = middle(values[len(values) // 10 : len(values) // 10 + 5])
        seen["start_too_high"] = float(tenth > 0 and float(values[0]) > 20.0 * tenth and float(values[0]) > 20.0)
        for held in held_out[:1]:
            numbers = held.values[np.isfinite(held.values)]
            if len(numbers) < 3:
                continue
            third = max(1, len(numbers) // 3)
            seen["evaluation_below_training"] = float(middle(numbers[-third:]) < 0.93 * last)
            seen["evaluation_rises"] = float(middle(numbers[-third:]) > 1.07 * float(numbers.min()))
            _through_trouble(seen, detections, held)


def _through_trouble(seen: dict[str, float], detections: Sequence[Detection], held: Signal) -> None:
    """What the held-out loss did while the training loss rose: only a model that got worse shows it there."""
    for trouble in detections:
        if trouble.failure not in (Failure.SPIKE, Failure.DIVERGENCE) or not trouble.first_step:
            continue
        before = held.values[held.steps < trouble.first_step][-2:]
        inside = held.values[held.steps >= trouble.first_step][:3]
        if len(before) and len(inside) and np.isfinite(before).all():
            seen["evaluation_unharmed"] = float(np.isfinite(inside).all() and inside.max() <= 1.01 * before[-1])
            seen["evaluation_harmed"] = float(not np.isfinite(inside).all() or inside.max() > 1.05 * before.min())
            return
