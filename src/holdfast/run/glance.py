"""A glance at every loss: is it so far out that the detectors should run now instead of at their next turn?"""

from __future__ import annotations

import math
import time

__all__ = ["Glance"]


class Glance:
    """A running level of the loss that asks for a few looks after the loss has left it.

    Args:
        deviations: how many of its usual deviations above its level a loss must be.
        warm_up: losses before the first alarm.
        looks: the numbers of steps after an alarm at which to look.
        share: the share of the time that such looks may take. A loss that is farther out than ever is looked at anyway:
            there are few of those.
        record: how many times farther out than ever.
    """

    def __init__(
        self,
        *,
        deviations: float = 6.0,
        warm_up: int = 24,
        looks: tuple[int, ...] = (0, 3, 8, 24),
        share: float = 0.005,
        record: float = 10.0,
    ) -> None:
        self._deviations = deviations
        self._warm_up = warm_up
        self._looks = looks
        self._share = share
        self._record = record
        self._farthest = float("inf")
        self._level = self._deviation = 0.0
        self._seen = 0
        self._due: list[int] = []
        self._free_at = 0.0

    def wants_look(self, loss: float) -> bool:
        """Take a loss; return whether the detectors should look now."""
        self._seen = seen = self._seen + 1
        due = self._due
        if due:
            self._due = due = [steps - 1 for steps in due]
        distance = loss - self._level
        if distance - distance != 0.0:  # not a finite number
            return bool(due) and self._take_due()
        deviation, alarm = self._deviation, False
        kept = -distance if distance < 0.0 else distance
        if seen > self._warm_up:
            alarm = distance > self._deviations * deviation
            if kept > 3.0 * deviation:  # the level follows slowly, and hardly follows outliers
                kept = 3.0 * deviation
        weight = 0.02 if seen >= 50 else 1.0 / seen
        self._level += weight * kept if distance > 0.0 else -weight * kept
        self._deviation += weight * (kept - deviation)
        if alarm and not due and (distance > self._farthest or time.monotonic() >= self._free_at):
            self._due = due = list(self._looks)
            self._farthest = self._record * distance
        return bool(due) and self._take_due()

    @property
    def is_awake(self) -> bool:
        """Whether looks are still due after an alarm."""
        return bool(self._due)

    @property
    def bound(self) -> float:
        """The loss above which there would now be an alarm."""
        if self._seen < self._warm_up:
            return math.inf
        return self._level + self._deviations * self._deviation

    def _take_due(self) -> bool:
        if self._due[0] > 0:
            return False
        self._due.pop(0)
        return True

    def paid(self, seconds: float) -> None:
        """Record the time of a look; the next alarm waits until all its looks would be a small share of the time."""
        self._free_at = time.monotonic() + seconds * len(self._looks) / self._share
