"""Argument checks: an error names the argument, the value passed and what is expected.

A wrong value is refused where it is passed. Found later, it would be an error from deep inside the library or, worse,
no error: ``steps=nan`` never ends, and a policy for a failure that does not exist never applies.
"""

from __future__ import annotations

import math
import operator
import os
from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from holdfast.errors import ConfigError

__all__ = ["check_fields", "check_path", "check_type", "closest", "is_function", "real_number", "whole_number"]

_MAX_SHOWN = 80
"""Characters of a wrong value shown in its error."""


def check_type(name: str, value: Any, fits: type | tuple[type, ...] | Callable[[Any], bool], expected: str) -> None:
    """Raise unless an argument has a type, or meets a condition.

    Raises:
        ConfigError: it does not.
    """
    is_right = isinstance(value, fits) if isinstance(fits, (type, tuple)) else fits(value)
    if not is_right:
        raise ConfigError(f"{name} must be {expected}", found=f"{value!r}"[:_MAX_SHOWN])


def is_function(value: Any) -> bool:
    """Return whether a value is callable or None."""
    return value is None or callable(value)


def whole_number(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """Return an argument as an ``int``.

    Raises:
        ConfigError: it is not a whole number, or not in range.
    """
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except (TypeError, RuntimeError):  # RuntimeError: a tensor of several numbers
        number = None
    if number is None or number < least or (most is not None and number > most):
        reach = f"{least:,} or more" if most is None else f"from {least:,} to {most:,}"
        raise ConfigError(f"{name} must be a whole number, {reach}", found=f"{value!r}"[:_MAX_SHOWN])
    return number


def real_number(name: str, value: Any, *, above: float = 0.0) -> float:
    """Return an argument as a ``float``; infinity is allowed.

    Raises:
        ConfigError: it is not a number, or not above the limit.
    """
    try:
        number = math.nan if isinstance(value, (bool, str)) else float(value)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        number = math.nan
    if not number > above:
        raise ConfigError(f"{name} must be a number above {above:g}", found=f"{value!r}"[:_MAX_SHOWN])
    return number


def check_path(name: str, value: Any) -> None:
    """Raise unless an argument can be a local path.

    Raises:
        ConfigError: it is empty, has a NUL in it, or is not a path at all.
    """
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f"{name} must be a path", found=f"{value!r}"[:_MAX_SHOWN])


def check_fields(options: Any, *, may_be_zero: tuple[str, ...] = ()) -> None:
    """Check the fields of a dataclass of options by their annotations: ``int``, ``float`` and ``bool``, or None.

    Args:
        options: the options.
        may_be_zero: the ``int`` fields that may be 0.

    Raises:
        ConfigError: a field has the wrong type, or is too small.
    """
    for each in fields(options):
        value = getattr(options, each.name)
        kind, _, rest = str(each.type).partition(" | ")
        if value is None and rest == "None":
            continue
        if kind == "int":
            whole_number(each.name, value, least=0 if each.name in may_be_zero else 1)
        elif kind == "float":
            real_number(each.name, value)
        elif kind == "bool":
            check_type(each.name, value, bool, "True or False")


def closest(name: str, known: list[str]) -> str:
    """Return the hint for an unknown name: the closest known name, and all known names."""
    near = get_close_matches(name, known, n=1)
    return (f"did you mean {near[0]!r}? " if near else "") + f"known: {', '.join(known)}"
