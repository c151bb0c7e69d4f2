"""What the first logged step shows: weights, activations and losses that begin on the wrong scale."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.debug.detectors.select import of_kind, training_losses
from holdfast.debug.types import Signal

__all__ = ["WildStart", "early_spreads", "find_wild_start", "first_gains", "recurrent_gain"]

# Every usual initialisation has a gain between 0.6 and 1.4; trained weights stay below three.
LARGEST_GAIN = 3.0
# Weights of next to nothing pass nothing on; zero is meant only where a branch starts out switched off.
SMALLEST_GAIN = 0.02
# A recurrent matrix is applied once a time step: beyond one, what it carries grows with the length of the sequence.
LARGEST_RECURRENT_GAIN = 1.5
# How many times the level of its second tenth a loss begins at when its start was out of range.
HOT_LOSS = 3.0
# Rows that are looked up and never summed over: unit spread is their usual start.
_LOOKED_UP = re.compile(r"emb|wte|wpe|position|token|lookup|shared", re.IGNORECASE)
_RECURRENT = re.compile(r"weight_hh|recurrent_kernel", re.IGNORECASE)
_OUTPUT = re.compile(r"head|logit|output|classifier|lm_head", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class WildStart:
    """The layer that gives a wild start away, what was seen there, and the number."""

    signal: Signal
    layer: str
    value: float
    claim: str


def early_spreads(signals: Sequence[Signal]) -> dict[str, tuple[float, Signal]]:
    """The spread of every layer's activations at the first logged steps."""
    found: dict[str, tuple[float, Signal]] = {}
    for signal in of_kind(signals, "activation"):
        if signal.layer is not None and "std" in f"{signal.metadata.get('statistic', '')} {signal.name}".lower():
            head = signal.values[: max(1, min(5, len(signal.values) // 10))]
            found[signal.layer] = (float(np.nanmax(head)) if np.isfinite(head).any() else float("inf"), signal)
    return found


def first_gains(signals: Sequence[Signal]) -> dict[str, tuple[float, Signal]]:
    """The gain of every weight matrix at the first logged step, where the log has the run's beginning."""
    return {
        signal.layer: (float(signal.values[0]), signal)
        for signal in of_kind(signals, "weight_gain")
        if signal.layer is not None
        and not _LOOKED_UP.search(signal.layer)
        and np.isfinite(signal.values[0])
        and float(signal.steps[0]) <= 0.2 * float(signal.steps[-1])
    }


def recurrent_gain(signals: Sequence[Signal]) -> float:
    """The largest gain of a recurrent matrix at the first logged step, 0 where none was logged."""
    return max((gain for layer, (gain, _) in first_gains(signals).items() if _RECURRENT.search(layer)), default=0.0)


def find_wild_start(signals: Sequence[Signal], *, activation: float) -> WildStart | None:
    """A forward pass that is out of range from the first step: inputs or weights on the wrong scale.

    Args:
        signals: activations, weight gains and losses.
        activation: the spread of activations no sane start has.
    """
    return _wide_activations(early_spreads(signals), activation) or _large_weights(signals)


def _wide_activations(early: dict[str, tuple[float, Signal]], most: float) -> WildStart | None:
    if not early:
        return None
    layer = max(early, key=lambda name: early[name][0])
    outputs = [name for name in early if _OUTPUT.search(name) and early[name][0] > 0.4 * most]
    if early[layer][0] < most and not outputs:
        return None
    layer = outputs[0] if early[layer][0] < most else layer
    spread, signal = early[layer]
    return WildStart(
        signal, layer, spread, f"spreads over {spread:.3g} at the first step, where a sane start has about 1"
    )


def _large_weights(signals: Sequence[Signal]) -> WildStart | None:
    gains = first_gains(signals)
    if not gains:
        return None
    layer = max(gains, key=lambda name: gains[name][0])
    large = [name for name, (gain, _) in gains.items() if gain > LARGEST_GAIN]
    if len(large) < max(2, 0.5 * len(gains)):
        recurrent = [name for name in gains if _RECURRENT.search(name) and gains[name][0] > LARGEST_RECURRENT_GAIN]
        if not recurrent or not _began_hot(signals):
            return None
        layer = recurrent[0]
    gain, signal = gains[layer]
    return WildStart(
        signal, layer, gain, f"has a gain of {gain:.3g} at the first step, where usual starts have about 1"
    )


def _began_hot(signals: Sequence[Signal]) -> bool:
    for loss in training_losses(signals):
        values = loss.values[np.isfinite(loss.values)]
        tenth = max(1, len(values) // 10)
        if len(values) >= 16 and float(values[0]) > HOT_LOSS * float(np.median(values[tenth : 2 * tenth + 2])) > 0:
            return True
    return False
