"""The kinds of the fields of JSON lines, found by sampling some lines.

A field's kind determines the dtype of its column, so that it cannot change between reads. Kinds are names that a user
can also specify: ``bool``, ``int64``, ``float64``, ``text``, ``list[int64]``, ``list[float64]``, and ``object`` for
deeper nesting or mixed types, which become plain Python objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from holdfast.errors import ConfigError

KINDS = ("bool", "int64", "float64", "text", "list[bool]", "list[int64]", "list[float64]", "object")

# Intermediate kinds that no column has in the end.
_NOTHING, _EMPTY_LIST = "null", "list[null]"


def kind_of(value: Any) -> str:
    """Return the kind of one JSON value."""
    if value is None:
        return _NOTHING
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int):
        return "int64" if -(2**63) <= value < 2**63 else "object"
    if isinstance(value, float):
        return "float64"
    if isinstance(value, str):
        return "text"
    if isinstance(value, list):
        inner = _NOTHING
        for item in value:
            inner = merge_kinds(inner, kind_of(item) if item is not None else "object")
        return f"list[{inner}]" if inner in (_NOTHING, "bool", "int64", "float64") else "object"
    return "object"


def merge_kinds(one: str, other: str) -> str:
    """Return the kind that can represent values of both."""
    if one == other or other == _NOTHING:
        return one
    if one == _NOTHING:
        return other
    pair = {one, other}
    if pair == {"int64", "float64"}:
        return "float64"
    if all(kind.startswith("list[") for kind in pair):
        inner = merge_kinds(one[5:-1], other[5:-1])
        return f"list[{inner}]" if inner != "object" else "object"
    return "object"


def merge_fields(samples: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the kind of every field in any of the samples, in order of first occurrence."""
    merged: dict[str, str] = {}
    for fields in samples:
        for name, kind in fields.items():
            merged[name] = merge_kinds(merged.get(name, _NOTHING), kind)
    return merged


def settle(
    found: Mapping[str, str], *, columns: Iterable[str] | None, schema: Mapping[str, str] | None
) -> dict[str, str]:
    """Return the columns to read and their kinds: what was found, narrowed to ``columns``, overridden by ``schema``."""
    stated = dict(schema or {})
    wrong = {name: kind for name, kind in stated.items() if kind not in KINDS}
    if wrong:
        raise ConfigError("unknown kinds in the schema", schema=wrong, known=KINDS)
    merged = {**found, **stated}
    wanted = list(merged) if columns is None else list(columns)
    missing = [name for name in wanted if name not in merged]
    if missing:
        raise ConfigError(
            "columns not found in any sampled line",
            columns=missing,
            found=sorted(found),
            hint="specify rare fields with schema={name: kind}",
        )
    # A field that was always null, or always an empty list, has no known dtype.
    return {name: merged[name] if merged[name] in KINDS else "object" for name in wanted}
