"""The description of a saved tensor, read from its pickle without running it.

``torch.save`` writes a tensor as a call of ``_rebuild_tensor_v2`` (or ``_v3``) with a storage key, an offset, a shape
and strides. Anything else is not a plain tensor, and is left to ``holdfast.checkpoint.safe_objects``.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

from holdfast.checkpoint.inert import Inert, Name, Persistent
from holdfast.checkpoint.slices import is_dense

__all__ = ["TensorRecipe", "tensor_recipe"]


class TensorRecipe(NamedTuple):
    """How to view a stored payload as a tensor."""

    storage_key: str
    storage_bytes: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    storage_offset: int
    fills_storage: bool  # the elements fill the storage exactly, contiguous in some order of the dimensions


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
_VERSION_2 = Name("torch._utils", "_rebuild_tensor_v2")
_VERSION_3 = Name("torch._utils", "_rebuild_tensor_v3")
_UNTYPED = Name("torch.storage", "UntypedStorage")
_NO_HOOKS = Name("collections", "OrderedDict")


def tensor_recipe(tree: Any) -> TensorRecipe | None:
    """Read the recipe of a plain, strided CPU tensor from its pickle.

    Args:
        tree: the ``data.pkl`` record, as ``holdfast.checkpoint.pickle_machine.read_pickle`` returns it.

    Returns:
        The recipe, or ``None`` when the pickle holds anything else.
    """
    try:
        return _recipe(tree)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return None


def _recipe(tree: Any) -> TensorRecipe | None:
    if type(tree) is not Inert or tree.function not in (_VERSION_2, _VERSION_3) or tree.made or _altered(tree):
        return None
    persistent, storage_offset, shape, strides, requires_grad, hooks, *rest = tree.arguments
    if type(persistent) is not Persistent or type(hooks) is not Inert or hooks.function != _NO_HOOKS:
        return None
    kind, storage, key, location, count = persistent.identity
    if kind != "storage" or location == "meta" or hooks.arguments or _altered(hooks):
        return None
    if type(location) is not str or type(count) is not int or type(requires_grad) is not bool:
        return None
    dtype: Any
    if tree.function == _VERSION_3:
        name = rest.pop(0)
        dtype = getattr(torch, name.name) if name.module == "torch" else None
        known = storage == _UNTYPED
        storage_bytes = count
    else:
        dtype = _STORAGE_DTYPES.get(storage.name)
        known = storage.module == "torch"
        storage_bytes = count * dtype.itemsize if dtype is not None else 0
    # The rest is a dict of marks such as "conj", or of a backend: not a plain tensor.
    if not known or not isinstance(dtype, torch.dtype) or any(rest) or type(key) is not str:
        return None
    numbers = (storage_offset, storage_bytes, *shape, *strides)
    if any(type(number) is not int or not 0 <= number < 1 << 62 for number in numbers) or len(shape) != len(strides):
        return None
    fills = not storage_offset and math.prod(shape) * dtype.itemsize == storage_bytes and is_dense(shape, strides)
    return TensorRecipe(key, storage_bytes, dtype, shape, strides, storage_offset, fills)


def _altered(value: Inert) -> bool:
    return value.state is not None or bool(value.items) or bool(value.values)
