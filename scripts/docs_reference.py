"""A hook of MkDocs: writes the reference of a package from its ``__all__``, so that no list is kept twice.

A page asks for it with a line ``[[reference holdfast.stream]]``.
"""

from __future__ import annotations

import re
from importlib import import_module
from types import FunctionType
from typing import Any

PACKAGE = re.compile(r"^\[\[reference (?P<package>[\w.]+)\]\]$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace every request for a package's reference by one entry per public name."""
    return PACKAGE.sub(lambda match: _entries(match["package"]), markdown)


def _entries(package: str) -> str:
    module = import_module(package)
    named = ((name, getattr(module, name)) for name in module.__all__)
    documented = (f"::: {value.__module__}.{name}" for name, value in named if isinstance(value, type | FunctionType))
    return "\n\n".join(documented)
