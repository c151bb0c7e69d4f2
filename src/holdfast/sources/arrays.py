"""Samples in memory or in memory-mapped files: one array per column; row ``i`` is sample ``i``.

A read is one gather per column. Arrays are referenced, never copied; a memory map is pickled as its file name, so a
terabyte on disk takes a few hundred bytes.
"""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import ConfigError, SourceFormatError
from holdfast.sources.base import Column, Columns, Indices, Source, check_indices
from holdfast.sources.ragged import Ragged

# Arrays, memory maps, Ragged, torch tensors, or anything that np.asarray accepts.
ArrayLike: TypeAlias = Any


class ArraySource(Source):
    """Samples in arrays.

    Args:
        columns: a mapping from column name to array, or one array of features.
        labels: one label per sample, if ``columns`` is one array; the columns are then named ``features`` and
            ``labels``.

    NumPy arrays, ``numpy.memmap``, CPU torch tensors and ``Ragged`` columns are used in place, without a copy.
    """

    def __init__(self, columns: Mapping[str, ArrayLike] | ArrayLike, labels: ArrayLike | None = None) -> None:
        if not isinstance(columns, Mapping):
            columns = {"features": columns} if labels is None else {"features": columns, "labels": labels}
        elif labels is not None:
            raise ConfigError("labels go with one array of features; with named columns, name the labels too")
        if not columns:
            raise ConfigError("an ArraySource needs at least one column")
        self._given: dict[str, Column] = {name: _as_column(name, value) for name, value in columns.items()}
        lengths = {name: len(column) for name, column in self._given.items()}
        if len(set(lengths.values())) > 1:
            raise ConfigError("all columns must have the same number of rows", lengths=lengths)
        self._length = next(iter(lengths.values()))
        self._plain = _plain_columns(self._given)

    def __len__(self) -> int:
        return self._length

    def _shown(self) -> str:
        return f"{self._length:,} samples"

    def read(self, indices: Indices) -> Columns:
        """Gather the rows at ``indices`` from every column."""
        rows = check_indices(indices, self._length, source="ArraySource")
        columns: Columns = {}
        size = 0
        for name, column in self._plain.items():
            gathered = column.take(rows) if isinstance(column, Ragged) else gather(column, rows)
            size += gathered.nbytes
            columns[name] = gathered
        self.counters.add(local=len(rows), bytes_read=size)
        return columns

    def columns_in_memory(self) -> Mapping[str, NDArray[Any]] | None:
        """Return the arrays.

        None if one is ragged or must be converted, or if a subclass overrides reading.
        """
        arrays = {name: column for name, column in self._plain.items() if not isinstance(column, Ragged)}
        plain = all(
            array.flags.c_contiguous and array.flags.aligned and array.dtype.isnative for array in arrays.values()
        )
        as_is = type(self).read is ArraySource.read
        return arrays if as_is and plain and len(arrays) == len(self._plain) else None

    def __getstate__(self) -> dict[str, Any]:
        sent: dict[str, Any] = {}
        for name, column in self._given.items():
            mapped = isinstance(column, np.memmap) and column.dtype.hasobject is False
            sent[name] = _MappedArray.of(column) if mapped and isinstance(column, np.memmap) else column
        # Includes what a subclass has; counts belong to a process.
        left_out = ("_given", "_plain", "_counters")
        return {**{key: value for key, value in self.__dict__.items() if key not in left_out}, "_given": sent}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._given = {
            name: column.open() if isinstance(column, _MappedArray) else column
            for name, column in state["_given"].items()
        }
        self._plain = _plain_columns(self._given)


def gather(array: NDArray[Any], rows: Indices) -> NDArray[Any]:
    """Copy rows into a new, writable, C-contiguous array of native byte order; ``rows`` must be within bounds."""
    # ndarray.take is the fastest gather NumPy has, but first copies the *whole* array unless it is contiguous and
    # aligned; indexing copies only the rows.
    taken: NDArray[Any]
    if array.flags.c_contiguous and array.flags.aligned:
        taken = array.take(rows, 0, mode="clip")
    else:
        taken = np.ascontiguousarray(array[rows])
    return taken if taken.dtype.isnative else taken.astype(taken.dtype.newbyteorder("="))


def _as_column(name: str, value: ArrayLike) -> Column:
    if isinstance(value, Ragged):
        return value
    if type(value).__module__.partition(".")[0] == "torch":
        value = _tensor_as_array(name, value)
    array = value if isinstance(value, np.memmap) else np.asarray(value)
    if array.ndim == 0:
        raise ConfigError("a column must have one row per sample", column=name, shape=array.shape)
    return array


def _tensor_as_array(name: str, tensor: Any) -> NDArray[Any]:
    try:
        array: NDArray[Any] = tensor.detach().numpy()
    except (TypeError, RuntimeError) as error:
        raise SourceFormatError(
            "a tensor cannot be read as a NumPy array",
            column=name,
            dtype=str(tensor.dtype),
            device=str(tensor.device),
            hint="pass a CPU tensor of a dtype NumPy has; for bfloat16 pass tensor.view(torch.int16) and view it back",
        ) from error
    return array


def _plain_columns(columns: dict[str, Column]) -> dict[str, Column]:
    # A gather from a numpy.memmap pays for the subclass on every call; a plain view of the same memory does not.
    return {name: column if isinstance(column, Ragged) else column.view(np.ndarray) for name, column in columns.items()}


@dataclass(frozen=True, slots=True)
class _MappedArray:
    """A memory-mapped array, identified by the location of its bytes, whatever slice of the map it is."""

    path: str
    position: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, array: np.memmap[Any, Any]) -> Any:
        """Return the location of ``array``, or ``array`` itself if it maps no named file or has negative strides."""
        mapping = getattr(array, "_mmap", None)
        if mapping is None or array.filename is None or min(array.strides, default=0) < 0 or array.size == 0:
            return np.array(array)
        first = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
        position = first + array.ctypes.data - np.frombuffer(mapping, dtype=np.uint8).ctypes.data
        return cls(str(array.filename), position, array.dtype, array.shape, array.strides)

    def open(self) -> np.memmap[Any, Any]:
        first = self.position - self.position % mmap.ALLOCATIONGRANULARITY
        span = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True)) + self.dtype.itemsize
        whole = np.memmap(self.path, dtype=np.uint8, mode="r", offset=first, shape=(self.position - first + span,))
        view: np.memmap[Any, Any] = np.ndarray.__new__(
            np.memmap, self.shape, self.dtype, whole, self.position - first, self.strides
        )
        view.__array_finalize__(whole)
        return view
