"""Optional packages: imported when needed; if one is missing, the error names the extra that installs it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from holdfast.errors import MissingDependencyError

__all__ = ["require"]


def require(package: str, *, needed_by: str, extra: str) -> Any:
    """Import a package and return its module.

    Args:
        package: the package to import.
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
