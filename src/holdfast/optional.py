"""Packages that not everyone installs: imported when they are needed, or named with the extra that brings them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from holdfast.errors import MissingDependencyError

__all__ = ["require"]


def require(package: str, *, needed_by: str, extra: str) -> Any:
    """Return the module of a package.

    Args:
        package: what is imported.
        needed_by: what needs it, for the error.
        extra: the extra of holdfast that installs it.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingDependencyError(
            f"{needed_by} needs the package {package!r}, which is not installed",
            hint=f"pip install 'holdfast[{extra}]'",
            package=package,
            extra=extra,
        ) from error
