"""The detectors holdfast runs by default, found by looking into this package, and how to give them other thresholds.

A module of this package that defines a detector adds it: there is no list to keep.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any

from holdfast.debug.base import BaseDetector
from holdfast.debug.types import Failure
from holdfast.errors import ConfigError

__all__ = ["default_detectors", "detector_types", "known_failures", "thresholds_of", "whole_name"]


@cache
def detector_types() -> Mapping[str, type[BaseDetector]]:
    """Every detector of this package by its name, the failures of lower rank first."""
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
    """What these detectors can name."""
    return tuple(kind.failure for kind in detector_types().values() if kind.failure is not None)


def default_detectors(thresholds: Mapping[str, Mapping[str, float]] | None = None) -> tuple[BaseDetector, ...]:
    """Build one detector of every kind.

    Args:
        thresholds: detector name → its options, e.g. ``{"spike": {"minimum_noises": 12, "rise.minimum_lost": 0.3}}``.
            A threshold of a rule is ``rule.threshold``; the bare name means the first one of that name.

    Raises:
        ConfigError: no such detector or option.
    """
    chosen = dict(thresholds or {})
    types = detector_types()
    unknown = sorted(set(chosen) - set(types))
    if unknown:
        raise ConfigError("unknown detector in the thresholds", detector=unknown[0], hint=f"one of {', '.join(types)}")
    return tuple(_built(kind(), chosen.get(name, {})) for name, kind in types.items())


def thresholds_of(detector: BaseDetector) -> dict[str, Any]:
    """The thresholds a detector runs with, by name; those of a rule as ``rule.threshold``."""
    return dict(_flattened(detector, ""))


def _flattened(rule: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    nested = []
    for field in fields(rule):
        value = getattr(rule, field.name)
        if is_dataclass(value):
            nested.append((f"{prefix}{field.name}.", value))
        else:
            yield f"{prefix}{field.name}", value
    for name, value in nested:
        yield from _flattened(value, name)


def whole_name(detector: BaseDetector, option: str) -> str:
    """The name of a threshold with its rule, from that name or from the bare one.

    Raises:
        ConfigError: the detector has no such threshold.
    """
    known = thresholds_of(detector)
    found = option if option in known else next((own for own in known if own.rpartition(".")[2] == option), None)
    if found is None:
        hint = f"one of {', '.join(sorted(known)) or 'none'}"
        raise ConfigError("unknown threshold", detector=detector.name, option=option, hint=hint)
    return found


def _built(detector: BaseDetector, options: Mapping[str, float]) -> BaseDetector:
    known = thresholds_of(detector) if options else {}
    for option, value in options.items():
        path = whole_name(detector, option)
        detector = _with(detector, path.split("."), int(value) if isinstance(known[path], int) else float(value))
    return detector


def _with(rule: Any, path: list[str], value: float) -> Any:
    inner = value if len(path) == 1 else _with(getattr(rule, path[0]), path[1:], value)
    return replace(rule, **{path[0]: inner})
