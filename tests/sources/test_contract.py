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
    assert source.counters.counts()[:3] == (0, 0, 0)
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


class FailsOnceClosed(ClosesForGood):
    def read(self, indices: NDArray[np.int64]) -> Columns:
        if self.closed:
            raise ValueError("I/O operation on closed file")
        return super().read(indices)


class FailsOnNothing(Squares):
    def read(self, indices: NDArray[np.int64]) -> Columns:
        lowest = indices.min()  # which an empty array does not have
        return {"x": check_indices(indices, len(self), source="fails") + 0 * lowest}


class Changing(Squares):
    """Gives noise that no two reads share."""

    def read(self, indices: NDArray[np.int64]) -> Columns:
        rows = check_indices(indices, len(self), source="changing")
        return {"x": rows + np.random.default_rng().integers(10**9)}


class WrongAloneInTheMiddle(Squares):
    def read(self, indices: NDArray[np.int64]) -> Columns:
        rows = check_indices(indices, len(self), source="wrong")
        return {"x": rows + 1 if len(rows) == 1 and 100 < int(rows[0]) < 900 else rows.copy()}


class WrongAtTheEndOfAShard(Squares):
    """Loses its place where one shard ends, when a read goes backwards over it."""

    def shards(self) -> list[int]:
        return [333, 667]

    def read(self, indices: NDArray[np.int64]) -> Columns:
        found = check_indices(indices, len(self), source="wrong").copy()
        found[np.flatnonzero((indices[:-1] == 333) & (indices[1:] == 332))] -= 1
        return {"x": found}


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
        (ClosesForGood(), "open again when read: read\\(\\) raised AssertionError\\('read after close'"),
        (FailsOnceClosed(), "open again when read: read\\(\\) raised ValueError"),
        (FailsOnNothing(), "reading no samples must give every column, empty: read\\(\\) raised"),
        (Changing(), "reading the same indices again"),
        (WrongAloneInTheMiddle(), "neighbours"),
        (WrongAtTheEndOfAShard(), "order of the indices"),
        (Lists(), "not an array or Ragged"),
        (Short(), "rows for"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Source) else "",
)
def test_a_source_that_breaks_a_rule_fails_by_the_name_of_that_rule(source: Source, rule: str) -> None:
    with pytest.raises(AssertionError, match=rule):
        check_source(source)


class Shifted(Squares):
    """Leaves out a sample, and gives another twice, always the same: no rule is broken."""

    def read(self, indices: NDArray[np.int64]) -> Columns:
        rows = check_indices(indices, len(self), source="shifted")
        return super().read(np.where(rows == 500, 501, rows))


def test_a_sample_left_out_or_given_twice_is_named_where_the_right_ones_are_known() -> None:
    check_source(Shifted())
    with pytest.raises(AssertionError, match=r"sample 500 is not the expected one \(column 'x' differs\)"):
        check_source(Shifted(), same_as=Squares())
    check_source(Squares(), same_as=Squares())


def test_a_source_of_another_length_or_with_other_columns_than_the_right_one_is_found() -> None:
    class Shorter(Squares):
        def __len__(self) -> int:
            return 999

    class Narrower(Squares):
        def read(self, indices: NDArray[np.int64]) -> Columns:
            return {"x": super().read(indices)["x"]}

    with pytest.raises(AssertionError, match="has 1000 samples, but should have 999"):
        check_source(Squares(), same_as=Shorter())
    with pytest.raises(AssertionError, match=r"columns are \['x', 'square'\], but should be \['x'\]"):
        check_source(Squares(), same_as=Narrower())
