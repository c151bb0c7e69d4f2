"""Objects of a checkpoint, made from the bytes that were checked, without running code the checkpoint chose.

The pickle comes in through :mod:`~holdfast.checkpoint.inert`, so there is nothing to run. It is surveyed first: how
deep it is, how large it would be with everything shared written out, and which names it uses. Only when every name is
allowed is anything made: by the makers of :mod:`~holdfast.checkpoint.allowed_types`, by torch's functions that rebuild
tensors (:mod:`~holdfast.checkpoint.safe_tensors`), or by classes that the user registered with
``torch.serialization.add_safe_globals``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import _weights_only_unpickler as weights_only

from holdfast.checkpoint.allowed_types import FACTORIES, MAKERS, torch_enum
from holdfast.checkpoint.inert import DamagedPickleError, Inert, Keys, Name, Persistent, RefusedPickleError
from holdfast.checkpoint.safe_tensors import MAX_DIMENSIONS, TENSOR_FUNCTIONS

__all__ = ["RefusedNamesError", "build_object", "check_object"]

MAX_DEPTH = 200
"""Deepest nesting of containers."""
MAX_EXPANDED = 100_000_000
"""Most values, counting shared ones wherever they appear."""

_LEAVES = frozenset({str, int, float, bytes, bool, type(None), bytearray})


class RefusedNamesError(Exception):
    """The pickle uses names that are not allowed; ``names`` has them all."""

    def __init__(self, names: Iterable[Name]) -> None:
        self.names = sorted(map(str, names))
        super().__init__(", ".join(self.names))


def build_object(tree: Any, storage: Callable[[Any], Any]) -> Any:
    """Make the object that a pickle describes.

    Args:
        tree: the pickle, as :func:`~holdfast.checkpoint.pickle_machine.read_pickle` gives it.
        storage: makes the storage that a persistent reference denotes.

    Raises:
        RefusedNamesError: it uses names that are not allowed; nothing was made.
        RefusedPickleError: it is too deep or too large, refers to itself, or holds values that are not rebuilt.
        DamagedPickleError: a storage is missing, say.
    """
    if type(tree) in _LEAVES:
        return tree
    builder = _Builder(storage)
    builder.check(tree)
    try:
        return builder.make(tree)
    except (DamagedPickleError, MemoryError):
        raise
    except Exception as error:  # torch's functions, and the user's classes, raise anything at all
        raise RefusedPickleError(f"{type(error).__name__}: {error}") from error


def check_object(tree: Any) -> None:
    """Raise what :func:`build_object` raises before it makes anything."""
    _Builder(lambda _: None).check(tree)


class _Builder:
    def __init__(self, storage: Callable[[Any], Any]) -> None:
        self.refused: set[Name] = set()
        self._storage = storage
        self._key = Keys().check
        self._measures: dict[int, tuple[int, int] | None] = {}  # expanded size and depth; None while inside
        self._plain: set[int] = set()
        self._made: dict[int, Any] = {}
        self._user: dict[str, Any] = weights_only._get_user_allowed_globals()  # type: ignore[no-untyped-call]
        self._torch: dict[str, Any] = weights_only._get_allowed_globals()

    # Look first.

    def check(self, tree: Any) -> None:
        """Survey all of it; raises where something is refused."""
        if type(tree) not in _LEAVES:
            self.survey(tree)
        if self.refused:
            raise RefusedNamesError(self.refused)

    def survey(self, value: Any, above: int = 0) -> tuple[int, int]:
        """Measure a value, and note the names it uses that are not allowed."""
        key = id(value)
        if key in self._measures:
            measure = self._measures[key]
            if measure is None:
                raise RefusedPickleError("it refers to itself")
            return measure
        if above > MAX_DEPTH:
            raise RefusedPickleError(f"it is nested more than {MAX_DEPTH} deep")
        self._measures[key] = None
        size, depth, plain = 1, 0, type(value) not in (Inert, Name, Persistent)
        for child in _children(value):
            if type(child) in _LEAVES:
                size += 1
                continue
            child_size, child_depth = self.survey(child, above + 1)
            size += child_size
            depth = max(depth, child_depth)
            plain = plain and id(child) in self._plain
        if size > MAX_EXPANDED or depth > MAX_DEPTH:
            raise RefusedPickleError(
                f"it holds more than {MAX_EXPANDED} values, or is nested more than {MAX_DEPTH} deep"
            )
        if plain:
            self._plain.add(key)
        self._note_names(value)
        self._measures[key] = (size, depth + 1)
        return size, depth + 1

    def _note_names(self, value: Any) -> None:
        if type(value) is Inert and value.function == _GETATTR:  # a class within another, not called
            self.refused.add(_path(value) or _GETATTR)
        elif type(value) is Inert:
            name = _function(value)
            known = name in MAKERS or name in TENSOR_FUNCTIONS or name == _PARAMETER or str(name) in self._user
            if not known and not (_is_torch(name) and self._is_enum(value)):
                self.refused.add(name)
        elif type(value) is Name and self._constant(value) is None:
            self.refused.add(value)

    def _is_enum(self, value: Inert) -> bool:
        try:
            return torch_enum(_function(value), value.arguments, value.state) is not None
        except (TypeError, ValueError, IndexError):
            return False

    def _constant(self, name: Name) -> Any:
        """Return what a name that is not called denotes, or ``None``."""
        if name == _NDARRAY:
            return np.ndarray
        if name in FACTORIES:
            return FACTORIES[name]
        if name in TENSOR_FUNCTIONS:  # an argument of the function that rebuilds subclasses
            return TENSOR_FUNCTIONS[name]
        if _is_torch(name):
            value = self._torch.get(str(name))
            if isinstance(value, (torch.dtype, torch.qscheme, torch.serialization.StorageType)):
                return value
            if name in _TENSOR_CLASSES:
                return _TENSOR_CLASSES[name]
        return self._user.get(str(name))

    # Then make.

    def make(self, value: Any) -> Any:
        """Make what a surveyed value denotes."""
        key = id(value)
        if type(value) in _LEAVES or key in self._plain:
            return value
        if key not in self._made:
            self._made[key] = self._make(value)
        return self._made[key]

    def _make(self, value: Any) -> Any:
        kind = type(value)
        if kind is Inert:
            return self._call(value)
        if kind is Name:
            return self._constant(value)
        if kind is Persistent:
            return self._storage(self.make(value.identity))
        if kind is dict:
            return {self._key(self.make(key)): self.make(entry) for key, entry in value.items()}
        if kind in (set, frozenset):
            return kind(self._key(self.make(entry)) for entry in value)
        return kind(self.make(entry) for entry in value)  # a list or a tuple

    def _call(self, value: Inert) -> Any:
        name, arguments = _function(value), self.make(value.arguments)
        state = self.make(value.state)
        if type(arguments) is not tuple:
            raise RefusedPickleError("arguments that are not a tuple")
        if name in MAKERS:
            made = MAKERS[name](arguments, state)
        elif name in TENSOR_FUNCTIONS or name == _PARAMETER:
            if state is not None:
                raise RefusedPickleError("a tensor with extra state")
            made = TENSOR_FUNCTIONS.get(name, torch.nn.Parameter)(*arguments)
        elif str(name) in self._user:
            made = _user_object(self._user[str(name)], arguments, state, made=value.made)
        else:
            made = torch_enum(name, arguments, state)
        if isinstance(made, torch.Tensor) and made.dim() > MAX_DIMENSIONS:
            raise RefusedPickleError(f"a tensor of more than {MAX_DIMENSIONS} dimensions")
        for key, entry in value.items:
            made[self._key(self.make(key))] = self.make(entry)
        if value.values:
            made.extend([self.make(entry) for entry in value.values])
        return made


_GETATTR = Name("builtins", "getattr")
_NDARRAY = Name("numpy", "ndarray")
_PARAMETER = Name("torch.nn.parameter", "Parameter")
_TENSOR_CLASSES: dict[Name, Any] = {
    Name("torch", "Tensor"): torch.Tensor,
    Name("torch.storage", "UntypedStorage"): torch.UntypedStorage,
    _PARAMETER: torch.nn.Parameter,
}


def _is_torch(name: Name) -> bool:
    return name.module == "torch" or name.module.startswith("torch.")


def _function(value: Inert) -> Name:
    """Return the name that is called."""
    name = value.function if type(value.function) is Name else _path(value.function)
    if name is None:
        raise RefusedPickleError("it calls something other than a name")
    return name


def _path(value: Any) -> Name | None:
    """Return what a value names; protocol 2 reaches a class inside another with ``getattr``."""
    attributes: list[str] = []
    while type(value) is Inert and value.function == _GETATTR and len(attributes) < MAX_DEPTH:
        if type(value.arguments) is not tuple or len(value.arguments) != 2 or type(value.arguments[1]) is not str:
            return None
        value, attribute = value.arguments
        attributes.append(attribute)
    return Name(value.module, ".".join([value.name, *reversed(attributes)])) if type(value) is Name else None


def _children(value: Any) -> Iterable[Any]:
    if type(value) is Inert and value.function == _GETATTR and _path(value) is not None:
        return ()
    if type(value) is Inert:
        pairs = [part for pair in value.items for part in pair]
        return (value.arguments, value.state, *pairs, *value.values)
    if type(value) is dict:
        return [part for pair in value.items() for part in pair]
    if type(value) is Persistent:
        return (value.identity,)
    return () if type(value) is Name else value


def _user_object(kind: Any, arguments: tuple[Any, ...], state: Any, *, made: bool) -> Any:
    """Make an instance of a class that the user allowed, as torch's weights-only loader does."""
    instance = kind.__new__(kind, *arguments) if made else kind(*arguments)
    if state is None:
        return instance
    if hasattr(instance, "__setstate__"):
        instance.__setstate__(state)
        return instance
    slots = None
    if type(state) is tuple and len(state) == 2:
        state, slots = state
    instance.__dict__.update(state or {})
    for name, value in (slots or {}).items():
        setattr(instance, name, value)
    return instance
