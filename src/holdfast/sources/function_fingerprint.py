"""A fingerprint of a function: of all user code and values on which its result depends.

It covers the function's code and that of nested functions, its defaults and closures, and every global it names, also
through modules (``table.VOCABULARY``): the user's functions and classes by their code, plain values by their content.
Anything from Python or an installed package is identified by its name. Anything else, such as a tokenizer whose
vocabulary may have changed, cannot be fingerprinted and is rejected.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from logging import Logger
from pathlib import Path
from types import (
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np

from holdfast.errors import ConfigError

__all__ = ["fingerprint_of"]

MAX_DEPTH = 64  # maximum nesting of functions and values

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(...), range, np.generic, np.dtype)
# What every class has, and what decorators of the standard library add: derived from the rest.
_GENERATED = {
    *("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__annotations__", "__annotate__"),
    *(
        "__dataclass_fields__",
        "__dataclass_params__",
        "__match_args__",
        "__slots__",
        "__parameters__",
        "__orig_bases__",
    ),
    *("__abstractmethods__", "_abc_impl", "__firstlineno__", "__static_attributes__", "__annotations_cache__"),
}


def fingerprint_of(function: Callable[..., Any]) -> str:
    """Return a digest of a function and of what it uses.

    Raises:
        ConfigError: it uses something that cannot be fingerprinted.
    """
    found = _Fingerprint()
    found.add(function, 0)
    return found.hexdigest()


class _Fingerprint:
    def __init__(self) -> None:
        self._digest = hashlib.blake2b(digest_size=16)
        self._known: dict[int, Any] = {}  # functions, classes and objects already added, which may refer to each other

    def hexdigest(self) -> str:
        return self._digest.hexdigest()

    def add(self, value: Any, depth: int) -> None:
        if depth > MAX_DEPTH:
            raise ConfigError("the function is nested too deeply for a fingerprint", hint="give version=…")
        if isinstance(value, _PLAIN):
            self._say(type(value).__name__, repr(value))
        elif isinstance(value, CodeType):
            self._say("code", value.co_code.hex(), value.co_names, value.co_varnames)
            self.add_all(value.co_consts, depth)
        elif isinstance(value, (list, tuple)):
            self._say(type(value).__name__, len(value))
            self.add_all(value, depth)
        elif isinstance(value, (set, frozenset)):
            self._say("set", sorted(map(_told_apart, value)))
        elif isinstance(value, Mapping):
            self._say("mapping", _name(type(value)), len(value))
            self.add_all((part for item in value.items() for part in item), depth)
        elif isinstance(value, np.ndarray) and not value.dtype.hasobject:
            self._say("array", value.dtype.str, value.shape)
            self._digest.update(np.ascontiguousarray(value).tobytes())
        elif isinstance(value, re.Pattern):
            self._say("pattern", value.pattern, value.flags)
        elif isinstance(value, Enum):
            self._say("enum", _name(type(value)), value.name, repr(value.value))
        elif isinstance(value, (np.ufunc, Logger)) or _name(type(value)) in ("torch.dtype", "torch.device"):
            self._say(type(value).__name__, str(value))
        elif id(value) in self._known:
            self._say("again")
        else:
            self._known[id(value)] = value  # kept alive, so that no other object gets its id
            self._add_object(value, depth)

    def add_all(self, values: Iterable[Any], depth: int) -> None:
        for value in values:
            self.add(value, depth + 1)

    def _add_object(self, value: Any, depth: int) -> None:
        if isinstance(value, functools.partial):
            self.add_all((value.func, value.args, value.keywords), depth)
        elif isinstance(value, MethodType):
            self.add_all((value.__func__, value.__self__), depth)
        elif isinstance(value, (staticmethod, classmethod)):
            self.add(value.__func__, depth + 1)
        elif isinstance(value, property):
            self.add_all((value.fget, value.fset, value.fdel), depth)
        elif isinstance(value, functools.cached_property):
            self.add(value.func, depth + 1)
        elif isinstance(value, FunctionType) and _is_own(value.__module__):
            self._add_function(value, depth)
        elif hasattr(value, "__wrapped__") and callable(value):  # as lru_cache leaves it
            self.add(value.__wrapped__, depth + 1)
        elif isinstance(value, ModuleType):
            self._say("module", value.__name__)
            if _is_own(value.__name__):
                self._digest.update(_source_of(value))
        elif isinstance(value, type) and _is_own(value.__module__):
            self._add_class(value, depth)
        elif callable(value) and isinstance(getattr(value, "__qualname__", None), str):
            self._say("named", _name(value))
        elif all(_is_own(base.__module__) or base.__module__ in ("abc", "typing") for base in type(value).__mro__[:-1]):
            self.add(type(value), depth + 1)
            self.add(_attributes(value), depth + 1)
        else:
            raise ConfigError(
                "the function uses something that cannot be fingerprinted",
                kind=type(value).__name__,
                hint="pass version=…, and change it when the function or what it uses changes",
            )

    def _add_function(self, function: FunctionType, depth: int) -> None:
        held = [_content(cell) for cell in function.__closure__ or ()]
        self.add_all((function.__code__, function.__defaults__, function.__kwdefaults__, held), depth)
        for path in _globals_named(function.__code__):
            value: Any = function.__globals__.get(path[0], _MISSING)
            rest = path[1:]
            while isinstance(value, ModuleType) and rest and hasattr(value, rest[0]):
                value, rest = getattr(value, rest[0]), rest[1:]
            self._say("global", path)
            if value is not _MISSING:  # one of Python's own, or made later
                self.add(value, depth + 1)

    def _add_class(self, kind: type, depth: int) -> None:
        self._say("class", _name(kind))
        self.add_all(kind.__bases__, depth)
        for name, value in sorted(vars(kind).items()):
            if name not in _GENERATED and not isinstance(value, (GetSetDescriptorType, MemberDescriptorType)):
                self._say("attribute", name)
                self.add(value, depth + 1)

    def _say(self, *parts: Any) -> None:
        self._digest.update(f"{parts!r}|".encode())


_MISSING = object()


def _globals_named(code: CodeType) -> Iterator[tuple[str, ...]]:
    """Yield each global that code names, including nested code, with the attributes accessed directly on it."""
    path: tuple[str, ...] = ()
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and path:
            path = (*path, str(instruction.argval))
            continue
        if path:
            yield path
        path = (str(instruction.argval),) if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals_named(constant)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _attributes(value: Any) -> dict[str, Any]:
    slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return dict(sorted({**found, **getattr(value, "__dict__", {})}.items()))


def _told_apart(value: Any) -> str:
    if not isinstance(value, (*_PLAIN, tuple, frozenset)):
        raise ConfigError(
            "the function uses a set of something that cannot be fingerprinted",
            kind=type(value).__name__,
            hint="give version=…",
        )
    return f"{type(value).__name__} {value!r}" if not isinstance(value, frozenset) else repr(sorted(map(repr, value)))


def _name(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{value.__qualname__}"


def _is_own(module: str | None) -> bool:
    """Return whether a module is user code: not part of Python, of an installed package or of holdfast."""
    if module is None or module == "__main__":
        return True
    if module.partition(".")[0] == "holdfast" or module in sys.builtin_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    if file is None:
        return module not in sys.modules
    return not any(_is_inside(file, place) for place in _installed())


@functools.cache
def _installed() -> tuple[str, ...]:
    return tuple(
        {os.path.realpath(sysconfig.get_path(kind)) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    )


def _is_inside(file: str, folder: str) -> bool:
    return os.path.realpath(file).startswith(folder + os.sep)


def _source_of(module: ModuleType) -> bytes:
    try:
        return Path(str(module.__file__)).read_bytes()
    except OSError as error:
        raise ConfigError(
            "the function uses a module whose source cannot be read", module=module.__name__, hint="give version=…"
        ) from error
