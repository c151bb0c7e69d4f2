"""What can be seen in a run that speaks for or against a cause: one table of named observations.

Each observation is a number between 0 (not so, or not to be seen) and 1 (clearly so). Rules and the learned ranker both
read this table and nothing else, so whatever one of them can know the other can too, and a report can show it.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.doubt import small_rates
from holdfast.debug.detectors.periodic import periodic_swing, repeated_order
from holdfast.debug.detectors.select import (
    evaluation_losses,
    layered,
    of_kind,
    total_gradient_norms,
    training_losses,
)
from holdfast.debug.detectors.start import (
    LARGEST_GAIN,
    LARGEST_RECURRENT_GAIN,
    SMALLEST_GAIN,
    early_spreads,
    first_gains,
    recurrent_gain,
)
from holdfast.debug.types import Detection, DetectionContext, Failure, Signal

__all__ = ["OBSERVATIONS", "observe"]

Array = NDArray[np.float64]

_RECURRENT = re.compile(r"rnn|lstm|gru|recurrent|weight_hh", re.IGNORECASE)

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
    _gradients(seen, detections, signals)
    whole = _while_numbers_last(detections, signals)
    _parameters(seen, whole)
    _layers(seen, detections, whole, context)
    _precision(seen, detections, signals)
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


def _facts(detections: Sequence[Detection], *failures: Failure) -> list[Mapping[str, object]]:
    return [detection.facts for detection in detections if detection.failure in failures]


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
    spikes = _facts(detections, Failure.SPIKE)
    seen["recovered"] = float(
        bool(spikes) and all(_number(f.get("recovered")) > 0.5 for f in spikes if "recovered" in f)
    )
    seen["repeated"] = float(any(_number(f.get("count")) >= 2 for f in spikes))
    swings = [periodic_swing(signal, rates, least=0.12) for signal in losses[:1]]
    seen["order_repeats"] = float(any(repeated_order(signal) is not None for signal in losses[:1]))
    seen["periodic"] = float(any(f.get("periodic") for f in spikes) or any(swings))
    runaway = _facts(detections, Failure.DIVERGENCE)
    ruined = any(_number(f.get("lost")) >= 0.9 for f in runaway)
    seen["ends_ruined"] = float(ruined or any(d.failure in (Failure.NAN, Failure.INF) for d in detections))
    seen["rate_released"] = float(any(f.get("shape") == "held_up" for f in runaway))
    seen["at_guessing"] = float(any(f.get("guess") for f in _facts(detections, Failure.PLATEAU)))


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


def _gradients(seen: dict[str, float], detections: Sequence[Detection], signals: Sequence[Signal]) -> None:
    for norm in total_gradient_norms(signals)[:1]:
        finite = np.isfinite(norm.values) & (norm.values > 0)
        values, steps = norm.values[finite], norm.steps[finite]
        seen["gradient_not_finite"] = float(bool(np.any(~np.isfinite(norm.values))))
        if len(values) < 12:
            continue
        logs = np.log(values)
        wobble = float(np.median(np.abs(np.diff(logs))))
        span = float(np.quantile(logs, 0.9) - np.quantile(logs, 0.1))
        eighth = max(2, len(values) // 8)
        growth = float(np.median(logs[-3 * eighth :]) - np.median(logs[:eighth]))
        # A running sum changes little from step to step, and does not fade.
        seen["gradient_smooth"] = float(span > 0.3 and wobble < 0.15 * span and growth > -0.2)
        seen["gradient_grows"] = float(np.clip(growth / np.log(10.0), 0.0, 1.0))
        seen["gradient_fades"] = float(np.clip(-growth / np.log(10.0), 0.0, 1.0))
        usual = float(np.median(values))
        seen["gradient_alive"] = float(
            1e-4 < usual < 1e3 and values.min() > 1e-3 * usual and values.max() < 1e2 * usual
        )
        seen["gradient_heavy"] = float(values.max() > 1e3 * usual)
        first = min(
            (d.first_step for d in detections if d.first_step is not None and d.signal != norm.name), default=None
        )
        if first is not None:
            before, near = (
                values[steps < first],
                values[(steps < first) & (steps >= first - 4 * np.median(np.diff(steps)))],
            )
            if len(before) >= 8 and len(near) and float(near.max()) > 4.0 * float(np.median(before)):
                seen["gradient_led"] = 1.0


def _parameters(seen: dict[str, float], signals: Sequence[Signal]) -> None:
    updates = [signal for signal in of_kind(signals, "update_norm") if signal.layer is None]
    weights = [signal for signal in of_kind(signals, "weight_norm") if signal.layer is None]
    seen["updates_unknown"] = float(not updates and not weights)
    if updates:
        typical = _median(updates[0].values)
        size = _median(weights[0].values) if weights else 1.0
        rates = of_kind(signals, "lr")
        asked = _median(rates[0].values) * size if rates else 0.0
        # What is left is at most weight decay: the gradients never reach the parameters.
        norms = total_gradient_norms(signals)
        pushed = _median(rates[0].values) * _median(norms[0].values) if rates and norms else 0.0
        steady = bool(rates) and _is_steady(updates[0], rates[0])
        ignored = asked > 0 and typical < 0.1 * asked and (typical < 0.5 * pushed or steady)
        seen["updates_ignore_gradient"] = float(ignored)
        seen["updates_zero"] = float(typical == 0.0)
        seen["updates_tiny"] = float(not ignored and 0.0 < typical < 1e-5 * max(size, 1e-12))
    elif weights and len(weights[0].values) > 5:
        values = weights[0].values[np.isfinite(weights[0].values)]
        seen["updates_zero"] = float(len(values) > 5 and np.ptp(values) == 0.0)
        seen["updates_tiny"] = float(0 < np.ptp(values) < 1e-5 * abs(values[0])) if len(values) else 0.0
    elif small_rates(signals) is not None:
        seen["updates_tiny"] = 1.0
    for signal in evaluation_losses(signals):
        values = signal.values[np.isfinite(signal.values)]
        if len(values) >= 3 and np.ptp(values) <= 1e-3 * abs(float(values[0])):
            seen["evaluation_frozen"] = 1.0


def _is_steady(update: Signal, rate: Signal) -> bool:
    """Whether updates follow the learning rate to the per cent, which noisy gradients never do."""
    if len(update.values) < 8 or len(update.values) != len(rate.values):
        return False
    ratio = update.values / np.where(rate.values > 0, rate.values, np.nan)
    ratio = ratio[np.isfinite(ratio)]
    return len(ratio) >= 8 and float(np.median(np.abs(np.diff(ratio)))) < 0.005 * float(np.median(ratio))


def _median(values: Array) -> float:
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else 0.0


def _layers(
    seen: dict[str, float], detections: Sequence[Detection], signals: Sequence[Signal], context: DetectionContext
) -> None:
    norms = layered(signals, "grad_norm")
    silent = [layer for layer, signal in norms.items() if len(signal.values) >= 5 and _median(signal.values) == 0.0]
    seen["layers_silent"] = float(len(norms) >= 2 and len(silent) >= 0.5 * len(norms))
    dead = [f for f in _facts(detections, Failure.DEAD_LAYER) if f.get("statistic") in ("zero", "saturated")]
    seen["activations_dead"] = float(bool(dead))
    seen["died_later"] = float(bool(dead) and all(f.get("late") for f in dead))
    collapsed = [f for f in _facts(detections, Failure.DEAD_LAYER) if f.get("statistic") == "collapsed"]
    seen["activations_collapsed"] = float(bool(collapsed))
    widths = {layer: spread for layer, (spread, _) in early_spreads(signals).items()}
    # What a wild learning rate did to the weights within the first steps says nothing of their initialisation.
    trusted = 1.0 - seen["rate_large"]
    gains = [gain for gain, _ in first_gains(signals).values()]
    odd = [gain for gain in gains if gain > LARGEST_GAIN or gain < SMALLEST_GAIN]
    seen["weights_off_scale"] = trusted * float(len(odd) >= max(2.0, 0.5 * len(gains)))
    amplifies = recurrent_gain(signals) > LARGEST_RECURRENT_GAIN and not seen["weights_off_scale"]
    seen["recurrent_gain"] = trusted * float(amplifies)
    inputs = [width for layer, width in widths.items() if "input" in layer.lower()]
    others = [width for layer, width in widths.items() if "input" not in layer.lower()]
    seen["inputs_wide"] = float(bool(inputs) and max(inputs) > 8.0)
    seen["activations_wide"] = trusted * float(bool(others) and max(others) > 15.0 and not seen["inputs_wide"])
    if widths:
        widest = max(widths, key=lambda layer: widths[layer])
        seen["recurrent_widest"] = float(widths[widest] > 3.0 and bool(_RECURRENT.search(widest)))
    names = " ".join(
        [*norms, *widths, *(str(value) for value in context.config.values() if isinstance(value, str))]
    ).lower()
    seen["recurrent"] = float(bool(_RECURRENT.search(names)))


def _precision(seen: dict[str, float], detections: Sequence[Detection], signals: Sequence[Signal]) -> None:
    scales = of_kind(signals, "loss_scale")
    seen["half_precision"] = float(
        bool(scales) and any(np.nanmax(s.values) > 1 for s in scales if np.isfinite(s.values).any())
    )
    fell = any(s.values[-1] < np.nanmax(s.values) / 64 for s in scales if np.isfinite(s.values).any())
    seen["scale_fell"] = float(fell or any(d.failure is Failure.LOSS_SCALE_COLLAPSE for d in detections))


def _loss_shape(
    seen: dict[str, float], detections: Sequence[Detection], losses: list[Signal], signals: Sequence[Signal]
) -> None:
    held_out = evaluation_losses(signals)
    for loss in losses[:1]:
        finite = np.isfinite(loss.values)
        values, steps = loss.values[finite], loss.steps[finite]
        if len(values) < 4:
            continue
        for spike in (d for d in detections if d.failure is Failure.SPIKE and d.first_step is not None):
            before = values[steps < float(spike.first_step or 0)][-4:]
            level = _median(values[steps < float(spike.first_step or 0)][-12:])
            quiet = len(before) >= 2 and level > 0 and float(before.max()) < 1.6 * max(level, 1e-12)
            seen["sudden"] = max(seen["sudden"], float(quiet and not seen["gradient_led"]))
        fifth = max(1, len(values) // 5)
        first, last = _median(values[:fifth]), _median(values[-fifth:])
        quarters = [_median(part) for part in np.array_split(values, 4)]
        falling = all(after < before for before, after in itertools.pairwise(quarters))
        seen["slow_progress"] = float(falling and first > 0 and 0.0 < (first - last) / first < 0.2)
        seen["training_falls"] = float(last < 0.9 * first) if first > 0 else 0.0
        tenth = _median(values[len(values) // 10 : len(values) // 10 + 5])
        seen["start_too_high"] = float(tenth > 0 and float(values[0]) > 20.0 * tenth and float(values[0]) > 20.0)
        for held in held_out[:1]:
            numbers = held.values[np.isfinite(held.values)]
            if len(numbers) < 3:
                continue
            third = max(1, len(numbers) // 3)
            seen["evaluation_below_training"] = float(_median(numbers[-third:]) < 0.93 * last)
            seen["evaluation_rises"] = float(_median(numbers[-third:]) > 1.07 * float(numbers.min()))
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
