"""The detectors that run by default, discovered in this package, and how to change their thresholds.

A module of this package that defines a detector registers it; there is no list to maintain.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from functools import cache

from holdfast.debug.base import BaseDetector
from holdfast.debug.thresholds import with_thresholds
from holdfast.debug.types import Failure
from holdfast.errors import ConfigError

__all__ = ["default_detectors", "detector_types", "known_failures"]


@cache
def detector_types() -> Mapping[str, type[BaseDetector]]:
    """Return every detector of this package by name, failures of lower rank first."""
    package = __name__.rpartition(".")[0]
    path = importlib.import_module(package).__path__
    modules = [importlib.import_module(f"{package}.{m.name}") for m in pkgutil.iter_modules(path) if not m.ispkg]
    found = [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, BaseDetector) and kind.__module__ == module.__name__
    ]
    found.sort(key=lambda kind: (kind.failure.rank if kind.failure else 0, kind.__name__))
    return {kind().name: kind for kind in found}


@cache
def known_failures() -> tuple[Failure, ...]:
    """Return the failures that these detectors can report."""
    return tuple(kind.failure for kind in detector_types().values() if kind.failure is not None)


def default_detectors(thresholds: Mapping[str, Mapping[str, float]] | None = None) -> tuple[BaseDetector, ...]:
    """Build one detector of every kind.

    Args:
        thresholds: detector name → its options, e.g. ``{"spike": {"minimum_noises": 12, "rise.minimum_lost": 0.3}}``. A
            threshold of a rule is ``rule.threshold``; a bare name means the first threshold of that name.

    Raises:
        ConfigError: unknown detector or option.
    """
    chosen = dict(thresholds or {})
    types = detector_types()
    unknown = sorted(set(chosen) - set(types))
    if unknown:
        raise ConfigError("unknown detector in the thresholds", detector=unknown[0], hint=f"one of {', '.join(types)}")
    return tuple(with_thresholds(kind(), chosen.get(name, {}), owner=name) for name, kind in types.items())
