"""Observations about a run that support or oppose a cause, in one table of names.

Each observation is a number between 0 (false, or not visible in the log) and 1 (clearly true). The rules and the
learned ranker read this table and nothing else, so both know the same facts, and a report can show them. Of two
observations that exclude each other at most one is kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from holdfast.debug.attribution.crash_observer import CrashObserver
from holdfast.debug.attribution.model_observers import (
    GradientObserver,
    LayerObserver,
    ParameterObserver,
    PrecisionObserver,
)
from holdfast.debug.attribution.observing import Scene, Seen
from holdfast.debug.attribution.run_observers import LossObserver, PolicyObserver, RateObserver, TimeObserver
from holdfast.debug.detectors.steps.select import of_kind
from holdfast.debug.types import Detection, DetectionContext, Failure, Signal

__all__ = ["EXCLUSIVE", "OBSERVATIONS", "Observer", "observe", "witnesses"]

OBSERVATIONS: Mapping[str, str] = {
    "early": "it began in the first eighth of the run",
    "from_start": "it was there from the first logged step",
    "late": "the run was fine for a good while first",
    "excerpt": "the log does not contain the run's beginning",
    "few_points": "the log has few points",
    "recovered": "the loss came back by itself",
    "ends_ruined": "the loss ends above where it began, or is gone",
    "rate_peaks_at_start": "the learning rate is at its peak from the first step",
    "rate_warms_up": "the learning rate is warmed up",
    "rate_rose_before": "the learning rate rose shortly before",
    "rate_large": "the learning rate is large by any standard",
    "rate_small": "the learning rate is tiny by any standard",
    "rate_ordinary": "the learning rate is in the range people use",
    "rate_jumped": "the learning rate jumped sharply just before",
    "rate_unknown": "no learning rate was logged",
    "rate_released": "a cut of the learning rate freed the loss",
    "gradient_led": "the gradient norm rose before the loss did",
    "gradient_smooth": "the gradient norm drifts smoothly, as a running sum does",
    "gradient_left": "the gradient norm left its usual level by more than ten times",
    "gradient_grows": "the gradient norm grows over the run",
    "gradient_fades": "the gradient norm fades over the run",
    "gradient_alive": "gradients are of ordinary size throughout",
    "gradient_heavy": "gradient norms are thousands of times larger than usual at times",
    "gradient_zero": "the gradients are exactly zero",
    "updates_zero": "the parameters do not move at all",
    "updates_tiny": "the parameters hardly move",
    "updates_ignore_gradient": "the parameters move by far less than the learning rate and the gradients imply",
    "updates_unknown": "no update sizes were logged",
    "evaluation_frozen": "the held-out loss does not move",
    "layers_silent": "most layers never get a gradient",
    "activations_dead": "a layer's activations are dead or saturated",
    "died_later": "the layer was alive at first",
    "activations_collapsed": "a layer gives the same output for every input",
    "inputs_wide": "the inputs are far from unit scale",
    "activations_wide": "activations are huge from the first step although the inputs are not",
    "weights_off_scale": "most weights are on an unusual scale from the first step",
    "recurrent_gain": "the recurrent matrix amplifies what it carries from the first step",
    "recurrent": "the model has a recurrent layer",
    "recurrent_widest": "the recurrent layer's activations are the widest",
    "half_precision": "a loss scale is in use",
    "scale_fell": "the loss scale kept falling",
    "scale_cut": "the loss scale was cut during the failure",
    "gradient_not_finite": "gradient norms are not finite at some steps",
    "sudden": "the loss jumped within a point or two, with nothing leading up to it",
    "repeated": "it happened several times",
    "single_batches": "it happened several times, each for a step or two, and the loss came back at once",
    "periodic": "the loss swings with a fixed period",
    "order_repeats": "the loss repeats itself batch by batch, pass after pass",
    "evaluation_below_training": "the held-out loss is well below the training loss",
    "evaluation_rises": "the held-out loss rises",
    "evaluation_unharmed": "the held-out loss keeps falling during the failure",
    "evaluation_harmed": "the held-out loss rises with the failure",
    "training_falls": "the training loss keeps falling",
    "slow_progress": "the loss creeps down steadily, but far too slowly",
    "at_guessing": "the loss is at the level of guessing",
    "one_answer": "the policy's entropy is almost zero",
    "random_answers": "the policy's entropy is back where it began",
    "policy_jumped": "the policy moved far in a single update",
    "turned_infinite": "a logged series is infinite",
    "start_too_high": "the loss begins far above where it soon settles",
    "agent": "a reward is logged: an agent learns",
    "rank_hangs": "a rank entered fewer collectives than the others",
    "memory_ran_out": "the log says that memory ran out",
    "was_killed": "the log says that the job was killed",
    "rank_missing": "the log says that a collective timed out",
    "device_failed": "the log quotes a device error",
    "disk_ran_out": "the log says that the disk was full",
    "module_missing": "the log quotes an import that failed",
    "checkpoint_differs": "the log quotes an error while loading a checkpoint",
    "file_missing": "the log quotes a file that could not be opened",
    "network_failed": "the log quotes a connection that failed",
    "arguments_wrong": "the log quotes an option or a setting that was refused",
    "shapes_differ": "the log quotes shapes that do not fit",
    "error_raised": "the log quotes an exception of the program",
}
"""Every observation by name, with the words used in reports."""

EXCLUSIVE: tuple[tuple[str, str], ...] = (
    ("late", "early"),
    ("late", "from_start"),
    ("excerpt", "early"),
    ("excerpt", "from_start"),
    ("ends_ruined", "recovered"),
    ("rate_warms_up", "rate_peaks_at_start"),
    ("rate_large", "rate_ordinary"),
    ("rate_large", "rate_small"),
    ("rate_small", "rate_ordinary"),
    ("gradient_zero", "gradient_alive"),
    ("gradient_zero", "gradient_fades"),
    ("gradient_led", "sudden"),
    ("single_batches", "repeated"),
    ("gradient_left", "gradient_smooth"),
    ("gradient_grows", "gradient_fades"),
    ("gradient_heavy", "gradient_alive"),
    ("updates_zero", "updates_tiny"),
    ("evaluation_harmed", "evaluation_unharmed"),
    ("evaluation_rises", "evaluation_frozen"),
    ("weights_off_scale", "recurrent_gain"),
)
"""Pairs that cannot both be true; if both are observed, the first is kept."""
WITNESSES: tuple[tuple[str, ...], ...] = (
    ("lr",),
    ("grad_norm",),
    ("eval_loss", "metric"),
    ("update_norm", "weight_norm", "activation", "weight_gain"),
)
"""The kinds of series that tell apart causes which look the same in the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observer:
    """Checks a run for everything in ``OBSERVATIONS``."""

    time: TimeObserver = field(default_factory=TimeObserver)
    rate: RateObserver = field(default_factory=RateObserver)
    gradient: GradientObserver = field(default_factory=GradientObserver)
    parameter: ParameterObserver = field(default_factory=ParameterObserver)
    layer: LayerObserver = field(default_factory=LayerObserver)
    precision: PrecisionObserver = field(default_factory=PrecisionObserver)
    loss: LossObserver = field(default_factory=LossObserver)
    policy: PolicyObserver = field(default_factory=PolicyObserver)
    crash: CrashObserver = field(default_factory=CrashObserver)
    is_so: float = 0.5
    """The value from which an observation counts as true and is shown."""

    def observe(self, scene: Scene) -> Seen:
        """Return every observation by name."""
        seen = dict.fromkeys(OBSERVATIONS, 0.0)
        whole = replace(scene, signals=_while_numbers_last(scene))
        for part in (self.time, self.rate, self.gradient, self.precision, self.policy, self.crash):
            seen.update(part.observe(scene))
        seen.update(self.parameter.observe(whole))
        seen.update(self.layer.observe(whole, rate_large=seen["rate_large"]))
        seen.update(self.loss.observe(scene))
        for kept, dropped in EXCLUSIVE:
            if seen[kept] >= self.is_so:
                seen[dropped] = 0.0
        return seen


def observe(detections: Sequence[Detection], signals: Sequence[Signal], context: DetectionContext) -> Seen:
    """Observe a run with the default thresholds."""
    return Observer().observe(Scene(tuple(detections), tuple(signals), context))


def witnesses(signals: Sequence[Signal]) -> float:
    """Return the fraction of the kinds in ``WITNESSES`` that this run logged."""
    logged = [any(len(signal.values) > 1 for signal in of_kind(signals, *kinds)) for kinds in WITNESSES]
    return float(np.mean(logged))


def _while_numbers_last(scene: Scene) -> tuple[Signal, ...]:
    """Return the signals up to the first non-finite step: what stops moving after it is an effect, not a cause."""
    ends = (Failure.NAN, Failure.INF, Failure.LOSS_SCALE_COLLAPSE)
    lost = [seen.first_step for seen in scene.detections if seen.failure in ends and seen.first_step is not None]
    if not lost:
        return scene.signals
    cut = [(signal, int(np.searchsorted(signal.steps, min(lost)))) for signal in scene.signals]
    return tuple(replace(signal, steps=signal.steps[:at], values=signal.values[:at]) for signal, at in cut if at)
