"""The drawn tree is the real one, and every error crosses a process boundary whole."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError

DRAWN_LINE = re.compile(
    r"^ {4}(?P<branch>[│├└─ ]*)(?P<name>[A-Z]\w+)(?: \((?P<builtin>\w+)\))?(?: {2,}(?P<meaning>\S.*))?$"
)

SOURCE = Path(inspect.getfile(errors)).parent
EVERY_ERROR = [getattr(errors, name) for name in errors.__all__]


def _drawn() -> dict[str, tuple[str | None, str | None]]:
    """Return each drawn class's parent and built-in base."""
    assert errors.__doc__ is not None
    path: list[str] = []
    found: dict[str, tuple[str | None, str | None]] = {}
    for line in errors.__doc__.splitlines():
        match = DRAWN_LINE.match(line)
        if match is None:
            continue
        depth = len(match["branch"]) // 4
        path = [*path[:depth], match["name"]]
        found[match["name"]] = (path[depth - 1] if depth else None, match["builtin"])
    return found


def _real() -> dict[str, tuple[str | None, str | None]]:
    found: dict[str, tuple[str | None, str | None]] = {}
    for error in EVERY_ERROR:
        ours = [base.__name__ for base in error.__bases__ if issubclass(base, HoldfastError)]
        others = [base.__name__ for base in error.__bases__ if not issubclass(base, HoldfastError)]
        builtin = None if error is HoldfastError or not others else others[0]
        found[error.__name__] = (ours[0] if ours else None, builtin)
    return found


def test_the_drawn_tree_is_the_real_tree() -> None:
    assert _drawn() == _real()


def test_every_error_there_is_is_exported_and_sorted() -> None:
    defined = {
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, HoldfastError)
    }
    assert set(errors.__all__) == defined
    assert errors.__all__ == sorted(errors.__all__)


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: error.__name__)
def test_every_error_survives_pickling_with_its_attributes(error: type[HoldfastError]) -> None:
    made = error("it broke", hint="mend it", source="wiki", index=7, rank=3, file="a.bin", offset=2**40)
    again = pickle.loads(pickle.dumps(made))  # noqa: S301 - our own bytes
    assert type(again) is error
    assert str(again) == str(made)
    assert (again.message, again.hint, again.where) == ("it broke", "mend it", made.where)
    assert [getattr(again, name) for name in made.where] == list(made.where.values())


@pytest.mark.parametrize("error", EVERY_ERROR, ids=lambda error: error.__name__)
def test_every_error_says_what_where_and_what_to_do(error: type[HoldfastError]) -> None:
    text = str(error("it broke", hint="mend it", source="wiki", index=7))
    assert text == "it broke [source='wiki', index=7] — mend it"
    assert error.__doc__


def test_an_attribute_that_is_not_known_is_none() -> None:
    error = errors.CheckpointReadError("it broke", file="a.distcp")
    assert (error.file, error.tensor, error.offset) == ("a.distcp", None, None)


def _promised(error: type[HoldfastError]) -> set[str]:
    """Return the attributes that the class declares without a default."""
    declared = {name for base in error.__mro__ for name in inspect.get_annotations(base)}
    return {name for name in declared - {"message", "hint", "where"} if not hasattr(error, name)}


def _made() -> Iterator[tuple[str, type[HoldfastError], set[str]]]:
    """Yield where the package makes an error, its class, and the facts it is given."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or not node.args:
                continue
            error = getattr(errors, node.func.id, None)
            given = {keyword.arg for keyword in node.keywords}
            if isinstance(error, type) and issubclass(error, HoldfastError) and None not in given:
                yield f"{path.relative_to(SOURCE)}:{node.lineno}", error, {name for name in given if name}


def test_every_error_is_raised_with_what_its_class_promises() -> None:
    made = list(_made())
    assert len(made) > 500, "the search found too little to prove anything"
    lacking = {place: sorted(_promised(error) - given) for place, error, given in made}
    assert {place: names for place, names in lacking.items() if names} == {}
