"""`check_source` passes a source written with two methods, and names the rule that a wrong one breaks."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.errors import SourceError
from holdfast.sources import Columns, Source, check_indices
from holdfast.testing import check_source


class Squares(Source):
    """A source as a user writes one."""

    def __len__(self) -> int:
        return 1000

    def read(self, indices: NDArray[np.int64]) -> Columns:
        rows = check_indices(indices, len(self), source="squares")
        return {"x": rows.copy(), "square": rows * rows}


def test_a_source_written_with_two_methods_passes() -> None:
    check_source(Squares())


def test_what_two_methods_do_not_say_has_a_default() -> None:
    source = Squares()
    assert source.shards() is None
    assert source.is_remote is False
    assert source.bytes_read == 0
    assert source.counters.counts() == (0, 0, 0)
    assert source.fingerprint() == Squares().fingerprint()
    source.close()


def test_an_empty_source_cannot_be_checked() -> None:
    class Empty(Squares):
        def __len__(self) -> int:
            return 0

    with pytest.raises(AssertionError, match="positive int"):
        check_source(Empty())


class Unbounded(Squares):
    def read(self, indices: NDArray[np.int64]) -> Columns:
        return {"x": np.arange(1000)[indices]}


class BadMessage(Squares):
    def read(self, indices: NDArray[np.int64]) -> Columns:
        if len(indices) and (indices.max() >= 1000 or indices.min() < 0):
            raise SourceError("no")
        return super().read(indices)


class Sorted(Squares):
    def read(self, indices: NDArray[np.int64]) -> Columns:
        return super().read(np.sort(indices))


class Deduplicated(Squares):
    def read(self, indices: NDArray[np.int64]) -> Columns:
        seen = dict.fromkeys(indices.tolist())
        return super().read(np.array([*seen, *range(len(indices) - len(seen))], dtype=np.int64))


class ReadOnly(Squares):
    def read(self, indices: NDArray[np.int64]) -> Columns:
        columns = super().read(indices)
        columns["x"].flags.writeable = False  # type: ignore[union-attr]
        return columns


class Aliased(Squares):
    def __init__(self) -> None:
        self.kept: dict[bytes, Columns] = {}

    def read(self, indices: NDArray[np.int64]) -> Columns:
        return self.kept.setdefault(indices.tobytes(), super().read(indices))


class Strided(Squares):
    def read(self, indices: NDArray[np.int64]) -> Columns:
        return {"x": np.repeat(super().read(indices)["x"], 2)[::2]}  # type: ignore[arg-type]


class NarrowWhenSmall(Squares):
    def read(self, indices: NDArray[np.int64]) -> Columns:
        columns = super().read(indices)
        small = len(indices) == 1 and int(indices[0]) < 100
        return {"x": columns["x"].astype(np.int8)} if small else {"x": columns["x"]}  # type: ignore[union-attr]


class NothingForNothing(Squares):
    def read(self, indices: NDArray[np.int64]) -> Columns:
        return super().read(indices) if len(indices) else {"x": np.empty(0, dtype=np.int64)}


class WritesIndices(Squares):
    def read(self, indices: NDArray[np.int64]) -> Columns:
        columns = super().read(indices)
        indices += 1
        return columns


class OneShared(Squares):
    """Fills one buffer and hands out a copy: right alone, wrong as soon as two threads read."""

    def __init__(self) -> None:
        self.buffer = np.empty(4096, dtype=np.int64)
        self.meet = threading.Barrier(2, timeout=30)

    def read(self, indices: NDArray[np.int64]) -> Columns:
        rows = check_indices(indices, len(self), source="shared")
        self.buffer[: len(rows)] = rows
        if threading.current_thread() is not threading.main_thread():
            self.meet.wait()  # until a second thread has written too
        return {"x": self.buffer[: len(rows)].copy()}


class Unpicklable(Squares):
    def __init__(self) -> None:
        self.lock = threading.Lock()


class Drifting(Squares):
    calls = 0

    def fingerprint(self, length: int | None = None) -> str:
        self.calls += 1
        return str(self.calls)


class WrongShards(Squares):
    def shards(self) -> list[int]:
        return [400, 500]


class ClosesForGood(Squares):
    closed = False

    def close(self) -> None:
        self.closed = True

    def read(self, indices: NDArray[np.int64]) -> Columns:
        if self.closed:
            raise AssertionError("read after close")
        return super().read(indices)


class Lists(Squares):
    def read(self, indices: NDArray[np.int64]) -> Any:
        return {"x": indices.tolist()}


class Short(Squares):
    def read(self, indices: NDArray[np.int64]) -> Columns:
        return {"x": super().read(indices)["x"][:-1]}


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        (Unbounded(), "must raise SourceError"),
        (BadMessage(), "must name it"),
        (Sorted(), "order of the indices"),
        (Deduplicated(), "read twice"),
        (ReadOnly(), "read-only"),
        (Aliased(), "must not change what it returns next"),
        (Strided(), "C-contiguous"),
        (NarrowWhenSmall(), "neighbours|for some indices"),
        (NothingForNothing(), "every column"),
        (WritesIndices(), "must not write to the indices"),
        (OneShared(), "several threads"),
        (Unpicklable(), "picklable"),
        (Drifting(), "fingerprint"),
        (WrongShards(), "shards hold 900"),
        (ClosesForGood(), "read after close"),
        (Lists(), "not an array or Ragged"),
        (Short(), "rows for"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Source) else "",
)
def test_a_source_that_breaks_a_rule_fails_by_the_name_of_that_rule(source: Source, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_source(source)
