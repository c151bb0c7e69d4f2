"""Packages whose names load on first use, so that importing one costs nothing and needs none of its dependencies."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

__all__ = ["lazy_names", "public_name", "stub_names"]

Loading = tuple[Callable[[str], Any], Callable[[], list[str]]]


def lazy_names(package: str, homes: Mapping[str, str]) -> Loading:
    """Return a package's ``__getattr__`` and ``__dir__``.

    Args:
        package: its ``__name__``.
        homes: the submodule that each name lives in.
    """
    return _loading(package, {name: f"{package}.{home}" for name, home in homes.items()}, frozenset())


def stub_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a package's ``__getattr__``, ``__dir__`` and ``__all__``, with the names listed in the stub beside it.

    Args:
        package: its ``__name__``.
        file: its ``__file__``; the stub has the same path, ending in ``.pyi``.
    """
    stub = Path(file).with_suffix(".pyi").read_text(encoding="utf-8")
    listed = {name: home for home, name in re.findall(r"^from (\S+) import (\w+) as \w+$", stub, re.MULTILINE)}
    modules = frozenset(name for name, home in listed.items() if home == package)
    names = {name: home for name, home in listed.items() if name not in modules}
    return *_loading(package, names, modules), sorted(names)


def public_name(kind: type) -> str:
    """Return a class's name as people import it: from the first package that exports it, not from its own module."""
    parts = kind.__module__.split(".")
    for length in range(1, len(parts)):
        package = sys.modules.get(".".join(parts[:length]))
        if kind.__name__ in getattr(package, "__all__", ()) and getattr(package, kind.__name__) is kind:
            return f"{'.'.join(parts[:length])}.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def _loading(package: str, homes: Mapping[str, str], modules: frozenset[str]) -> Loading:
    def load(name: str) -> Any:
        if name in modules:
            value = import_module(f"{package}.{name}")
        elif name in homes:
            value = getattr(import_module(homes[name]), name)
        else:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        setattr(sys.modules[package], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes, *modules})

    return load, names
