"""A MkDocs hook that generates lists from the code they describe, so that none is written twice.

A page requests the reference of a package's ``__all__`` with a line ``[[reference holdfast.stream]]``, and the
thresholds of a detector, each with its default and its docstring, with ``[[thresholds spike]]``.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from importlib import import_module
from types import FunctionType
from typing import Any

PACKAGE = re.compile(r"^\[\[reference (?P<package>[\w.]+)\]\]$", re.MULTILINE)
DETECTOR = re.compile(r"^\[\[thresholds (?P<detector>\w+)\]\]$", re.MULTILINE)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replace every request for a list with the list."""
    markdown = PACKAGE.sub(lambda match: _entries(match["package"]), markdown)
    return DETECTOR.sub(lambda match: _thresholds(match["detector"]), markdown)


def _entries(package: str) -> str:
    module = import_module(package)
    named = ((name, getattr(module, name)) for name in module.__all__)
    documented = (f"::: {value.__module__}.{name}" for name, value in named if isinstance(value, type | FunctionType))
    return "\n\n".join(documented)


def _thresholds(detector: str) -> str:
    from holdfast.debug.detectors import detector_types

    rows = [f"| `{name}` | {value:g} | {text} |" for name, value, text in described(detector_types()[detector]())]
    table = ["| threshold | default | what it bounds |", "| --- | --- | --- |", *rows]
    return "\n".join([f'??? info "All thresholds of `{detector}` ({len(rows)})"', "", *(f"    {row}" for row in table)])


def described(rule: Any, prefix: str = "") -> Iterator[tuple[str, float, str]]:
    """Yield every threshold of a rule and of the rules in it: its name, its default and its docstring."""
    from holdfast.debug.thresholds import SharedRule

    texts = _field_texts(type(rule))
    for field in fields(rule):
        value = getattr(rule, field.name)
        if is_dataclass(value):
            if not isinstance(value, SharedRule):
                yield from described(value, f"{prefix}{field.name}.")
        elif isinstance(value, int | float):
            yield f"{prefix}{field.name}", value, texts.get(field.name, "")


def _field_texts(rule: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class, or from the ``Args:`` of its own docstring."""
    (tree,) = ast.parse(inspect.cleandoc(inspect.getsource(rule))).body
    assert isinstance(tree, ast.ClassDef)
    texts = {}
    for field, below in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            texts[ast.unparse(field.target)] = " ".join(str(below.value.value).split())
    for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", inspect.getdoc(rule) or "", re.MULTILINE):
        texts.setdefault(name, " ".join(text.split()))
    return texts
