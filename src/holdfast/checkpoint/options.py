"""The user's options, and their checks; whole numbers may be Python, NumPy or torch integers."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

from holdfast.errors import ConfigError

__all__ = ["LoadOptions", "check_choice", "whole_number"]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Options for checks and conversions in a load; see ``ParallelFileSystemReader``."""

    verify: str
    cast: bool
    trusted: bool


def whole_number(name: str, value: Any, *, least: int, most: int | None = None) -> int:
    """Return an option as an ``int``.

    Raises:
        ConfigError: it is not a whole number, below ``least`` or above ``most``.
    """
    try:
        number = operator.index(value) if type(value) is not bool else None
    except (TypeError, RuntimeError):  # RuntimeError: a tensor of several numbers
        number = None
    if number is None or number < least or (most is not None and number > most):
        bounds = f"{least} or more" if most is None else f"from {least} to {most}"
        raise ConfigError(f"{name} must be a whole number, {bounds}", value=value)
    return number


def check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    """Raise unless an option is one of its choices."""
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}", value=value)
