"""The types that objects in a checkpoint may consist of, each with the function that makes one from checked parts.

This is the reviewed list. A maker receives what the pickle would have passed to a constructor and to ``__setstate__``,
checks every part of it, and raises ``ValueError`` (or ``TypeError``) for anything that its type would not have
written. No maker imports, calls or sets anything that the pickle chose.

The arguments are a tuple. Any other part may be a ``range`` or an expanded tensor, which takes a few bytes in the file
and exabytes as a list: its exact type is checked before it is unpacked, iterated, converted or compared.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import decimal
import enum
import io
import math
import pathlib
import re
import sys
import types
import uuid
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from holdfast.checkpoint.inert import Keys, Name

__all__ = ["FACTORIES", "MAKERS", "Maker", "torch_enum"]

Maker = Callable[[tuple[Any, ...], Any], Any]
"""Makes a value from the arguments and the state that the pickle holds for it."""

MAX_DECIMAL_DIGITS = 10_000
MAX_DIMENSIONS = 64
"""Same as NumPy's."""
MAX_SLICE_PARTS = 256
"""Maximum number of members of a tuple in a slice, which may be a key: the same as for tuples as keys."""
_ALIGNED = 0x80  # NumPy's NPY_ALIGNED_STRUCT
_NUMPY_DTYPE_VERSIONS = (3, 4)  # written since NumPy 1.0, without and with metadata; NumPy reads no others
_NUMPY_ARRAY_VERSION = 1
_NUMPY_CODE = re.compile(r"[biufc](1|2|4|8|16|32)|[SUVa]\d{0,9}|[mM]8|O8?")


def _only(kind: type, *values: Any) -> None:
    for value in values:
        if type(value) is not kind:
            raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")


def _tuple(value: Any, least: int, most: int, kind: type = object) -> tuple[Any, ...]:
    """Return a tuple whose length is within bounds, of values of one type; raise for anything else."""
    _only(tuple, value)
    if not least <= len(value) <= most:
        raise ValueError(f"expected a tuple of {least} to {most} values, got {len(value)}")
    if kind is not object:
        _only(kind, *value)
    found: tuple[Any, ...] = value
    return found


def _no_state(state: Any) -> None:
    if state is not None:
        raise ValueError("unexpected state")


def _attributes(state: Any) -> dict[str, Any]:
    _only(dict, state)
    _only(str, *state)
    if any(name.startswith("__") for name in state):
        raise ValueError("an attribute whose name starts with two underscores")
    return dict(state)


def _namespace(arguments: tuple[Any, ...], state: Any) -> argparse.Namespace:
    if arguments:
        raise ValueError("it takes no arguments")
    made = argparse.Namespace()
    made.__dict__.update(_attributes({} if state is None else state))
    return made


def _simple_namespace(arguments: tuple[Any, ...], state: Any) -> types.SimpleNamespace:
    if arguments:
        raise ValueError("it takes no arguments")
    made = types.SimpleNamespace()
    made.__dict__.update(_attributes({} if state is None else state))
    return made


def _of_text(kind: type) -> Maker:
    def make(arguments: tuple[Any, ...], state: Any) -> Any:
        _no_state(state)
        _only(str, *arguments)
        if any("\0" in part for part in arguments):
            raise ValueError("a zero byte in a path")
        return kind(*arguments)

    return make


def _decimal(arguments: tuple[Any, ...], state: Any) -> decimal.Decimal:
    _no_state(state)
    (text,) = arguments
    _only(str, text)
    if len(text) > MAX_DECIMAL_DIGITS:
        raise ValueError("a decimal number with too many digits")
    return decimal.Decimal(text)


def _of_numbers(kind: type, most: int, allowed: tuple[type, ...]) -> Maker:
    def make(arguments: tuple[Any, ...], state: Any) -> Any:
        _no_state(state)
        if len(arguments) > most or any(type(argument) not in allowed for argument in arguments):
            raise TypeError("unexpected arguments")
        return kind(*arguments)

    return make


def _slice(arguments: tuple[Any, ...], state: Any) -> slice:
    """Return a slice of numbers and text, or of tuples of these, as labels of a table are."""
    _no_state(state)
    _tuple(arguments, 1, 3)
    for member in arguments:
        parts = _tuple(member, 0, MAX_SLICE_PARTS) if type(member) is tuple else (member,)
        for part in parts:
            if type(part) not in (int, float, str, bool, type(None)):
                kind = type(part).__name__
                raise TypeError(f"a slice of something other than numbers, text and tuples of these: a {kind}")
    return slice(*arguments)


def _of_time(kind: type, sizes: int) -> Maker:
    def make(arguments: tuple[Any, ...], state: Any) -> Any:
        _no_state(state)
        packed, *zone = arguments
        _only(bytes, packed)
        if len(packed) != sizes or len(zone) > 1 or any(type(one) is not datetime.timezone for one in zone):
            raise ValueError("not a packed date or time")
        return kind(packed, *zone).replace()  # replace() checks every field; the constructor checks only the month

    return make


def _timezone(arguments: tuple[Any, ...], state: Any) -> datetime.timezone:
    _no_state(state)
    offset, *name = arguments
    _only(datetime.timedelta, offset)
    _only(str, *name)
    return datetime.timezone(offset, *name)


def _hashable(values: Any) -> Iterable[Any]:
    if type(values) not in (list, tuple, set, frozenset):
        raise TypeError(f"expected a list, got {type(values).__name__}")
    check = Keys().check
    return [check(value) for value in values]


def _set(kind: type) -> Maker:
    def make(arguments: tuple[Any, ...], state: Any) -> Any:
        _no_state(state)
        return kind(*(_hashable(values) for values in arguments))

    return make


def _deque(arguments: tuple[Any, ...], state: Any) -> collections.deque[Any]:
    _no_state(state)
    values = arguments[0] if arguments else ()
    most = arguments[1] if len(arguments) > 1 else None
    if type(values) not in (list, tuple) or type(most) not in (int, type(None)):
        raise TypeError("invalid arguments for a deque")
    return collections.deque(values, most)


def _ordered_dict(arguments: tuple[Any, ...], state: Any) -> collections.OrderedDict[Any, Any]:
    made: collections.OrderedDict[Any, Any] = collections.OrderedDict()
    check = Keys().check
    for pairs in arguments:
        _only(list, pairs)
        for key, value in pairs:
            made[check(key)] = value
    if state is not None:  # a module's state dict carries ``_metadata``
        made.__dict__.update(_attributes(state))
    return made


def _counter(arguments: tuple[Any, ...], state: Any) -> collections.Counter[Any]:
    _no_state(state)
    _only(dict, *arguments)
    return collections.Counter(*arguments)


def _default_dict(arguments: tuple[Any, ...], state: Any) -> collections.defaultdict[Any, Any]:
    _no_state(state)
    factories = (None, *FACTORIES.values())
    if len(arguments) > 1 or any(all(one is not factory for factory in factories) for one in arguments):
        raise ValueError("a default factory other than list, dict, set, int, float, str or tuple")
    return collections.defaultdict(*arguments)


def _bytearray(arguments: tuple[Any, ...], state: Any) -> bytearray:
    _no_state(state)
    _only(bytes, *arguments)  # an integer would allocate that many bytes
    return bytearray(*arguments)


def _empty_bytes(arguments: tuple[Any, ...], state: Any) -> bytes:
    """Return empty bytes, which protocol 2 stores as a call without arguments."""
    _no_state(state)
    if arguments:
        raise ValueError("bytes built from other values")
    return b""


def _encode(arguments: tuple[Any, ...], state: Any) -> bytes:
    """Return bytes, which protocol 2 stores as text to encode."""
    _no_state(state)
    text, encoding = arguments
    _only(str, text, encoding)
    if encoding not in ("latin1", "latin-1"):
        raise ValueError(f"bytes saved as {encoding!r}")
    return bytes(text, "latin-1")


def _bytes_io(arguments: tuple[Any, ...], state: Any) -> io.BytesIO:
    content, position, attributes = _tuple(state, 3, 3)
    _only(bytes, content)
    if type(attributes) not in (dict, type(None)):
        raise TypeError(f"expected dict, got {type(attributes).__name__}")
    if arguments or type(position) is not int or not 0 <= position < 1 << 62 or attributes:
        raise ValueError("invalid state for a BytesIO")
    made = io.BytesIO(content)
    made.seek(position)
    return made


def _uuid(arguments: tuple[Any, ...], state: Any) -> uuid.UUID:
    _only(dict, state)
    if arguments or state.keys() - {"int", "is_safe"}:
        raise ValueError("invalid state for a UUID")
    _only(int, state["int"])
    safe = state.get("is_safe")
    if type(safe) not in (int, type(None)):
        raise TypeError(f"expected a number that says whether a UUID is safe, got {type(safe).__name__}")
    safety = uuid.SafeUUID(safe)
    return uuid.UUID(int=state["int"], is_safe=safety)


def _numpy_dtype(arguments: tuple[Any, ...], state: Any) -> Any:
    code = arguments[0]
    _only(str, code)
    if not _NUMPY_CODE.fullmatch(code):
        raise ValueError(f"unsupported NumPy dtype {code!r}")
    if state is None:
        return np.dtype(code)
    version, order, base, names, fields, itemsize, _alignment, flags, *more = _tuple(state, 8, 9)
    _only(int, version, itemsize, flags)
    _only(str, order)
    if version not in _NUMPY_DTYPE_VERSIONS:
        raise ValueError(f"a NumPy dtype of unknown version {version}")
    if order not in ("<", ">", "|", "="):
        raise ValueError("a NumPy dtype with an unknown byte order")
    metadata = more[0] if more else None
    if base is not None:
        made = _numpy_subarray(*_tuple(base, 2, 2))
    elif names is not None:
        made = _numpy_record(names, fields, itemsize, aligned=bool(flags & _ALIGNED))
    elif code in ("m8", "M8"):
        metadata, unit = _tuple(more[0], 2, 2)
        made = _numpy_time(order + code, *_tuple(unit, 2, 4))
    else:
        made = np.dtype(order + code)
    if itemsize not in (-1, made.itemsize):
        raise ValueError("a NumPy dtype with the wrong size")
    if metadata is not None:
        _only(dict, metadata)
    return np.dtype(made, metadata=metadata) if metadata is not None else made


def _numpy_time(code: str, name: Any, count: Any, *rest: Any) -> Any:
    _only(bytes, name)  # an integer would allocate that many bytes
    text = name.decode("ascii")
    _only(int, count, *rest)
    # NumPy itself writes 1 for the divisor and the event, and reads nothing else.
    if not re.fullmatch(r"[A-Za-z]{1,7}", text) or not 1 <= count < 1 << 31 or any(number != 1 for number in rest):
        raise ValueError(f"invalid NumPy time unit {text!r}")
    if text != "generic":
        return np.dtype(f"{code}[{count}{text}]")
    if count != 1:
        raise ValueError("a NumPy time without a unit, but with a multiple of it")
    return np.dtype(code)


def _numpy_subarray(element: Any, shape: Any) -> Any:
    if not isinstance(element, np.dtype) or element.hasobject:
        raise ValueError("a NumPy dtype of arrays of objects")
    return np.dtype((element, _tuple(shape, 0, MAX_DIMENSIONS, int)))


def _numpy_record(names: Any, fields: Any, itemsize: int, *, aligned: bool) -> Any:
    _only(tuple, names)
    _only(str, *names)
    _only(dict, fields)
    parts = [_tuple(fields[name], 2, 3) for name in names]
    for part, offset, *title in parts:
        if not isinstance(part, np.dtype) or type(offset) is not int or offset < 0:
            raise ValueError("invalid fields of a NumPy dtype")
        _only(str, *title)
        if part.hasobject:
            raise ValueError("a NumPy dtype with object fields")
    size = max((offset + part.itemsize for part, offset, *_ in parts), default=0)
    if itemsize < size:
        raise ValueError("invalid size of a NumPy dtype")
    about: dict[str, Any] = {
        "names": list(names),
        "formats": [part for part, *_ in parts],
        "offsets": [offset for _, offset, *_ in parts],
        "itemsize": itemsize,
    }
    titles = [title[0] if title else None for _, _, *title in parts]
    if any(titles):
        about["titles"] = titles
    return np.dtype(about, align=aligned)  # type: ignore[call-overload]


def _numpy_array(arguments: tuple[Any, ...], state: Any) -> np.ndarray[Any, Any]:
    if arguments[0] is not np.ndarray:
        raise ValueError("a subclass of numpy.ndarray")
    version, shape, dtype, fortran, content = _tuple(state, 5, 5)
    _only(int, version)
    if type(fortran) not in (bool, int):
        raise TypeError(f"expected the order of an array, got {type(fortran).__name__}")
    if version != _NUMPY_ARRAY_VERSION:
        raise ValueError(f"a NumPy array of unknown version {version}")
    return _array(content, dtype, shape, "F" if fortran else "C")


def _numpy_from_buffer(arguments: tuple[Any, ...], state: Any) -> np.ndarray[Any, Any]:
    _no_state(state)
    content, dtype, shape, order = arguments
    return _array(content, dtype, shape, order)


def _array(content: Any, dtype: Any, shape: Any, order: str) -> np.ndarray[Any, Any]:
    _only(str, order)
    if not isinstance(dtype, np.dtype) or order not in ("C", "F"):
        raise TypeError("an array without a dtype")
    _tuple(shape, 0, MAX_DIMENSIONS, int)
    if any(size < 0 for size in shape) or dtype.subdtype is not None:
        raise ValueError("invalid shape of an array")
    count = math.prod(shape)
    if dtype.hasobject:
        _only(list, content)
        if len(content) != count or dtype != np.dtype(object):
            raise ValueError("an array of objects of the wrong length")
        flat = np.empty(count, dtype=dtype)
        for place, value in enumerate(content):
            flat[place] = value
        # NumPy lists objects in row order, whatever their order in memory.
        return np.asarray(flat.reshape(shape), order=order)  # type: ignore[call-overload,no-any-return]
    if type(content) not in (bytes, bytearray) or len(content) != count * dtype.itemsize:
        raise ValueError("an array whose bytes do not match its shape")
    if not content:
        # As a record field: a plain array of zero-length text would get one uninitialised character per element.
        return np.zeros(shape, dtype=[("only", dtype)], order=order)["only"]  # type: ignore[call-overload,no-any-return]
    flat = np.frombuffer(bytearray(content), dtype=dtype)
    _check_text(flat)
    return flat.reshape(shape, order=order)  # type: ignore[call-overload,no-any-return]


def _check_text(array: np.ndarray[Any, Any]) -> None:
    """Raise if an array, or a field of its records, is text that contains an invalid character."""
    for name in array.dtype.names or ():
        _check_text(array[name])
    if array.dtype.kind == "U" and array.size and array.dtype.itemsize:
        numbers = np.ascontiguousarray(array).view(np.dtype(np.uint32).newbyteorder(array.dtype.byteorder))
        if numbers.max() > sys.maxunicode:
            raise ValueError("an array of text with something that is not a character")


def _numpy_scalar(arguments: tuple[Any, ...], state: Any) -> Any:
    _no_state(state)
    dtype, content = arguments
    return _array(content, dtype, (), "C")[()]


def torch_enum(name: Name, arguments: tuple[Any, ...], state: Any) -> Any:
    """Make a member of a torch enumeration that is already imported; ``None`` when the name is not one."""
    if name.module != "torch" and not name.module.startswith("torch."):
        return None
    kind: Any = sys.modules.get(name.module)
    for part in name.name.split("."):
        kind = vars(kind).get(part) if isinstance(kind, (type, types.ModuleType)) else None
    if isinstance(kind, type) and issubclass(kind, enum.Enum) and kind.__module__.partition(".")[0] == "torch":
        (value,) = arguments
        return kind(value) if type(value) in (int, str) and state is None else None
    # Enumerations from torch's C++ side are made empty, then given their number as state.
    members = vars(kind).get("__members__") if isinstance(kind, type) else None
    if members is not None and type(kind).__name__ == "pybind11_type":
        number = state if state is not None else arguments[0]
        _only(int, number)
        return next((member for member in kind.__members__.values() if int(member) == number), None)
    return None


FACTORIES: dict[Name, Any] = {
    Name("builtins", kind.__name__): kind for kind in (list, dict, set, int, float, str, tuple, bool)
}
"""What a ``defaultdict`` may make."""

MAKERS: dict[Name, Maker] = {
    Name("_codecs", "encode"): _encode,
    Name("_io", "BytesIO"): _bytes_io,
    Name("argparse", "Namespace"): _namespace,
    Name("builtins", "bytearray"): _bytearray,
    Name("builtins", "bytes"): _empty_bytes,
    Name("builtins", "complex"): _of_numbers(complex, 2, (float, int)),
    Name("builtins", "frozenset"): _set(frozenset),
    Name("builtins", "range"): _of_numbers(range, 3, (int,)),
    Name("builtins", "set"): _set(set),
    Name("builtins", "slice"): _slice,
    Name("collections", "Counter"): _counter,
    Name("collections", "OrderedDict"): _ordered_dict,
    Name("collections", "defaultdict"): _default_dict,
    Name("collections", "deque"): _deque,
    Name("datetime", "date"): _of_time(datetime.date, 4),
    Name("datetime", "datetime"): _of_time(datetime.datetime, 10),
    Name("datetime", "time"): _of_time(datetime.time, 6),
    Name("datetime", "timedelta"): _of_numbers(datetime.timedelta, 3, (int,)),
    Name("datetime", "timezone"): _timezone,
    Name("decimal", "Decimal"): _decimal,
    **{
        Name(module, name): _of_text(getattr(pathlib, name))
        for module in ("pathlib", "pathlib._local")
        for name in ("PosixPath", "PurePosixPath", "PureWindowsPath")
    },
    **{
        Name(f"numpy.{core}.{module}", name): maker
        for core in ("core", "_core")
        for module, name, maker in (
            ("multiarray", "_reconstruct", _numpy_array),
            ("multiarray", "scalar", _numpy_scalar),
            ("numeric", "_frombuffer", _numpy_from_buffer),
        )
    },
    Name("numpy", "dtype"): _numpy_dtype,
    Name("types", "SimpleNamespace"): _simple_namespace,
    Name("uuid", "UUID"): _uuid,
}
