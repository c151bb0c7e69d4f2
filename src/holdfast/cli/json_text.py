"""The output of ``--json``, which every JSON parser accepts: numbers that are not finite are strings."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import typer

__all__ = ["json_text", "print_json"]


def print_json(value: Any, *, indent: int | None = None) -> None:
    """Print a value as JSON on standard output."""
    typer.echo(json_text(value, indent=indent))


def json_text(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON; NaN and infinities, which JSON lacks, become strings, as in the debugger's reports."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(each) for each in value]
    return value
