"""Weights, activations and losses that begin on the wrong scale, seen at the first logged step."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from holdfast.debug.detectors.steps.baseline import TENTH
from holdfast.debug.detectors.steps.select import SelectRule, of_kind
from holdfast.debug.types import Signal

__all__ = ["StartRule", "WildStart"]

# Embedding rows are looked up and never summed over: a standard deviation of one is usual.
_LOOKED_UP = re.compile(r"emb|wte|wpe|position|token|lookup|shared", re.IGNORECASE)
_RECURRENT = re.compile(r"weight_hh|recurrent_kernel", re.IGNORECASE)
_OUTPUT = re.compile(r"head|logit|output|classifier|lm_head", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WildStart:
    """The layer that shows a bad start, what was seen there, and the number."""

    signal: Signal
    layer: str
    value: float
    claim: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRule:
    """When a forward pass is out of range from the first step: inputs or weights on the wrong scale."""

    activation: float = 30.0
    """Minimum standard deviation of activations that no sane start has: about one is usual."""
    output_share: float = 0.4
    """The fraction of that for the outputs, which no later layer can shrink."""
    largest_gain: float = 3.0
    """Maximum gain: every usual initialisation has a gain between 0.6 and 1.4, and trained weights stay below three."""
    smallest_gain: float = 0.02
    """Minimum gain: almost zero weights pass nothing on; zero is intended only for a branch that starts switched
    off."""
    layers_share: float = 0.5
    """Minimum fraction of the weight matrices that must be off: one odd layer may be intended."""
    largest_recurrent_gain: float = 1.5
    """A recurrent matrix is applied once per time step: with a gain above one its signal grows with the sequence."""
    hot_loss: float = 3.0
    """Minimum ratio of the start of a loss to the level of its second tenth for a start out of range."""
    first_points: int = 5
    """The first steps are at most this many points, and at most a tenth of the log."""
    minimum_points: int = 16
    """Minimum number of losses for a second tenth."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series are used."""

    def find(self, signals: Sequence[Signal]) -> WildStart | None:
        """Return the layer that is out of range at the first step, by its activations or weights."""
        return self._wide_activations(self.early_spreads(signals)) or self._large_weights(signals)

    def early_spreads(self, signals: Sequence[Signal]) -> dict[str, tuple[float, Signal]]:
        """Return the spread of every layer's activations at the first logged steps."""
        found: dict[str, tuple[float, Signal]] = {}
        for signal in of_kind(signals, "activation"):
            if signal.layer is not None and "std" in f"{signal.metadata.get('statistic', '')} {signal.name}".lower():
                head = signal.values[: max(1, min(self.first_points, len(signal.values) // TENTH))]
                found[signal.layer] = (float(np.nanmax(head)) if np.isfinite(head).any() else float("inf"), signal)
        return found

    def first_gains(self, signals: Sequence[Signal]) -> dict[str, tuple[float, Signal]]:
        """Return the gain of every weight matrix at the first logged step, if the log includes the run's beginning."""
        return {
            signal.layer: (float(signal.values[0]), signal)
            for signal in of_kind(signals, "weight_gain")
            if signal.layer is not None
            and not _LOOKED_UP.search(signal.layer)
            and np.isfinite(signal.values[0])
            and self.select.began(signal.steps)
        }

    def recurrent_gain(self, signals: Sequence[Signal]) -> float:
        """Return the largest gain of a recurrent matrix at the first logged step, or 0 if none was logged."""
        return max(
            (gain for layer, (gain, _) in self.first_gains(signals).items() if _RECURRENT.search(layer)), default=0.0
        )

    def is_off_scale(self, gains: Sequence[float]) -> bool:
        """Return whether most weight matrices are on a different scale from any usual initialisation."""
        odd = [gain for gain in gains if gain > self.largest_gain or gain < self.smallest_gain]
        return len(odd) >= max(2.0, self.layers_share * len(gains))

    def _wide_activations(self, early: dict[str, tuple[float, Signal]]) -> WildStart | None:
        if not early:
            return None
        layer = max(early, key=lambda name: early[name][0])
        wide = self.output_share * self.activation
        outputs = [name for name in early if _OUTPUT.search(name) and early[name][0] > wide]
        if early[layer][0] < self.activation and not outputs:
            return None
        layer = outputs[0] if early[layer][0] < self.activation else layer
        spread, signal = early[layer]
        claim = f"spreads over {spread:.3g} at step {signal.steps[0]:g}, where a sane start has about 1"
        return WildStart(signal, layer, spread, claim)

    def _large_weights(self, signals: Sequence[Signal]) -> WildStart | None:
        gains = self.first_gains(signals)
        if not gains:
            return None
        layer = max(gains, key=lambda name: gains[name][0])
        large = [name for name, (gain, _) in gains.items() if gain > self.largest_gain]
        if len(large) < max(2, self.layers_share * len(gains)):
            recurrent = [n for n in gains if _RECURRENT.search(n) and gains[n][0] > self.largest_recurrent_gain]
            if not recurrent or not self._began_hot(signals):
                return None
            layer = recurrent[0]
        gain, signal = gains[layer]
        claim = f"has a gain of {gain:.3g} at step {signal.steps[0]:g}, where usual starts have about 1"
        return WildStart(signal, layer, gain, claim)

    def _began_hot(self, signals: Sequence[Signal]) -> bool:
        for loss in self.select.training_losses(signals):
            values = loss.values[np.isfinite(loss.values)]
            tenth = max(1, len(values) // TENTH)
            settled = float(np.median(values[tenth : 2 * tenth + 2])) if len(values) >= self.minimum_points else 0.0
            if settled > 0 and float(values[0]) > self.hot_loss * settled:
                return True
        return False
