"""What gradients, updates, weights and activations show of a run: observations that speak for or against causes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.doubt import small_rates
from holdfast.debug.detectors.select import evaluation_losses, layered, of_kind, total_gradient_norms
from holdfast.debug.detectors.start import (
    LARGEST_GAIN,
    LARGEST_RECURRENT_GAIN,
    SMALLEST_GAIN,
    early_spreads,
    first_gains,
    recurrent_gain,
)
from holdfast.debug.types import Detection, DetectionContext, Failure, Signal

__all__ = ["facts_of", "middle", "observe_gradients", "observe_layers", "observe_parameters", "observe_precision"]

Array = NDArray[np.float64]

_RECURRENT = re.compile(r"rnn|lstm|gru|recurrent|weight_hh", re.IGNORECASE)


def observe_gradients(seen: dict[str, float], detections: Sequence[Detection], signals: Sequence[Signal]) -> None:
    """How the total gradient norm behaves, and whether it led the loss."""
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


def observe_parameters(seen: dict[str, float], signals: Sequence[Signal]) -> None:
    """Whether the parameters move, and whether they follow their gradients."""
    updates = [signal for signal in of_kind(signals, "update_norm") if signal.layer is None]
    weights = [signal for signal in of_kind(signals, "weight_norm") if signal.layer is None]
    seen["updates_unknown"] = float(not updates and not weights)
    if updates:
        typical = middle(updates[0].values)
        size = middle(weights[0].values) if weights else 1.0
        rates = of_kind(signals, "lr")
        asked = middle(rates[0].values) * size if rates else 0.0
        # What is left is at most weight decay: the gradients never reach the parameters.
        norms = total_gradient_norms(signals)
        pushed = middle(rates[0].values) * middle(norms[0].values) if rates and norms else 0.0
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


def observe_layers(
    seen: dict[str, float], detections: Sequence[Detection], signals: Sequence[Signal], context: DetectionContext
) -> None:
    """What single layers show: dead, silent or out of range."""
    norms = layered(signals, "grad_norm")
    silent = [layer for layer, signal in norms.items() if len(signal.values) >= 5 and middle(signal.values) == 0.0]
    seen["layers_silent"] = float(len(norms) >= 2 and len(silent) >= 0.5 * len(norms))
    dead = [f for f in facts_of(detections, Failure.DEAD_LAYER) if f.get("statistic") in ("zero", "saturated")]
    seen["activations_dead"] = float(bool(dead))
    seen["died_later"] = float(bool(dead) and all(f.get("late") for f in dead))
    collapsed = [f for f in facts_of(detections, Failure.DEAD_LAYER) if f.get("statistic") == "collapsed"]
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


def observe_precision(seen: dict[str, float], detections: Sequence[Detection], signals: Sequence[Signal]) -> None:
    """Whether half precision is in use, and whether it overflows."""
    scales = of_kind(signals, "loss_scale")
    seen["half_precision"] = float(
        bool(scales) and any(np.nanmax(s.values) > 1 for s in scales if np.isfinite(s.values).any())
    )
    fell = any(s.values[-1] < np.nanmax(s.values) / 64 for s in scales if np.isfinite(s.values).any())
    seen["scale_fell"] = float(fell or any(d.failure == Failure.LOSS_SCALE_COLLAPSE for d in detections))


def facts_of(detections: Sequence[Detection], *failures: Failure) -> list[Mapping[str, object]]:
    """The facts of the detections of the given failures."""
    return [detection.facts for detection in detections if detection.failure in failures]


def middle(values: Array) -> float:
    """The median of the finite values, 0 where there is none."""
    finite = values[np.isfinite(values)]
    return float(np.median(finite)) if len(finite) else 0.0
