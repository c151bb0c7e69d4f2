"""From columns, or from single samples, to a batch: a dict of tensors.

Numbers become tensors, text becomes a list of strings, and rows of different lengths a list of tensors (views of one
buffer): nothing is padded unless a collate function pads it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.errors import StreamError
from holdfast.order.numbers import Int64
from holdfast.sources import Columns, Ragged

__all__ = [
    "becomes_tensor",
    "map_tensors",
    "mask_labels",
    "mask_sample",
    "merge_columns",
    "stack_samples",
    "to_tensors",
]

_NUMERIC = "biufc"
# The columns whose whole numbers are training targets, and the target that torch's cross entropy ignores by default.
LABELS = ("labels", "label")
IGNORED = -100


def to_tensors(columns: Columns) -> dict[str, Any]:
    """Turn columns into tensors that share their memory; text and objects become lists, ragged columns stay ragged."""
    return {name: _column_to_tensor(column) for name, column in columns.items()}


def _column_to_tensor(column: Any) -> Any:
    if isinstance(column, Ragged):
        if column.encoding is not None:
            return column.to_strings()
        if column.values.dtype.kind in _NUMERIC:
            return torch.from_numpy(column.values), column.offsets
        return [column[i] for i in range(len(column))]
    if becomes_tensor(column):
        return torch.from_numpy(column)
    return column.tolist()


def becomes_tensor(column: NDArray[Any]) -> bool:
    """Return whether a column of fixed shape holds numbers, and so becomes a tensor."""
    return column.dtype.kind in _NUMERIC


def map_tensors(value: Any, apply: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return a batch, or any value in one, with its tensors replaced."""
    if isinstance(value, torch.Tensor):
        return apply(value)
    if type(value) is dict:
        return {name: map_tensors(entry, apply) for name, entry in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map_tensors(entry, apply) for entry in value)
    return value


def stack_samples(samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Collate single samples: equal shapes are stacked, unequal ones become a list of tensors, text a list."""
    if not samples:
        return {}
    batch: dict[str, Any] = {}
    for name in samples[0]:
        if name == "metrics":
            batch[name] = [metric for sample in samples for metric in sample.get(name, ())]
            continue
        try:
            values = [sample[name] for sample in samples]
        except KeyError:
            raise StreamError(
                "the samples of a batch do not all have the same fields",
                field=name,
                hint="make the transforms agree, or pass collate=",
            ) from None
        batch[name] = _stack(values)
    return batch


def _stack(values: list[Any]) -> Any:
    first = values[0]
    if isinstance(first, torch.Tensor):
        if all(value.shape == first.shape for value in values):
            return torch.stack(values)
        return values
    if isinstance(first, (str, bytes)) or first is None:
        return values
    arrays = [np.asarray(value) for value in values]
    if arrays[0].dtype.kind not in _NUMERIC:
        return values
    if all(array.shape == arrays[0].shape for array in arrays):
        return torch.from_numpy(np.stack(arrays))
    return [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]


def mask_labels(columns: Columns, masked: NDArray[np.bool_]) -> Columns:
    """Return the columns with the labels of masked samples set to -100; other columns are unchanged."""
    changed = dict(columns)
    for name in LABELS:
        column = columns.get(name)
        if isinstance(column, Ragged) and column.encoding is None:
            values = _ignored_where(column.values, np.repeat(masked, np.diff(column.offsets)))
            changed[name] = Ragged(values, column.offsets)
        elif isinstance(column, np.ndarray):
            changed[name] = _ignored_where(column, masked)
    return changed


def _ignored_where(values: NDArray[Any], masked: Any) -> NDArray[Any]:
    """Return whole numbers with some of them set to -100; other values as they are."""
    if values.dtype.kind not in "iu":
        return values
    # While a mask applies, the dtype is the same in every batch, whether or not any of its samples is masked.
    changed = values.astype(np.int64 if values.dtype.kind == "u" else values.dtype)
    changed[masked] = IGNORED
    return changed


def mask_sample(sample: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return one sample with its labels set to -100."""
    if sample is None:
        return None
    return {name: _ignored(value) if name in LABELS else value for name, value in sample.items()}


def _ignored(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value if value.is_floating_point() or value.dtype == torch.bool else torch.full_like(value, IGNORED)
    if isinstance(value, (list, tuple)):
        return type(value)(_ignored(entry) for entry in value)
    array = np.asarray(value)
    if array.dtype.kind not in "iu":
        return value
    ignored = _ignored_where(array, ...)
    return ignored if isinstance(value, np.ndarray) else ignored.item()


def merge_columns(parts: Sequence[tuple[str, Int64, Columns]], count: int) -> Columns:
    """Merge the columns of several sources, each row in its place.

    Args:
        parts: for each source its name, the rows it fills, and its columns.
        count: the total number of rows.
    """
    if len(parts) == 1:
        return parts[0][2]
    first_name, _, first = parts[0]
    for name, _, columns in parts[1:]:
        if columns.keys() != first.keys():
            raise StreamError(
                "the sources of a mixture have different columns",
                sources=[first_name, name],
                columns=[sorted(first), sorted(columns)],
                hint="select the same columns, or use a transform that makes them agree",
            )
    return {column: _merge_column(column, parts, count) for column in first}


def _merge_column(column: str, parts: Sequence[tuple[str, Int64, Columns]], count: int) -> Any:
    pieces = [columns[column] for _, _, columns in parts]
    if any(isinstance(piece, Ragged) for piece in pieces):
        if not all(isinstance(piece, Ragged) for piece in pieces):
            raise StreamError("a column has rows of fixed length in one source and not in another", column=column)
        order = np.empty(count, dtype=np.int64)
        order[np.concatenate([rows for _, rows, _ in parts])] = np.arange(count)
        return Ragged.concat([piece for piece in pieces if isinstance(piece, Ragged)]).take(order)
    arrays = [piece for piece in pieces if isinstance(piece, np.ndarray)]
    for array, (name, _, _) in zip(arrays, parts, strict=True):
        if array.shape[1:] != arrays[0].shape[1:] or array.dtype != arrays[0].dtype:
            raise StreamError(
                "a column differs in shape or dtype between the sources of a mixture",
                column=column,
                sources=[parts[0][0], name],
                shapes=[arrays[0].shape[1:], array.shape[1:]],
                dtypes=[str(arrays[0].dtype), str(array.dtype)],
            )
    out = np.empty((count, *arrays[0].shape[1:]), dtype=arrays[0].dtype)
    for (_, rows, _), array in zip(parts, arrays, strict=True):
        out[rows] = array
    return out
