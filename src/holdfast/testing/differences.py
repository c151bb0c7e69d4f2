"""The first difference of two nested values, to the bit, described for a person.

Values are batches and figures: mappings, sequences and dataclasses of tensors, arrays and plain values. NaN is NaN, and
``-0.0`` is not ``0.0``. A difference is named by its path, down to the element of a tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

__all__ = ["first_difference"]


def first_difference(one: Any, other: Any, path: str = "") -> str | None:
    """Return where two nested values first differ, and how; None if they are the same, bit for bit."""
    where = path or "value"
    if type(one) is not type(other):
        return f"{where} is a {type(one).__name__}, but a {type(other).__name__} after resuming"
    if isinstance(one, torch.Tensor):
        return _tensors(one, other, path)
    if isinstance(one, (np.ndarray, np.generic)):
        return _arrays(np.asarray(one), np.asarray(other), path)
    if isinstance(one, Mapping):
        if one.keys() != other.keys():
            return f"{where} has the fields {_names(one)}, but {_names(other)} after resuming"
        return _first((f"{path}[{key!r}]", one[key], other[key]) for key in one)
    if isinstance(one, Sequence) and not isinstance(one, (str, bytes)):
        if len(one) != len(other):
            return f"{where} has {len(one)} items, but {len(other)} after resuming"
        return _first((f"{path}[{place}]", a, b) for place, (a, b) in enumerate(zip(one, other, strict=True)))
    if dataclasses.is_dataclass(one):
        names = [field.name for field in dataclasses.fields(one) if field.compare]
        return _first((f"{path}.{name}", getattr(one, name), getattr(other, name)) for name in names)
    # repr distinguishes -0.0 from 0.0, and treats NaN as equal to NaN.
    same = repr(one) == repr(other) if isinstance(one, (float, complex)) else bool(one == other)
    return None if same else f"{where} is {one!r}, but {other!r} after resuming"


def _first(pairs: Iterable[tuple[str, Any, Any]]) -> str | None:
    return next(filter(None, (first_difference(one, other, path) for path, one, other in pairs)), None)


def _names(mapping: Mapping[Any, Any]) -> list[Any]:
    return sorted(mapping, key=repr)


def _tensors(one: torch.Tensor, other: torch.Tensor, path: str) -> str | None:
    one, other = one.detach().cpu(), other.detach().cpu()
    if one.is_nested and other.is_nested:
        return first_difference(list(one.unbind()), list(other.unbind()), path)
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        form, after = f"{one.dtype} of shape {tuple(one.shape)}", f"{other.dtype} of shape {tuple(other.shape)}"
        return f"{path or 'value'} is {form}, but {after} after resuming"
    shape = one.shape
    one, other = (part.to_dense().contiguous().reshape(-1) for part in (one, other))
    if not one.numel():
        return None
    different = (one.view(torch.uint8) != other.view(torch.uint8)).reshape(one.numel(), -1).any(dim=1)
    if one.is_floating_point() or one.is_complex():
        wide = torch.complex128 if one.is_complex() else torch.float64
        different &= ~(one.to(wide).isnan() & other.to(wide).isnan())
    return _element(different.numpy(), shape, one, other, path)


def _arrays(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any], path: str) -> str | None:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return (
            f"{path or 'value'} is {one.dtype} of shape {one.shape}, "
            f"but {other.dtype} of shape {other.shape} after resuming"
        )
    if one.dtype.hasobject:
        return first_difference(one.tolist(), other.tolist(), path)
    if not one.size or not one.dtype.itemsize:
        return None
    flat, flat_other = np.ascontiguousarray(one).reshape(-1), np.ascontiguousarray(other).reshape(-1)
    different = (flat.view(np.uint8) != flat_other.view(np.uint8)).reshape(one.size, -1).any(axis=1)
    if one.dtype.kind in "fc":
        different &= ~(np.isnan(flat) & np.isnan(flat_other))
    return _element(different, one.shape, flat, flat_other, path)


def _element(different: np.ndarray[Any, Any], shape: Sequence[int], one: Any, other: Any, path: str) -> str | None:
    """Name the first element that differs in flat values; a large tensor has too many to print."""
    count = int(different.sum())
    if not count:
        return None
    place = int(different.argmax())
    index = [int(i) for i in np.unravel_index(place, shape)]
    where = f"{path}{index}" if index else path or "value"
    more = f" ({count} of {different.size} values differ)" if different.size > 1 else ""
    return f"{where} is {one[place].tolist()!r}, but {other[place].tolist()!r} after resuming{more}"
