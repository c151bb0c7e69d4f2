"""The public face: `__all__` is the real namespace, every name loads, and type checkers see the same names."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import holdfast

SOURCE = Path(holdfast.__file__)


def _tree() -> ast.Module:
    return ast.parse(SOURCE.read_text(encoding="utf-8"))


def _seen_by_type_checkers() -> dict[str, str]:
    """Return the names of the TYPE_CHECKING block, with the module each is imported from."""
    found: dict[str, str] = {}
    for node in _tree().body:
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                assert statement.module is not None
                for alias in statement.names:
                    assert alias.asname == alias.name, f"write `{alias.name} as {alias.name}`: a re-export"
                    assert alias.name not in found, f"{alias.name} is imported twice"
                    found[alias.name] = statement.module
    return found


def test_all_is_sorted_and_names_nothing_twice() -> None:
    assert list(holdfast.__all__) == sorted(set(holdfast.__all__))


def test_all_equals_the_real_namespace() -> None:
    for name in holdfast.__all__:
        getattr(holdfast, name)
    real = {
        name
        for name, value in vars(holdfast).items()
        if not name.startswith("_") and not inspect.ismodule(value) and _is_ours(value)
    }
    assert real | {"__version__", "errors"} == set(holdfast.__all__)


def _is_ours(value: object) -> bool:
    return str(getattr(value, "__module__", "")).partition(".")[0] == "holdfast"


@pytest.mark.parametrize("name", [name for name in holdfast.__all__ if name != "__version__"])
def test_every_name_loads_and_says_what_it_is_for(name: str) -> None:
    assert inspect.getdoc(getattr(holdfast, name))


def test_type_checkers_and_the_running_program_see_the_same_names_in_the_same_places() -> None:
    assert {name: home for name, home in _seen_by_type_checkers().items() if name != "errors"} == holdfast._HOME


def test_the_table_of_names_names_nothing_twice() -> None:
    (table,) = [
        node.value
        for node in ast.walk(_tree())
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "_HOME"
    ]
    assert isinstance(table, ast.Dict)
    keys = [key.value for key in table.keys if isinstance(key, ast.Constant)]
    assert len(keys) == len(set(keys)) == len(holdfast._HOME)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = holdfast.Nonsense
    assert set(holdfast.__all__) <= set(dir(holdfast))


def test_a_star_import_brings_every_public_name_and_no_other() -> None:
    code = "from holdfast import *; print(sorted(n for n in dir() if n == '__version__' or not n.startswith('_')))"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert ast.literal_eval(shown) == sorted(holdfast.__all__)


def test_the_types_ship_with_the_package() -> None:
    assert (SOURCE.parent / "py.typed").is_file()
