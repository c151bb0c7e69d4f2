"""What a task is measured by: an overlap, a precision, a count of right answers that stays at nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from holdfast.debug.detectors.steps.progress import ProgressRule, count_of
from holdfast.debug.detectors.steps.select import SelectRule, of_kind
from holdfast.debug.types import Signal

__all__ = ["ScoreRule"]

# Overlaps as shares of one. An accuracy among thousands of classes begins as low, and climbs.
_OVERLAP = re.compile(r"(?:^|[^a-z])(?:m?dice|dsc|m?iou|jaccard|f1|m?ap|map_?50)(?:[^a-z]|$)", re.IGNORECASE)
# The same for answers that are texts.
_MATCH = re.compile(r"(?:^|[^a-z])(?:bleu|rouge|exact_?match|em)(?:[^a-z]|$)", re.IGNORECASE)
_ACCURACY = re.compile(r"(?:^|[^a-z])acc(?:uracy)?(?:[^a-z]|$)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRule:
    """When a score says that nothing was learnt of the task, whatever the loss does."""

    nothing: float = 0.05
    """A score between 0 and 1 that never rises above this says that nothing was learnt where the loss hardly fell …"""
    nothing_points: int = 20
    """… over this many points."""
    nothing_climbs: float = 1.3
    """How many times its middle third such a score may end at: what climbs on has only begun."""
    worthless: float = 0.01
    """A score that never rises above this says so however far the loss fell …"""
    worthless_points: int = 8
    """… over this many evaluations …"""
    worthless_steps: float = 1000.0
    """… and this many steps: detectors and translators begin at nothing, too."""
    frozen_points: int = 10
    """Evaluations from which a held-out accuracy that is the same to the last digit is that of one constant answer …"""
    frozen_good: float = 0.9
    """… unless it is above this: few samples, all of them known."""
    progress: ProgressRule = field(default_factory=ProgressRule)
    """When a series gets better."""
    select: SelectRule = field(default_factory=SelectRule)
    """Which of a run's series a question is about."""

    def nearly_nothing(self, signals: Sequence[Signal]) -> Signal | None:
        """Return an overlap that hardly ever left zero; one that is zero throughout may not have been measured."""
        for signal in of_kind(signals, "metric"):
            values = signal.values[np.isfinite(signal.values)]
            overlap = signal.layer is None and bool(_OVERLAP.search(signal.name))
            if not overlap or len(values) < self.nothing_points or not 0.0 < float(values.max()) <= self.nothing:
                continue
            often = np.count_nonzero(values) * 2 > len(values)
            if float(values.min()) >= 0.0 and often and not self._climbs(values):
                return signal
        return None

    def find_worthless(self, signals: Sequence[Signal]) -> Signal | None:
        """Return the score of a long run in which none ever rose above ``worthless``, and one was above 0.

        Held-out scores decide where there are any.
        """
        scores = self._scores(signals)
        long = [signal for signal in scores if self._is_long(signal)]
        told = [signal for signal in long if float(np.nanmax(signal.values)) > 0.0]
        return told[0] if told and not any(self._is_worth(signal) for signal in scores) else None

    def proves_nothing(self, signals: Sequence[Signal]) -> str | None:
        """Say which score keeps a run whose loss falls from being called healthy; None where no score does."""
        scores = self._scores(signals)
        if any(self._is_long(signal) for signal in scores) and not any(self._is_worth(signal) for signal in scores):
            return f"no score ever rises above {self.worthless:g} ({scores[0].name})"
        held_out = [signal for signal in of_kind(signals, "metric") if signal.metadata.get("split") == "eval"]
        frozen = [signal for signal in held_out if _ACCURACY.search(signal.name) and self._is_frozen(signal)]
        others = [*held_out, *of_kind(signals, "eval_loss", "reward")]
        others = [signal for signal in others if count_of(signal) >= self.worthless_points and signal not in frozen]
        if frozen and not any(self.progress.got_better(signal) for signal in others):
            return f"{frozen[0].name!r} is {float(frozen[0].values[0]):.4g} at all {len(frozen[0].values)} points"
        return None

    def _scores(self, signals: Sequence[Signal]) -> list[Signal]:
        """Return the scores of the whole task that were measured more than once, those held out where there are any."""
        found = [
            signal
            for signal in of_kind(signals, "metric")
            if signal.layer is None
            and (_OVERLAP.search(signal.name) or _MATCH.search(signal.name))
            and signal.metadata.get("higher_is_better")
            and count_of(signal) > 0
        ]
        return [signal for signal in found if signal.metadata.get("split") == "eval"] or found

    def _is_long(self, signal: Signal) -> bool:
        spans = float(signal.steps[-1] - signal.steps[0]) >= self.worthless_steps
        return count_of(signal) >= self.worthless_points and spans and self.select.began(signal.steps)

    def _is_worth(self, signal: Signal) -> bool:
        values = signal.values[np.isfinite(signal.values)]
        return float(values.max()) > self.worthless or float(values.min()) < 0.0 or self._climbs(values)

    def _climbs(self, values: NDArray[np.float64]) -> bool:
        third = len(values) // 3
        if not third:
            return False
        return float(np.median(values[-third:])) > self.nothing_climbs * float(np.median(values[third:-third]))

    def _is_frozen(self, signal: Signal) -> bool:
        values = self.select.as_share(signal.values[np.isfinite(signal.values)])
        if len(values) < self.frozen_points or float(np.ptp(values)) > 0.0:
            return False
        return 0.0 < float(values[0]) < self.frozen_good
