"""The detectors on a run that is still going: fed step by step, at a cost a training loop does not feel.

A window of every signal is kept; when it is full its older half is thinned, so that the beginning of a long run is
never forgotten, only remembered more coarsely. Two kinds of looks are taken at it. A *glance* at every step costs next
to nothing: is a loss no longer finite, does a gradient norm climb out of its range? A *look* runs the detectors over
the whole window, as often as a fixed time budget a step allows: ten times the signals means ten times fewer looks,
never a slower step. The detectors are the very ones that read finished logs.
"""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast.debug.attribution.engine import AttributionEngine
from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.explosion import GradientExplosionDetector
from holdfast.debug.detectors.non_finite import NaNDetectionDetector
from holdfast.debug.detectors.registry import default_detectors
from holdfast.debug.ingestion.names import Meaning, meaning_of
from holdfast.debug.thinning import spread
from holdfast.debug.types import Detection, DetectionContext, DetectionResult, Finding, Signal
from holdfast.errors import ConfigError

__all__ = ["OnlineDebugger", "OnlineOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineOptions:
    """How much the online face remembers and spends.

    Args:
        window: points kept of each signal.
        first_look: how many points a signal must have before the first look.
        budget_seconds: time a step may cost on average.
    """

    window: int = 4096
    first_look: int = 48
    budget_seconds: float = 30e-6

    def __post_init__(self) -> None:
        if self.window < 64 or self.first_look < 8 or self.budget_seconds <= 0:
            raise ConfigError(
                "the online window is too small",
                window=self.window,
                first_look=self.first_look,
                hint="at least 64 points, 8 before the first look, and a positive budget",
            )


class _Series:
    """One signal's window, growing at its end and thinning at its beginning."""

    __slots__ = ("kind", "last", "layer", "log_level", "metadata", "name", "replica", "seen", "steps", "values")

    def __init__(self, name: str, kind: str | None, meaning: Meaning) -> None:
        self.name = name
        self.kind = kind
        self.layer = meaning.layer
        self.replica = meaning.replica
        self.metadata = {**meaning.metadata, "kind": kind}
        self.steps = array("d")
        self.values = array("d")
        self.log_level = math.nan
        self.last = math.nan
        self.seen = 0

    def signal(self) -> Signal:
        steps, values = np.array(self.steps, dtype=np.float64), np.array(self.values, dtype=np.float64)
        return Signal(self.name, steps, values, self.layer, self.replica, self.metadata)

    def thin(self) -> None:
        """Keep half of the older half, evenly spread over all that came before."""
        half = len(self.values) // 2
        old = np.maximum.accumulate(np.array(self.steps[:half]))
        kept = spread(old, half // 2).tolist()
        self.steps = array("d", [self.steps[n] for n in kept]) + self.steps[half:]
        self.values = array("d", [self.values[n] for n in kept]) + self.values[half:]


@dataclass(slots=True)
class OnlineDebugger:
    """Watches a live run.

    ``feed(step, {"loss": 2.1, "grad_norm": 0.4})`` returns what is new at this step: usually nothing.

    Args:
        detectors: other detectors than the default ones.
        engine: explains what was seen; the shipped rules by default.
        options: how much to remember and to spend.
        kinds: canonical kinds by signal name, where the name alone does not give it away.
        clock: the time source of the budget; this thread's CPU time, so that a busy machine does not starve the looks.
    """

    detectors: Sequence[BaseDetector] = field(default_factory=default_detectors)
    engine: AttributionEngine = field(default_factory=AttributionEngine)
    options: OnlineOptions = field(default_factory=OnlineOptions)
    kinds: Mapping[str, str] = field(default_factory=dict)
    clock: Callable[[], float] = time.thread_time
    looks: int = field(default=0, init=False)
    _series: dict[str, _Series] = field(default_factory=dict, init=False)
    _seen: set[tuple[str, str | None, int | None]] = field(default_factory=set, init=False)
    _rows: list[tuple[float, dict[str, float]]] = field(default_factory=list, init=False)
    _names: Collection[str] = field(default_factory=tuple, init=False)
    _watched: list[_Series] = field(default_factory=list, init=False)
    _fed: int = field(default=0, init=False)
    _next_look: int = field(default=0, init=False)

    def feed(self, step: float, values: Mapping[str, float]) -> tuple[Detection, ...]:
        """Take one step's numbers; returns the detections that are new."""
        row = dict(values)
        self._rows.append((step, row))
        if row.keys() != self._names:
            self._discover(row)
        alarm: _Series | None = None
        for series in self._watched:
            value = row.get(series.name)
            if value is None:
                continue
            if series.kind == "grad_norm":
                if _climbs(series, value):
                    alarm = series
            elif value - value != 0.0:  # NaN or infinite
                alarm = series
        self._fed += 1
        if alarm is not None:
            found = self._glance(alarm)
            if found:
                return found
        if self._fed >= self._next_look:
            return self._look()
        if len(self._rows) > self.options.window:
            self._drain()
        return ()

    def findings(self, *, config: Mapping[str, Any] | None = None) -> tuple[Finding, ...]:
        """Everything that holds now, explained: what a report of the log so far would say."""
        self._drain()
        signals = [series.signal() for series in self._series.values()]
        context = DetectionContext(config=config or {}, live=True)
        results = [detector.detect(own, context) for detector, own in self._routed(signals)]
        return self.engine.explain(results, signals, context)

    def _discover(self, row: Mapping[str, float]) -> None:
        self._names = row.keys()
        for name in row:
            if name not in self._series:
                series = self._open(name)
                if series.kind == "loss" or (series.kind == "grad_norm" and series.layer is None):
                    self._watched.append(series)

    def _drain(self) -> None:
        """Hand the rows taken since the last look to their series."""
        window = self.options.window
        for step, row in self._rows:
            for name, value in row.items():
                series = self._series[name]
                series.steps.append(step)
                series.values.append(value)
        self._rows.clear()
        for series in self._series.values():
            while len(series.values) > window:
                series.thin()

    def _open(self, name: str) -> _Series:
        meaning = meaning_of(name)
        kind = self.kinds.get(name, meaning.kind)
        series = _Series(name, kind, meaning)
        self._series[name] = series
        self._next_look = max(self._next_look, self._fed + self.options.first_look)
        return series

    def _glance(self, series: _Series) -> tuple[Detection, ...]:
        """Something looks wrong right now: ask only the detector that knows about it."""
        self._drain()
        detector: BaseDetector = GradientExplosionDetector() if series.kind == "grad_norm" else NaNDetectionDetector()
        result = detector.detect([series.signal()], DetectionContext(live=True))
        return self._new(result)

    def _look(self) -> tuple[Detection, ...]:
        started = self.clock()
        self._drain()
        signals = [series.signal() for series in self._series.values() if len(series.values) >= 4]
        context = DetectionContext(live=True)
        found: list[Detection] = []
        for detector, own in self._routed(signals):
            found.extend(self._new(detector.detect(own, context)))
        self.looks += 1
        spent = self.clock() - started
        # The next look comes when this one has been paid for, and never after fewer points than make a difference.
        pause = max(self.options.first_look, math.ceil(spent / self.options.budget_seconds), self._fed // 20)
        self._next_look = self._fed + pause
        return tuple(found)

    def _routed(self, signals: Sequence[Signal]) -> list[tuple[BaseDetector, list[Signal]]]:
        routed = [(d, [s for s in signals if s.kind in d.get_required_signals()]) for d in self.detectors]
        return [(detector, own) for detector, own in routed if own]

    def _new(self, result: DetectionResult) -> tuple[Detection, ...]:
        """What has not been reported yet; one failure of one layer and rank is reported once."""
        fresh: list[Detection] = []
        for detection in result.detections:
            key = (detection.failure.name, detection.layer, detection.replica)
            if key not in self._seen:
                self._seen.add(key)
                fresh.append(detection)
        return tuple(fresh)


def _climbs(series: _Series, number: float) -> bool:
    """Whether a gradient norm is far above its running level and still rising; keeps that level."""
    series.seen += 1
    if not number > 0.0 or number == math.inf:
        return False
    log = math.log(number)
    rising = number > series.last
    series.last = number
    level = series.log_level
    if math.isnan(level):
        series.log_level = log
        return False
    # The level follows slowly, and slower still what lies outside: an explosion must not drag it along.
    series.log_level = level + (0.05 if log < level + 1.0 else 0.005) * (log - level)
    return rising and log > level + 1.6 and series.seen >= 6
