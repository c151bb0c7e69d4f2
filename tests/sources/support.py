"""What the tests of sources share."""

from __future__ import annotations

import pickle
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from holdfast.sources import Columns, Ragged, Source

T = TypeVar("T")


def through_pickle(value: T) -> T:
    """The value as another process would get it."""
    copy: T = pickle.loads(pickle.dumps(value))  # noqa: S301 - our own bytes, made on this line
    return copy


def plain(columns: Columns, name: str) -> NDArray[Any]:
    column = columns[name]
    assert isinstance(column, np.ndarray)
    return column


def ragged(columns: Columns, name: str) -> Ragged:
    column = columns[name]
    assert isinstance(column, Ragged)
    return column


def answer_first_values(source: Source, indices: NDArray[np.int64], name: str, answers: Any) -> None:
    """Read in a child process. It stands here because a child that is not forked imports the module it stands in."""
    column = plain(source.read(indices), name)
    answers.put(column.reshape(len(column), -1)[:, 0].tolist())


def rows(*indices: int) -> NDArray[np.int64]:
    return np.array(indices, dtype=np.int64)
