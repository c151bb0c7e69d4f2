"""Thresholds by name: how those of a rule are listed and changed, however deeply rules are nested.

A rule is a frozen dataclass whose fields are numbers, each with its reason, or other rules. A threshold of a nested
rule is called ``rule.threshold``; a bare name means the first threshold of that name. A ``SharedRule`` is
contained in many rules and must be the same in all: it is changed in all of them at once, under its own name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from holdfast.errors import ConfigError

__all__ = ["SharedRule", "thresholds_of", "whole_name", "with_shared", "with_thresholds"]

Rule = TypeVar("Rule")


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedRule:
    """A rule contained in others, with the same thresholds in all of them."""


def thresholds_of(rule: Any) -> dict[str, Any]:
    """Return the thresholds of a rule by name; those of a nested rule as ``rule.threshold``."""
    return dict(_flattened(rule, ""))


def whole_name(rule: Any, option: str, *, owner: str) -> str:
    """Return the full name of a threshold, given its full or bare name.

    Raises:
        ConfigError: unknown threshold.
    """
    known = thresholds_of(rule)
    found = option if option in known else next((own for own in known if own.rpartition(".")[2] == option), None)
    if found is None:
        hint = f"one of {', '.join(sorted(known)) or 'none'}"
        raise ConfigError("unknown threshold", rule=owner, option=option, hint=hint)
    return found


def with_thresholds(rule: Rule, options: Mapping[str, float], *, owner: str) -> Rule:
    """Return the same rule with other thresholds.

    Raises:
        ConfigError: unknown threshold.
    """
    known = thresholds_of(rule) if options else {}
    for option, value in options.items():
        path = whole_name(rule, option, owner=owner)
        rule = _with(rule, path.split("."), int(value) if isinstance(known[path], int) else float(value))
    return rule


def with_shared(rule: Rule, *shared: SharedRule) -> Rule:
    """Return the same rule with these shared rules wherever it, or a nested rule, contains one of their types."""
    changed: dict[str, Any] = {}
    for field in fields(rule):  # type: ignore[arg-type]  # a dataclass, though the base of all detectors cannot say so
        value = getattr(rule, field.name)
        if is_dataclass(value) and not isinstance(value, type):
            same = [one for one in shared if type(one) is type(value)]
            changed[field.name] = same[0] if same else with_shared(value, *shared)
    return replace(rule, **changed) if changed else rule  # type: ignore[type-var]  # as above


def _flattened(rule: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    nested = []
    for field in fields(rule):
        value = getattr(rule, field.name)
        if isinstance(value, SharedRule):
            continue
        if is_dataclass(value):
            nested.append((f"{prefix}{field.name}.", value))
        else:
            yield f"{prefix}{field.name}", value
    for name, value in nested:
        yield from _flattened(value, name)


def _with(rule: Any, path: list[str], value: float) -> Any:
    inner = value if len(path) == 1 else _with(getattr(rule, path[0]), path[1:], value)
    return replace(rule, **{path[0]: inner})
