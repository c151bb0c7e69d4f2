"""Everything that decides, with its thresholds: the detectors, how causes are ranked, and what *healthy* takes.

``--thresholds``, ``MLSystemsDebugger(thresholds=…)`` and ``holdfast calibrate`` all reach what is here, and there is
nothing else to reach. Detectors go by their names; ``attribution`` and ``verdict`` are beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.debug.attribution.engine import AttributionRule
from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors.registry import default_detectors
from holdfast.debug.thresholds import thresholds_of, whole_name, with_thresholds
from holdfast.debug.verdict import VerdictRule

__all__ = ["ATTRIBUTION", "VERDICT", "Tuning", "whole_names"]

ATTRIBUTION = "attribution"
"""The name under which a set of thresholds holds those of attribution."""
VERDICT = "verdict"
"""The name under which it holds those of the verdict."""

Thresholds = Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """The rules a debugger runs with."""

    detectors: tuple[BaseDetector, ...] = field(default_factory=default_detectors)
    attribution: AttributionRule = field(default_factory=AttributionRule)
    verdict: VerdictRule = field(default_factory=VerdictRule)

    @classmethod
    def of(cls, thresholds: Thresholds | None = None) -> Tuning:
        """The default rules with these thresholds.

        Args:
            thresholds: detector, ``attribution`` or ``verdict`` → threshold → value, e.g.
                ``{"spike": {"minimum_noises": 12}, "attribution": {"observer.rate.large": -1.0}}``.

        Raises:
            ConfigError: no such detector or threshold.
        """
        chosen = dict(thresholds or {})
        attribution = with_thresholds(AttributionRule(), chosen.pop(ATTRIBUTION, {}), owner=ATTRIBUTION)
        verdict = with_thresholds(VerdictRule(), chosen.pop(VERDICT, {}), owner=VERDICT)
        return cls(detectors=default_detectors(chosen), attribution=attribution, verdict=verdict)

    @property
    def rules(self) -> dict[str, Any]:
        """Every rule by the name a set of thresholds has for it."""
        return {**{one.name: one for one in self.detectors}, ATTRIBUTION: self.attribution, VERDICT: self.verdict}

    def thresholds(self) -> dict[str, dict[str, float]]:
        """Every threshold by its whole name, as :meth:`of` takes them."""
        return {name: thresholds_of(rule) for name, rule in self.rules.items()}


def whole_names(thresholds: Thresholds) -> dict[str, dict[str, float]]:
    """The same thresholds, each by its whole name.

    Raises:
        ConfigError: no such detector or threshold.
    """
    rules = Tuning.of(thresholds).rules
    return {
        name: {whole_name(rules[name], option, owner=name): value for option, value in options.items()}
        for name, options in thresholds.items()
    }
