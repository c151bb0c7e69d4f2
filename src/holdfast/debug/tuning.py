"""Everything that can be tuned: the thresholds of the detectors, of the ranking of causes, and of the verdict.

``--thresholds``, ``MLSystemsDebugger(thresholds=…)`` and ``holdfast calibrate`` all use these names. Detectors have
their own names; others are ``attribution``, ``verdict``, ``compare``, and the shared rules ``select`` (which series are
used) and ``shape`` (the level and noise of a series); ``reading`` is how a log is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.debug.attribution.engine import AttributionRule
from holdfast.debug.base import BaseDetector
from holdfast.debug.compare import CompareRule
from holdfast.debug.detectors.registry import default_detectors
from holdfast.debug.detectors.steps.baseline import ShapeRule
from holdfast.debug.detectors.steps.select import SelectRule
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.thresholds import thresholds_of, whole_name, with_shared, with_thresholds
from holdfast.debug.verdict import VerdictRule

__all__ = ["ATTRIBUTION", "COMPARE", "READING", "SELECT", "SHAPE", "VERDICT", "Tuning", "whole_names"]

ATTRIBUTION = "attribution"
"""The name of the thresholds of attribution."""
VERDICT = "verdict"
"""The name of the thresholds of the verdict."""
COMPARE = "compare"
"""The name of the thresholds of the comparison with a healthy run."""
SELECT = "select"
"""The name of the shared rule that selects series."""
SHAPE = "shape"
"""The name of the shared rule that reduces a series to its level and noise."""

READING = "reading"
"""The name of the rules and limits of reading: where runs are separated, what ends a job, what a row is."""

Thresholds = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The rules of a debugger."""

    detectors: tuple[BaseDetector, ...] = field(default_factory=default_detectors)
    attribution: AttributionRule = field(default_factory=AttributionRule)
    verdict: VerdictRule = field(default_factory=VerdictRule)
    compare: CompareRule = field(default_factory=CompareRule)
    select: SelectRule = field(default_factory=SelectRule)
    shape: ShapeRule = field(default_factory=ShapeRule)
    reading: Limits = field(default_factory=Limits)

    @classmethod
    def of(cls, thresholds: Thresholds | None = None) -> Tuning:
        """Return the default rules with these thresholds.

        Args:
            thresholds: detector, ``attribution``, ``verdict``, … → threshold → value, e.g.
                ``{"spike": {"minimum_noises": 12}, "attribution": {"observer.rate.large": -1.0}}``.

        Raises:
            ConfigError: unknown detector or threshold.
        """
        chosen = dict(thresholds or {})
        attribution = with_thresholds(AttributionRule(), chosen.pop(ATTRIBUTION, {}), owner=ATTRIBUTION)
        verdict = with_thresholds(VerdictRule(), chosen.pop(VERDICT, {}), owner=VERDICT)
        compare = with_thresholds(CompareRule(), chosen.pop(COMPARE, {}), owner=COMPARE)
        select = with_thresholds(SelectRule(), chosen.pop(SELECT, {}), owner=SELECT)
        shape = with_thresholds(ShapeRule(), chosen.pop(SHAPE, {}), owner=SHAPE)
        reading = with_thresholds(Limits(), chosen.pop(READING, {}), owner=READING)
        return cls(
            detectors=tuple(with_shared(one, select, shape) for one in default_detectors(chosen)),
            attribution=with_shared(attribution, select, shape),
            verdict=with_shared(verdict, select, shape),
            compare=compare,
            select=select,
            shape=shape,
            reading=reading,
        )

    @property
    def rules(self) -> dict[str, Any]:
        """Every rule by its name."""
        beside = (ATTRIBUTION, VERDICT, COMPARE, SELECT, SHAPE, READING)
        return {one.name: one for one in self.detectors} | {name: getattr(self, name) for name in beside}

    def thresholds(self) -> dict[str, dict[str, float]]:
        """Return every threshold by its full name, as accepted by ``of``."""
        return {name: thresholds_of(rule) for name, rule in self.rules.items()}


def whole_names(thresholds: Thresholds) -> dict[str, dict[str, float]]:
    """Return the same thresholds, each by its full name.

    Raises:
        ConfigError: unknown detector or threshold.
    """
    rules = Tuning.of(thresholds).rules
    return {
        name: {whole_name(rules[name], option, owner=name): value for option, value in options.items()}
        for name, options in thresholds.items()
    }
