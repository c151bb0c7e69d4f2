"""Observers of the model: gradients, updates, weights, activations and the number format."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import numpy as np

from holdfast.debug.attribution.observing import Scene, Seen, finite, middle
from holdfast.debug.detectors.dead_layer import DeadLayerFacts, Deadness
from holdfast.debug.detectors.steps.doubt import DoubtRule
from holdfast.debug.detectors.steps.select import all_zero, evaluation_losses, layered, of_kind, total_gradient_norms
from holdfast.debug.detectors.steps.start import StartRule
from holdfast.debug.types import Failure, Signal

__all__ = ["GradientObserver", "LayerObserver", "ParameterObserver", "PrecisionObserver"]

_RECURRENT = re.compile(r"rnn|lstm|gru|recurrent|weight_hh", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientObserver:
    """How the total gradient norm behaves, and whether it rose before the loss."""

    minimum_points: int = 12
    """Minimum number of norms that show a trend."""
    sum_span: float = 0.3
    """A running sum changes by more than this, in natural logarithms, over the run …"""
    sum_steps: float = 0.15
    """… by less than this fraction of that from step to step …"""
    sum_fade: float = -0.2
    """… and does not fall by more than this."""
    sum_begins: float = 0.1
    """A running sum grows from the start, by more than this in natural logarithms between the first and the second
    eighth of a run: gradients that are never cleared have no usual level. A norm that has one …"""
    left: float = 10.0
    """… and is this many times as large in part of the rest of the run has left it."""
    left_share: float = 0.1
    """The fraction of the rest of the run that must be above it."""
    smallest: float = 1e-4
    """Ordinary gradient norms are above this …"""
    largest: float = 1e3
    """… and below this …"""
    dip: float = 1e-3
    """… never below this fraction of their median …"""
    burst: float = 1e2
    """… and never above this multiple of it."""
    heavy: float = 1e3
    """Norms this many times their median are heavy."""
    led: float = 4.0
    """A norm that reached this many times its median just before the loss moved rose first."""
    led_points: float = 4.0
    """"Just before" means within this many logging intervals."""
    led_before: int = 8
    """Number of norms before the failure over which the median is taken."""

    def observe(self, scene: Scene) -> Seen:
        """Observe growth, smoothness and size of the first total gradient norm."""
        seen: Seen = {"gradient_zero": float(all_zero(scene.signals, "grad_norm") is not None)}
        for norm in total_gradient_norms(scene.signals)[:1]:
            seen["gradient_not_finite"] = float(bool(np.any(~np.isfinite(norm.values))))
            good = np.isfinite(norm.values) & (norm.values > 0)
            values, steps = norm.values[good], norm.steps[good]
            if len(values) < self.minimum_points:
                continue
            logs = np.log(values)
            wobble = float(np.median(np.abs(np.diff(logs))))
            span = float(np.quantile(logs, 0.9) - np.quantile(logs, 0.1))
            eighth = max(2, len(values) // 8)
            growth = float(np.median(logs[-3 * eighth :]) - np.median(logs[:eighth]))
            usual = float(np.median(values))
            smooth = span > self.sum_span and wobble < self.sum_steps * span and growth > self.sum_fade
            steady = values.min() > self.dip * usual and values.max() < self.burst * usual
            seen["gradient_smooth"] = float(smooth)
            seen["gradient_left"] = float(scene.select.began(steps) and self._left(logs, eighth))
            seen["gradient_grows"] = float(np.clip(growth / np.log(10.0), 0.0, 1.0))
            seen["gradient_fades"] = float(np.clip(-growth / np.log(10.0), 0.0, 1.0))
            seen["gradient_alive"] = float(self.smallest < usual < self.largest and steady)
            seen["gradient_heavy"] = float(values.max() > self.heavy * usual)
            seen["gradient_led"] = float(self._led(scene, norm.name, values, steps))
        return seen

    def _left(self, logs: np.ndarray, eighth: int) -> bool:
        """Return whether the norm had a stable level in the first quarter of the run and is far above it later."""
        begins = float(np.median(logs[eighth : 2 * eighth]) - np.median(logs[:eighth]))
        later = float(np.quantile(logs[2 * eighth :], 1.0 - self.left_share))
        return begins <= self.sum_begins and later >= float(np.median(logs[: 2 * eighth])) + np.log(self.left)

    def _led(self, scene: Scene, name: str, values: np.ndarray, steps: np.ndarray) -> bool:
        others = [
            seen.certain_step if seen.certain_step is not None else seen.first_step
            for seen in scene.detections
            if seen.signal != name
        ]
        first = min((step for step in others if step is not None), default=None)
        if first is None:
            return False
        before = values[steps < first]
        near = values[(steps < first) & (steps >= first - self.led_points * np.median(np.diff(steps)))]
        known = len(before) >= self.led_before and len(near) > 0
        return known and float(near.max()) > self.led * float(np.median(before))


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterObserver:
    """Whether the parameters move, and whether they follow their gradients."""

    ignored: float = 0.1
    """Updates below this fraction of what the learning rate and the weights imply …"""
    pushed: float = 0.5
    """… and below this fraction of learning rate times gradient did not use the gradient: only weight decay is left."""
    tiny: float = 1e-5
    """Updates below this fraction of the weights hardly move them."""
    steady: float = 0.005
    """Updates that follow the learning rate to within this fraction do not follow noisy gradients."""
    steady_points: int = 8
    """Minimum number of points for that comparison."""
    frozen: float = 1e-3
    """A held-out loss that changes by less than this fraction does not move."""
    minimum_points: int = 5
    """Minimum number of weight norms that show movement."""
    doubt: DoubtRule = field(default_factory=DoubtRule)

    def observe(self, scene: Scene) -> Seen:
        """Compare updates with weights, learning rates and gradients, and observe held-out losses that do not move."""
        updates = [signal for signal in of_kind(scene.signals, "update_norm") if signal.layer is None]
        weights = [signal for signal in of_kind(scene.signals, "weight_norm") if signal.layer is None]
        seen: Seen = {"updates_unknown": float(not updates and not weights)}
        if updates:
            seen |= self._updates(updates[0], weights, scene)
        elif weights and len(weights[0].values) > self.minimum_points:
            values = finite(weights[0].values)
            moved = float(np.ptp(values)) if len(values) else 0.0
            seen["updates_zero"] = float(len(values) > self.minimum_points and moved == 0.0)
            seen["updates_tiny"] = float(len(values) > 0 and 0 < moved < self.tiny * abs(float(values[0])))
        elif self.doubt.small_rates(scene.signals) is not None:
            seen["updates_tiny"] = 1.0
        held = [finite(signal.values) for signal in evaluation_losses(scene.signals)]
        still = [len(v) >= 3 and np.ptp(v) <= self.frozen * abs(float(v[0])) for v in held]
        seen["evaluation_frozen"] = float(any(still))
        return seen

    def _updates(self, update: Signal, weights: list[Signal], scene: Scene) -> Seen:
        rates, norms = of_kind(scene.signals, "lr"), total_gradient_norms(scene.signals)
        typical = middle(update.values)
        size = middle(weights[0].values) if weights else 1.0
        rate = middle(rates[0].values) if rates else 0.0
        pushed = rate * middle(norms[0].values) if norms else 0.0
        steady = bool(rates) and self._is_steady(update, rates[0])
        follows = not (rate * size > 0 and typical < self.ignored * rate * size)
        ignored = not follows and (typical < self.pushed * pushed or steady)
        return {
            "updates_ignore_gradient": float(ignored),
            "updates_zero": float(typical == 0.0),
            "updates_tiny": float(not ignored and 0.0 < typical < self.tiny * size),
        }

    def _is_steady(self, update: Signal, rate: Signal) -> bool:
        """Return whether updates follow the learning rate to within ``steady``, which noisy gradients never do."""
        if len(update.values) < self.steady_points or len(update.values) != len(rate.values):
            return False
        ratio = finite(update.values / np.where(rate.values > 0, rate.values, np.nan))
        known = len(ratio) >= self.steady_points
        return known and float(np.median(np.abs(np.diff(ratio)))) < self.steady * float(np.median(ratio))


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerObserver:
    """Individual layers that are dead, silent or out of range."""

    silent_share: float = 0.5
    """The fraction of silent layers from which "most layers" are silent."""
    minimum_points: int = 5
    """Minimum number of gradient norms of a layer."""
    wide_inputs: float = 8.0
    """Inputs whose standard deviation is above this are not normalised."""
    wide: float = 15.0
    """Activations whose standard deviation is above this are huge."""
    widest: float = 3.0
    """Minimum standard deviation for the widest layer to be blamed."""
    start: StartRule = field(default_factory=StartRule)

    def observe(self, scene: Scene, *, rate_large: float) -> Seen:
        """Observe dead and silent layers, and widths and gains at the first steps.

        What a far too large learning rate did to the weights within the first steps says nothing about their
        initialisation, so these observations count for less the larger it is.
        """
        norms = layered(scene.signals, "grad_norm")
        silent = [n for n, s in norms.items() if len(s.values) >= self.minimum_points and middle(s.values) == 0.0]
        told = scene.facts(DeadLayerFacts)
        dead = [facts for facts in told if facts.outputs_dead]
        seen = {
            "layers_silent": float(len(norms) >= 2 and len(silent) >= self.silent_share * len(norms)),
            "activations_dead": float(bool(dead)),
            "died_later": float(bool(dead) and all(facts.died_later for facts in dead)),
            "activations_collapsed": float(any(facts.how is Deadness.COLLAPSED for facts in told)),
        }
        return seen | self._at_start(scene, list(norms), trusted=1.0 - rate_large)

    def _at_start(self, scene: Scene, layers: list[str], *, trusted: float) -> Seen:
        widths = {layer: spread for layer, (spread, _) in self.start.early_spreads(scene.signals).items()}
        inputs = [width for layer, width in widths.items() if "input" in layer.lower()]
        others = [width for layer, width in widths.items() if "input" not in layer.lower()]
        wide_inputs = bool(inputs) and max(inputs) > self.wide_inputs
        off_scale = self.start.is_off_scale([gain for gain, _ in self.start.first_gains(scene.signals).values()])
        amplifies = self.start.recurrent_gain(scene.signals) > self.start.largest_recurrent_gain
        widest = max(widths, key=lambda layer: widths[layer], default="")
        words = [*layers, *widths, *(value for value in scene.context.config.values() if isinstance(value, str))]
        return {
            "inputs_wide": float(wide_inputs),
            "activations_wide": trusted * float(bool(others) and max(others) > self.wide and not wide_inputs),
            "weights_off_scale": trusted * float(off_scale),
            "recurrent_gain": trusted * float(amplifies and not off_scale),
            "recurrent_widest": float(bool(_RECURRENT.search(widest)) and widths[widest] > self.widest),
            "recurrent": float(bool(_RECURRENT.search(" ".join(words)))),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PrecisionObserver:
    """Whether half precision is in use, and whether it overflows."""

    fell: float = 64.0
    """A loss scale that ends below its maximum divided by this kept falling."""
    cut: float = 4.0
    """A loss scale divided by at least this around the failure was cut there: a single halving is routine."""
    around: float = 3.0
    """"Around" means within this many logging intervals."""

    def observe(self, scene: Scene) -> Seen:
        """Observe loss scales and how they changed."""
        scales = [signal for signal in of_kind(scene.signals, "loss_scale") if np.isfinite(signal.values).any()]
        used = any(np.nanmax(signal.values) > 1 for signal in scales)
        fell = any(signal.values[-1] < np.nanmax(signal.values) / self.fell for signal in scales)
        return {
            "half_precision": float(used),
            "scale_fell": float(fell or scene.has(Failure.LOSS_SCALE_COLLAPSE)),
            "scale_cut": float(any(self._was_cut(scene, signal) for signal in scales)),
        }

    def _was_cut(self, scene: Scene, scale: Signal) -> bool:
        gap = float(np.median(np.diff(scale.steps))) if len(scale.steps) > 1 else 0.0
        for seen in scene.detections:
            if seen.first_step is None or seen.last_step is None:
                continue
            before = scale.values[scale.steps < seen.first_step]
            near = (scale.steps >= seen.first_step) & (scale.steps <= seen.last_step + self.around * gap)
            inside = scale.values[near]
            if len(before) and len(inside) and 0 < float(np.nanmin(inside)) <= float(before[-1]) / self.cut:
                return True
        return False
