"""Objects in a checkpoint, made from checked bytes without running code that the checkpoint chose.

The pickle is read as data (``holdfast.checkpoint.inert``), so there is nothing to run. It is surveyed first: how
deep it is, how large it would be with shared parts written out, and which names it uses. Only if every name is allowed
is anything made: by the makers in ``holdfast.checkpoint.allowed_types``, by torch's functions that rebuild tensors
(``holdfast.checkpoint.safe_tensors``), or by classes that the user registered with
``torch.serialization.add_safe_globals``.
"""

from __future__ import annotations

import collections
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
"""Maximum nesting depth of containers."""
MAX_EXPANDED = 100_000_000
"""Maximum number of values, counting shared ones each time they appear."""

_LEAVES = frozenset({str, int, float, bytes, bool, type(None), bytearray})


class RefusedNamesError(Exception):
    """The pickle uses names that are not allowed; ``names`` lists them all."""

    def __init__(self, names: Iterable[Name]) -> None:
        self.names = sorted(map(str, names))
        super().__init__(", ".join(self.names))


def build_object(tree: Any, storage: Callable[[Any], Any]) -> Any:
    """Make the object that a pickle describes.

    Args:
        tree: the pickle, as ``holdfast.checkpoint.pickle_machine.read_pickle`` returns it.
        storage: returns the storage for a persistent reference.

    Raises:
        RefusedNamesError: it uses names that are not allowed; nothing was made.
        RefusedPickleError: it is too deep or too large, refers to itself, or holds unsupported values.
        DamagedPickleError: it is damaged; for example, a storage is missing.
        Warning: making it causes a warning, and the program turns warnings into errors.
    """
    if type(tree) in _LEAVES:
        return tree
    builder = _Builder(storage)
    builder.check(tree)
    try:
        return builder.make(tree)
    except (DamagedPickleError, MemoryError, Warning):
        raise
    except Exception as error:  # torch's functions and the user's classes may raise anything
        raise RefusedPickleError(f"{type(error).__name__}: {error}") from error


def check_object(tree: Any) -> None:
    """Raise what ``build_object`` raises before it makes anything."""
    _Builder(lambda _: None).check(tree)


class _Builder:
    def __init__(self, storage: Callable[[Any], Any]) -> None:
        self.refused: set[Name] = set()
        self._storage = storage
        self._key = Keys().check
        self._measures: dict[int, tuple[int, int] | None] = {}  # expanded size and depth; None while being measured
        self._plain: set[int] = set()
        self._made: dict[int, Any] = {}
        self._user = _allowed_by_user()
        self._torch: dict[str, Any] = weights_only._get_allowed_globals()

    # First, the survey.

    def check(self, tree: Any) -> None:
        """Survey all of it; raise if something is refused."""
        if type(tree) not in _LEAVES:
            self.survey(tree)
        if self.refused:
            raise RefusedNamesError(self.refused)

    def survey(self, value: Any, above: int = 0) -> tuple[int, int]:
        """Measure a value, and collect the names it uses that are not allowed."""
        key = id(value)
        if key in self._measures:
            measure = self._measures[key]
            if measure is None:
                raise RefusedPickleError("it refers to itself")
            return measure
        if above > MAX_DEPTH:
            raise RefusedPickleError(f"its pickle is nested more than {MAX_DEPTH} deep")
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
                f"it holds more than {MAX_EXPANDED} values, or its pickle is nested more than {MAX_DEPTH} deep"
            )
        if plain:
            self._plain.add(key)
        self._note_names(value)
        self._measures[key] = (size, depth + 1)
        return size, depth + 1

    def _note_names(self, value: Any) -> None:
        if type(value) is Inert and value.function == _GETATTR:  # a nested class, not called
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
        """Return the object for a name that is not called, or ``None``."""
        if name == _NDARRAY:
            return np.ndarray
        if name in FACTORIES:
            return FACTORIES[name]
        if name in _SINGLETONS:
            return _SINGLETONS[name]
        if _is_torch(name):
            value = self._torch.get(str(name))
            if isinstance(value, (torch.dtype, torch.qscheme, torch.serialization.StorageType)):
                return value
            if name in _TENSOR_CLASSES:
                return _TENSOR_CLASSES[name]
        return self._user.get(str(name))

    # Then, making the object.

    def make(self, value: Any) -> Any:
        """Make the object for a surveyed value."""
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
        name = _function(value)
        if _rebuilds_type(value):  # its first argument is another of these functions, not a value
            arguments = (TENSOR_FUNCTIONS[value.arguments[0]], *map(self.make, value.arguments[1:]))
        else:
            arguments = self.make(value.arguments)
        state = self.make(value.state)
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
        _check_filled(value, made, allowed=str(name) in self._user)
        if isinstance(made, torch.Tensor) and made.dim() > MAX_DIMENSIONS:
            raise RefusedPickleError(f"a tensor with more than {MAX_DIMENSIONS} dimensions")
        for key, entry in value.items:
            made[self._key(self.make(key))] = self.make(entry)
        if value.values:
            made.extend([self.make(entry) for entry in value.values])
        return made


_GETATTR = Name("builtins", "getattr")
_NDARRAY = Name("numpy", "ndarray")
_SINGLETONS = {Name("builtins", "Ellipsis"): ..., Name("builtins", "NotImplemented"): NotImplemented}
_PARAMETER = Name("torch.nn.parameter", "Parameter")
_FROM_TYPE = Name("torch._tensor", "_rebuild_from_type_v2")
_TENSOR_CLASSES: dict[Name, Any] = {
    Name("torch", "Tensor"): torch.Tensor,
    Name("torch", "Size"): torch.Size,
    Name("torch", "device"): torch.device,
    Name("torch.storage", "UntypedStorage"): torch.UntypedStorage,
    _PARAMETER: torch.nn.Parameter,
}


def _allowed_by_user() -> dict[str, Any]:
    """Return what the user registered with ``torch.serialization.add_safe_globals``, by name.

    Torch's own list fails at the first entry without a name; such an entry allows nothing.
    """
    found: dict[str, Any] = {}
    for entry in torch.serialization.get_safe_globals():
        if isinstance(entry, tuple):
            found |= {entry[1]: entry[0]} if len(entry) == 2 else {}
        elif hasattr(entry, "__module__") and hasattr(entry, "__qualname__"):
            found[f"{entry.__module__}.{entry.__qualname__}"] = entry
    return found


def _is_torch(name: Name) -> bool:
    return name.module == "torch" or name.module.startswith("torch.")


def _function(value: Inert) -> Name:
    """Return the name of the function that is called."""
    name = value.function if type(value.function) is Name else _path(value.function)
    if name is None:
        raise RefusedPickleError("it calls something other than a name")
    return name


def _path(value: Any) -> Name | None:
    """Return the name that a value stands for; protocol 2 reaches a nested class with ``getattr``."""
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
        arguments = value.arguments[1:] if _rebuilds_type(value) else (value.arguments,)
        return (*arguments, value.state, *pairs, *value.values)
    if type(value) is dict:
        return [part for pair in value.items() for part in pair]
    if type(value) is Persistent:
        return (value.identity,)
    return () if type(value) is Name else value


def _rebuilds_type(value: Inert) -> bool:
    """Return whether this is a call that rebuilds a tensor of some class by another of torch's functions."""
    arguments = value.arguments
    return (
        value.function == _FROM_TYPE
        and type(arguments) is tuple
        and len(arguments) > 0
        and type(arguments[0]) is Name
        and arguments[0] in TENSOR_FUNCTIONS
    )


def _check_filled(value: Inert, made: Any, *, allowed: bool) -> None:
    """Raise if items would be set, or values appended, on something other than a dict, a list or a deque.

    A slice of a ``bytearray`` and a box of a tensor take anything that can be iterated, however long it claims to be.
    """
    if (value.items and not (allowed or isinstance(made, dict))) or (
        value.values and not (allowed or isinstance(made, (list, collections.deque)))
    ):
        raise RefusedPickleError(f"a {type(made).__name__} that would be filled like a dict or a list")


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
