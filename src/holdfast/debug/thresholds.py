"""Thresholds by name: how those of a rule are listed and changed, however deeply rules are nested.

A rule is a frozen dataclass whose fields are numbers, each with its reason, or other rules. A threshold of a nested
rule is called ``rule.threshold``; its bare name means the first one of that name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from holdfast.errors import ConfigError

__all__ = ["thresholds_of", "whole_name", "with_thresholds"]

Rule = TypeVar("Rule")


def thresholds_of(rule: Any) -> dict[str, Any]:
    """The thresholds a rule runs with, by name; those of a rule inside it as ``rule.threshold``."""
    return dict(_flattened(rule, ""))


def whole_name(rule: Any, option: str, *, owner: str) -> str:
    """The name of a threshold with its rule, from that name or from the bare one.

    Raises:
        ConfigError: the rule has no such threshold.
    """
    known = thresholds_of(rule)
    found = option if option in known else next((own for own in known if own.rpartition(".")[2] == option), None)
    if found is None:
        hint = f"one of {', '.join(sorted(known)) or 'none'}"
        raise ConfigError("unknown threshold", rule=owner, option=option, hint=hint)
    return found


def with_thresholds(rule: Rule, options: Mapping[str, float], *, owner: str) -> Rule:
    """The same rule with other thresholds.

    Raises:
        ConfigError: the rule has no such threshold.
    """
    known = thresholds_of(rule) if options else {}
    for option, value in options.items():
        path = whole_name(rule, option, owner=owner)
        rule = _with(rule, path.split("."), int(value) if isinstance(known[path], int) else float(value))
    return rule


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


def _with(rule: Any, path: list[str], value: float) -> Any:
    inner = value if len(path) == 1 else _with(getattr(rule, path[0]), path[1:], value)
    return replace(rule, **{path[0]: inner})
