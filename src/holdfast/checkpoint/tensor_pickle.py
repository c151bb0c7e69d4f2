"""What a saved tensor looks like, read out of its pickle without running it.

``torch.save`` writes a tensor as a call of ``_rebuild_tensor_v2`` (or ``_v3``) with a storage key, an offset, a shape
and strides. This module is a stack machine for the two dozen opcodes that takes: a global is kept as a *name*, a call
as a *record of a call*. It imports nothing and calls nothing, and whatever it does not know makes it answer ``None``,
which sends the item down torch's own weights-only loader.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import torch

__all__ = ["TensorRecipe", "is_plain_data", "tensor_recipe"]


class TensorRecipe(NamedTuple):
    """How to see a stored payload as a tensor."""

    storage_key: str
    storage_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage_offset: int

    @property
    def nbytes(self) -> int:
        """The number of bytes the tensor's elements take."""
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        return count


class _Global(NamedTuple):
    module: str
    name: str


class _Call(NamedTuple):
    function: Any
    arguments: Any


class _Persistent(NamedTuple):
    identity: Any


_STORAGE_DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
    "ComplexDoubleStorage": torch.complex128,
    "ComplexFloatStorage": torch.complex64,
}

_MARK = object()
# Opcodes that only push data or arrange the stack, with the size of their fixed argument.
_FIXED_ARGUMENT = {
    0x80: 1,  # PROTO
    0x95: 8,  # FRAME
    0x4B: 1,  # BININT1
    0x4D: 2,  # BININT2
    0x4A: 4,  # BININT
    0x47: 8,  # BINFLOAT
    0x71: 1,  # BINPUT
    0x72: 4,  # LONG_BINPUT
    0x68: 1,  # BINGET
    0x6A: 4,  # LONG_BINGET
    0x4E: 0,  # NONE
    0x88: 0,  # NEWTRUE
    0x89: 0,  # NEWFALSE
    0x28: 0,  # MARK
    0x29: 0,  # EMPTY_TUPLE
    0x5D: 0,  # EMPTY_LIST
    0x7D: 0,  # EMPTY_DICT
    0x74: 0,  # TUPLE
    0x85: 0,  # TUPLE1
    0x86: 0,  # TUPLE2
    0x87: 0,  # TUPLE3
    0x61: 0,  # APPEND
    0x65: 0,  # APPENDS
    0x73: 0,  # SETITEM
    0x75: 0,  # SETITEMS
    0x94: 0,  # MEMOIZE
    0x2E: 0,  # STOP
}
# Opcodes whose argument starts with its own length: the size of that length.
_COUNTED_ARGUMENT = {
    0x58: 4,  # BINUNICODE
    0x8C: 1,  # SHORT_BINUNICODE
    0x8A: 1,  # LONG1
    0x55: 1,  # SHORT_BINSTRING
    0x43: 1,  # SHORT_BINBYTES
    0x42: 4,  # BINBYTES
}


def is_plain_data(pickle: bytes) -> bool:
    """Whether a pickle holds nothing but numbers, strings, lists, tuples and dicts.

    Such a pickle names no class and calls nothing, so any unpickler may read it. ``False`` only means "not proven".
    """
    position = 0
    size = len(pickle)
    while position < size:
        opcode = pickle[position]
        position += 1
        if opcode == 0x2E:
            return position == size
        fixed = _FIXED_ARGUMENT.get(opcode)
        if fixed is not None:
            if opcode == 0x72 and int.from_bytes(pickle[position : position + 4], "little") > size:
                return False  # a memo index larger than the pickle only serves to exhaust memory
            position += fixed
            continue
        counted = _COUNTED_ARGUMENT.get(opcode)
        if counted is None:
            return False
        position += counted + int.from_bytes(pickle[position : position + counted], "little")
    return False


def tensor_recipe(pickle: bytes) -> TensorRecipe | None:
    """Read the recipe of a plain, strided CPU tensor out of its pickle.

    Args:
        pickle: the ``data.pkl`` record of a ``torch.save`` archive.

    Returns:
        The recipe, or ``None`` when the pickle holds anything else, or is damaged.
    """
    try:
        return _recipe(_run(pickle))
    except (AttributeError, IndexError, KeyError, TypeError, ValueError, OverflowError, struct.error):
        return None


def _run(pickle: bytes) -> Any:
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    position = 0
    while True:
        opcode = pickle[position]
        position += 1
        if opcode == 0x71:  # BINPUT
            memo[pickle[position]] = stack[-1]
            position += 1
        elif opcode == 0x72:  # LONG_BINPUT
            memo[int.from_bytes(pickle[position : position + 4], "little")] = stack[-1]
            position += 4
        elif opcode == 0x94:  # MEMOIZE
            memo[len(memo)] = stack[-1]
        elif opcode == 0x68:  # BINGET
            stack.append(memo[pickle[position]])
            position += 1
        elif opcode == 0x6A:  # LONG_BINGET
            stack.append(memo[int.from_bytes(pickle[position : position + 4], "little")])
            position += 4
        elif opcode == 0x4B:  # BININT1
            stack.append(pickle[position])
            position += 1
        elif opcode == 0x4D:  # BININT2
            stack.append(int.from_bytes(pickle[position : position + 2], "little"))
            position += 2
        elif opcode == 0x4A:  # BININT
            stack.append(struct.unpack_from("<i", pickle, position)[0])
            position += 4
        elif opcode == 0x8A:  # LONG1
            count = pickle[position]
            stack.append(int.from_bytes(pickle[position + 1 : position + 1 + count], "little", signed=True))
            position += 1 + count
        elif opcode in (0x58, 0x8C):  # BINUNICODE, SHORT_BINUNICODE
            width = 4 if opcode == 0x58 else 1
            count = int.from_bytes(pickle[position : position + width], "little")
            position += width
            stack.append(pickle[position : position + count].decode())
            position += count
        elif opcode == 0x63:  # GLOBAL
            middle = pickle.index(b"\n", position)
            end = pickle.index(b"\n", middle + 1)
            stack.append(_Global(pickle[position:middle].decode(), pickle[middle + 1 : end].decode()))
            position = end + 1
        elif opcode == 0x93:  # STACK_GLOBAL
            name = stack.pop()
            stack.append(_Global(stack.pop(), name))
        elif opcode == 0x28:  # MARK
            stack.append(_MARK)
        elif opcode == 0x74:  # TUPLE
            start = len(stack) - 1 - stack[::-1].index(_MARK)
            stack[start:] = [tuple(stack[start + 1 :])]
        elif opcode == 0x29:  # EMPTY_TUPLE
            stack.append(())
        elif 0x85 <= opcode <= 0x87:  # TUPLE1, TUPLE2, TUPLE3
            count = opcode - 0x84
            stack[-count:] = [tuple(stack[-count:])]
        elif opcode == 0x51:  # BINPERSID
            stack.append(_Persistent(stack.pop()))
        elif opcode == 0x52:  # REDUCE
            arguments = stack.pop()
            stack.append(_Call(stack.pop(), arguments))
        elif opcode in (0x88, 0x89):  # NEWTRUE, NEWFALSE
            stack.append(opcode == 0x88)
        elif opcode == 0x4E:  # NONE
            stack.append(None)
        elif opcode == 0x7D:  # EMPTY_DICT
            stack.append({})
        elif opcode in (0x80, 0x95):  # PROTO, FRAME
            position += _FIXED_ARGUMENT[opcode]
        elif opcode == 0x2E:  # STOP
            (result,) = stack
            return result
        else:
            raise ValueError(f"opcode {opcode:#x}")


def _recipe(value: Any) -> TensorRecipe | None:
    if not isinstance(value, _Call) or not isinstance(value.function, _Global):
        return None
    module, name = value.function
    arguments = value.arguments
    if module != "torch._utils" or name not in ("_rebuild_tensor_v2", "_rebuild_tensor_v3"):
        return None
    persistent, storage_offset, shape, strides, _requires_grad, hooks = arguments[:6]
    rest = list(arguments[6:])
    kind, storage, key, location, count = persistent.identity
    if kind != "storage" or location == "meta" or hooks != _Call(_Global("collections", "OrderedDict"), ()):
        return None
    dtype: Any
    if name == "_rebuild_tensor_v3":
        dtype = getattr(torch, rest.pop(0).name)
        storage_bytes = count
        known = storage == _Global("torch.storage", "UntypedStorage") and isinstance(dtype, torch.dtype)
    else:
        dtype = _STORAGE_DTYPES.get(storage.name)
        storage_bytes = count * dtype.itemsize if dtype is not None else 0
        known = dtype is not None and storage.module == "torch"
    # What follows is a dict of marks such as "conj" or of a backend: not a plain tensor.
    if not known or any(rest):
        return None
    numbers = (storage_offset, storage_bytes, *shape, *strides)
    if any(type(number) is not int or number < 0 for number in numbers) or len(shape) != len(strides):
        return None
    return TensorRecipe(key, storage_bytes, dtype, shape, strides, storage_offset)
