"""Saved formats: what is written, what is read back, what is upgraded, and how everything else is refused."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CoordinationError, StateError, StateVersionError
from holdfast.versioned import AS_TEXT, MAX_COUNT, Count, Format


class Span(NamedTuple):
    start: Count
    stop: Count


@dataclass(frozen=True, slots=True)
class Inner:
    name: str
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class Thing:
    step: Count
    mode: Literal["a", "b"]
    inner: Inner
    spans: tuple[Span, ...] = ()
    owner: Span | None = None
    pair: tuple[int, str] = (0, "")
    tables: Annotated[dict[str, list[int]], AS_TEXT] = field(default_factory=dict)
    anything: Any = None


@dataclass(frozen=True, slots=True)
class Open:
    step: int
    unknown: dict[str, Any] = field(default_factory=dict)


THING = Format("thing", Thing)
VALUE = Thing(3, "b", Inner("x", 0.5), (Span(1, 2),), Span(4, 5), (7, "y"), {"t": [1]}, [None, {"z": 1}])


@given(
    step=st.integers(0, MAX_COUNT),
    mode=st.sampled_from(["a", "b"]),
    name=st.text(),
    weight=st.floats(allow_nan=False),
    spans=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)).map(lambda pair: Span(*pair))),
    tables=st.dictionaries(st.text(), st.lists(st.integers())),
)
def test_any_record_comes_back_from_json_as_it_was(
    step: int, mode: Literal["a", "b"], name: str, weight: float, spans: list[Span], tables: dict[str, list[int]]
) -> None:
    thing = Thing(step, mode, Inner(name, weight), tuple(spans), None, (1, name), tables)
    assert THING.from_json(json.loads(json.dumps(THING.to_json(thing)))) == thing


def test_the_keys_never_depend_on_the_content() -> None:
    full, bare = THING.to_json(VALUE), THING.to_json(Thing(0, "a", Inner("")))
    assert full.keys() == bare.keys() == {"version", *Thing.__dataclass_fields__}
    assert isinstance(full["tables"], str)


def test_optional_fields_may_be_missing_and_required_ones_may_not() -> None:
    assert THING.from_json({"version": 1, "step": 0, "mode": "a", "inner": {"name": "x"}}) == Thing(0, "a", Inner("x"))
    with pytest.raises(StateError, match=r"invalid thing: inner\.name is missing"):
        THING.from_json({"version": 1, "step": 0, "mode": "a", "inner": {}})


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"step": -1}, "step must be from 0"),
        ({"step": 10**30}, "step must be from 0"),
        ({"step": True}, "step must be int"),
        ({"step": 1.0}, "step must be int"),
        ({"mode": "c"}, "mode must be 'a' or 'b'"),
        ({"inner": {"name": "x", "weight": "heavy"}}, r"inner\.weight must be float"),
        ({"inner": {"name": "x", "weight": 10**400}}, r"inner\.weight must be a float"),
        ({"inner": 3}, "inner must be an object"),
        ({"spans": [[1, 2], [1]]}, r"spans\[1\] must have 2 elements"),
        ({"spans": [[1, -2]]}, r"spans\[0\]\[1\] must be from 0"),
        ({"owner": 5}, "owner"),
        ({"pair": [1]}, "pair must have 2 elements"),
        ({"tables": "{"}, "tables must be JSON text"),
        ({"tables": {"t": [None]}}, r"tables\.t\[0\] must be int"),
        ({"other": 1}, "other is not a field"),
    ],
)
def test_an_invalid_value_is_refused_and_its_field_named(change: dict[str, Any], place: str) -> None:
    with pytest.raises(StateError, match=place) as caught:
        THING.from_json({**THING.to_json(VALUE), **change})
    assert caught.value.field


@pytest.mark.parametrize("foreign", [None, 3, "x", [], {}, {"model": 1}, {"version": "1"}, {"version": True}])
def test_a_foreign_value_is_refused(foreign: Any) -> None:
    with pytest.raises(StateError, match="not a thing"):
        THING.from_json(foreign)


def test_a_newer_version_is_refused_with_an_error_of_its_own() -> None:
    with pytest.raises(StateVersionError, match="newer holdfast"):
        THING.from_json({**THING.to_json(VALUE), "version": 2})
    told = replace(THING, error=CoordinationError, version_error=CoordinationError)
    with pytest.raises(CoordinationError, match="newer"):
        told.from_json({**THING.to_json(VALUE), "version": 2})


def test_earlier_versions_are_upgraded_one_after_the_other() -> None:
    later = Format(
        "thing",
        Inner,
        version=3,
        upgrades={1: lambda old: {"title": old["t"]}, 2: lambda old: {"name": old["title"], "weight": 2}},
        unmarked=1,
    )
    assert later.from_json({"t": "x"}) == later.from_json({"version": 2, "title": "x"}) == Inner("x", 2.0)
    assert later.upgraded({"version": 1, "t": "x"}) == {"name": "x", "weight": 2}
    with pytest.raises(StateError, match="cannot be upgraded from version 1"):
        later.from_json({"version": 1})


def test_a_record_with_a_field_for_them_keeps_unknown_fields_and_writes_them_again() -> None:
    keeping = Format("open thing", Open)
    value = {"version": 1, "step": 2, "new": [1], "unknown": "a name like any other"}
    kept = keeping.from_json(value)
    assert kept == Open(2, {"new": [1], "unknown": "a name like any other"})
    assert keeping.to_json(kept) == value
