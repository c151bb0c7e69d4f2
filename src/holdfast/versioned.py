"""Saved formats, each with a version, defaults and upgrades.

The model: a saved format is a dataclass. Its fields say what is required (no default) and what is optional, its type
hints say which values are valid, and a ``Format`` binds it to a name, a version and the functions that upgrade data
from earlier releases::

    @dataclass(frozen=True, slots=True)
    class Job:
        name: str
        finished: Count
        runs: list[tuple[int, int]] = field(default_factory=list)

    JOB = Format("leased job", Job, version=2, upgrades={1: lambda old: {**old, "finished": old["done"]}})
    JOB.to_json(Job("a", 3))    # {"version": 2, "name": "a", "finished": 3, "runs": []}: always all fields
    JOB.from_json(value)        # a Job, or a StateError that names the field

A value of a newer version is refused. Unknown fields are refused too, unless the dataclass has a field ``unknown`` (a
dict), which keeps them and writes them back. Hints may be built from plain values, lists, tuples, dicts, unions,
literals, dataclasses (stored as dicts) and named tuples (stored as lists); ``Annotated`` adds ``Between`` and
``AS_TEXT``.
"""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Generic, Literal, NewType, TypeVar, Union, get_args, get_origin, get_type_hints

from holdfast.errors import HoldfastError, StateError, StateVersionError

__all__ = ["AS_TEXT", "MAX_COUNT", "Between", "Count", "Format", "problem_with"]

Record = TypeVar("Record")
Upgrade = Callable[[dict[str, Any]], Mapping[str, Any]]

# No step, position or sample number exceeds this; three times as much still fits into 64 bits.
MAX_COUNT = 1 << 60
KEEPS_UNKNOWN = "unknown"
_DAMAGED = "it was changed after it was saved, or is something else; use an earlier one"


@dataclass(frozen=True, slots=True)
class Between:
    """Bounds of a number, both inclusive."""

    low: float
    high: float


class _AsText:
    """Marks a field that is stored as JSON text, so that its content never changes the keys around it."""


AS_TEXT = _AsText()
Count = Annotated[int, Between(0, MAX_COUNT)]


_PLAIN = frozenset((str, int, float, bool, type(None)))


class _Invalid(Exception):
    """A value that does not fit its hint: where it is, and what is wrong with it."""

    def __init__(self, place: str, problem: str, found: Any) -> None:
        super().__init__(place, problem, found)
        self.place, self.problem, self.found = place, problem, found


@dataclass(frozen=True, slots=True)
class Format(Generic[Record]):
    """One saved format.

    Args:
        name: its name in error messages.
        record: the dataclass that holds its content.
        version: the version written now.
        upgrades: for every earlier version, the function that turns its fields into those of the next version.
        unmarked: the version of values that carry none, for formats that began without one; None refuses them.
        error: raised for an invalid value.
        version_error: raised for a value of a newer version.
        hint: what to do about an invalid value.
    """

    name: str
    record: type[Record]
    version: int = 1
    upgrades: Mapping[int, Upgrade] = field(default_factory=dict)
    unmarked: int | None = None
    error: type[HoldfastError] = StateError
    version_error: type[HoldfastError] = StateVersionError
    hint: str = _DAMAGED

    def to_json(self, record: Record) -> dict[str, Any]:
        """Return the record as plain JSON: the version and always all fields."""
        stored: dict[str, Any] = {"version": self.version}
        for name, is_text in _fields_as_text(self.record).items():
            value = _encode(getattr(record, name))
            if name == KEEPS_UNKNOWN:
                stored |= {key: kept for key, kept in value.items() if key not in stored}
            else:
                stored[name] = json.dumps(value, separators=(",", ":")) if is_text else value
        return stored

    def from_json(self, value: Any) -> Record:
        """Return the record that ``to_json`` of this or any earlier release wrote."""
        content = self.upgraded(value)
        try:
            record: Record = _decode_fields(self.record, content, "")
        except _Invalid as invalid:
            raise self.error(
                f"invalid {self.name}: {invalid.place or 'it'} {invalid.problem}",
                field=invalid.place,
                found=f"{invalid.found!r}"[:80],
                hint=self.hint,
            ) from None
        return record

    def upgraded(self, value: Any) -> dict[str, Any]:
        """Return the fields as the current version writes them, without the version; values are not checked yet."""
        version = value.get("version", self.unmarked) if isinstance(value, Mapping) else None
        if not isinstance(version, int) or isinstance(version, bool) or version < 1:
            raise self.error(f"this is not a {self.name}", found=f"{value!r}"[:80], hint=self.hint)
        if version > self.version:
            raise self.version_error(
                f"the {self.name} was made by a newer holdfast",
                version=version,
                known=self.version,
                hint="upgrade holdfast",
            )
        content = {str(key): entry for key, entry in value.items() if key != "version"}
        try:
            for earlier in range(version, self.version):
                content = dict(self.upgrades[earlier](content))
        except HoldfastError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            raise self.error(
                f"the {self.name} cannot be upgraded from version {version}: {error!r}", hint=self.hint
            ) from error
        return content


def problem_with(record: type[Any], content: Any) -> str | None:
    """Return the first reason why a value does not fit a dataclass; None if it fits.

    For values that carry no version of their own. Hints mean what they mean in a ``Format``.
    """
    try:
        _decode_fields(record, content, "")
    except _Invalid as invalid:
        return f"{invalid.place or 'it'} {invalid.problem}"
    return None


def _hints(record: Any) -> dict[str, Any]:
    return _cached_hints(record)


@cache
def _cached_hints(record: Any) -> dict[str, Any]:
    return {
        name: hint
        for name, hint in get_type_hints(record, include_extras=True).items()
        if name in {entry.name for entry in fields(record)}
    }


def _fields_as_text(record: Any) -> dict[str, bool]:
    return _cached_fields_as_text(record)


@cache
def _cached_fields_as_text(record: Any) -> dict[str, bool]:
    return {name: _is_text(hint) for name, hint in _hints(record).items()}


def _notes(hint: Any) -> tuple[Any, ...]:
    return hint.__metadata__ if get_origin(hint) is Annotated else ()


def _is_text(hint: Any) -> bool:
    return any(isinstance(note, _AsText) for note in _notes(hint))


def _encode(value: Any) -> Any:
    if type(value) in _PLAIN:  # nearly all values: a state may be requested at every step
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {name: _encode(getattr(value, name)) for name in _hints(type(value))}
    if isinstance(value, Mapping):
        return {key: _encode(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encode(entry) for entry in value]
    return value


def _decode_fields(record: type[Any], content: Any, place: str) -> Any:
    if not isinstance(content, Mapping):
        raise _Invalid(place, "must be an object with named fields", content)
    hints = _hints(record)
    unknown = {name: entry for name, entry in content.items() if name not in hints or name == KEEPS_UNKNOWN}
    if unknown and KEEPS_UNKNOWN not in hints:
        name, entry = next(iter(unknown.items()))
        raise _Invalid(_joined(place, name), "is not a field of this version", entry)
    found: dict[str, Any] = {KEEPS_UNKNOWN: unknown} if KEEPS_UNKNOWN in hints else {}
    for entry in fields(record):
        if entry.name == KEEPS_UNKNOWN:
            continue
        if entry.name in content:
            found[entry.name] = _decode(hints[entry.name], content[entry.name], _joined(place, entry.name))
        elif entry.default is MISSING and entry.default_factory is MISSING:
            raise _Invalid(_joined(place, entry.name), "is missing", None)
    return _made(record, found, place)


def _made(record: type[Any], found: dict[str, Any], place: str) -> Any:
    """Return the record; if its own checks reject a value, raise ``_Invalid``."""
    try:
        return record(**found)
    except HoldfastError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError) as error:
        raise _Invalid(place, f"is not valid: {error}", found) from error


def _decode(hint: Any, value: Any, place: str) -> Any:
    if hint is type(value) and hint in _PLAIN:
        return value
    if isinstance(hint, NewType):
        return _decode(hint.__supertype__, value, place)
    origin = get_origin(hint)
    if origin is Annotated:
        return _decode_annotated(hint, value, place)
    if hint is Any or hint is object:
        return value
    if origin in (Union, types.UnionType):
        return _decode_union(get_args(hint), value, place)
    if origin is Literal:
        if value in get_args(hint) and type(value) in {type(choice) for choice in get_args(hint)}:
            return value
        raise _Invalid(place, "must be " + " or ".join(map(repr, get_args(hint))), value)
    if is_dataclass(hint):
        return _decode_fields(hint, value, place)  # type: ignore[arg-type]  # a class, as hints are
    if origin in (list, tuple) or hint in (list, tuple) or _is_named_tuple(hint):
        return _decode_sequence(hint, value, place)
    if origin is not None and issubclass(origin, Mapping):
        if not isinstance(value, Mapping):
            raise _Invalid(place, "must be an object", value)
        return {str(key): _decode(get_args(hint)[1], entry, _joined(place, str(key))) for key, entry in value.items()}
    return _decode_plain(hint, value, place)


def _decode_annotated(hint: Any, value: Any, place: str) -> Any:
    if isinstance(value, str) and _is_text(hint):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            raise _Invalid(place, "must be JSON text", value) from None
    found = _decode(hint.__origin__, value, place)
    for note in _notes(hint):
        if isinstance(note, Between) and found is not None and not note.low <= found <= note.high:
            raise _Invalid(place, f"must be from {note.low} to {note.high}", value)
    return found


def _decode_union(choices: tuple[Any, ...], value: Any, place: str) -> Any:
    last = _Invalid(place, "has no valid choice", value)
    for choice in choices:
        try:
            return _decode(choice, value, place)
        except _Invalid as invalid:  # noqa: PERF203  # tries one choice after the other
            last = last if choice is type(None) else invalid
    raise last if len(choices) == 2 and type(None) in choices else _Invalid(place, _told(choices), value)


def _decode_sequence(hint: Any, value: Any, place: str) -> Any:
    if not isinstance(value, (list, tuple)):
        raise _Invalid(place, "must be a list", value)
    parts = list(_element_hints(hint, value, place))
    found = [_decode(part, entry, f"{place}[{i}]") for i, (part, entry) in enumerate(zip(parts, value, strict=True))]
    if _is_named_tuple(hint):
        return hint(*found)
    return tuple(found) if hint is tuple or get_origin(hint) is tuple else found


def _element_hints(hint: Any, value: Any, place: str) -> Iterator[Any]:
    """Yield the hint of every element."""
    arguments = tuple(get_type_hints(hint, include_extras=True).values()) if _is_named_tuple(hint) else get_args(hint)
    if not arguments:
        return iter([Any] * len(value))
    if get_origin(hint) is list or arguments[-1] is Ellipsis:
        return iter([arguments[0]] * len(value))
    if len(arguments) != len(value):
        raise _Invalid(place, f"must have {len(arguments)} elements", value)
    return iter(arguments)


def _decode_plain(hint: Any, value: Any, place: str) -> Any:
    if hint is None or hint is type(None):
        if value is not None:
            raise _Invalid(place, "must be null", value)
        return None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        try:
            return float(value)
        except OverflowError:
            raise _Invalid(place, "must be a float", value) from None
    kinds = Mapping if hint is dict else hint
    if not isinstance(value, kinds) or (isinstance(value, bool) and hint is not bool):
        raise _Invalid(place, _told((hint,)), value)
    return value


def _is_named_tuple(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, tuple) and hasattr(hint, "_fields")


def _told(choices: tuple[Any, ...]) -> str:
    return "must be " + " or ".join(getattr(choice, "__name__", str(choice)) for choice in choices)


def _joined(place: str, name: str) -> str:
    return f"{place}.{name}" if place else name
