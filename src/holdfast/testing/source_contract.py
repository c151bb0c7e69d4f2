"""The contract of a source, as checks that anyone can run on their own.

``check_source`` reads from a source in every way the loader does and raises ``AssertionError`` naming the first rule
that does not hold. It reads a few hundred samples at most, so it also suits large and remote sources.
"""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import SourceError
from holdfast.sources.base import Column, Columns, Source
from holdfast.sources.ragged import Ragged

_THREADS = 8
_BOUNDARIES = 8  # shard boundaries to look at: where samples are lost or repeated, if anywhere
_ALONE = 8  # samples read one at a time
_AT_ONCE = 1024  # samples read together when all are compared


def check_source(source: Source, *, samples: int = 32, same_as: Source | None = None) -> None:
    """Check that a source follows the contract of ``holdfast.sources.Source``.

    No rule can tell whether a source leaves out or repeats a sample; to find that out, pass a correct source as
    ``same_as``.

    Args:
        source: the source; it must hold at least one sample.
        samples: number of samples, spread over the source, that each check reads, besides those around some shard ends.
        same_as: a source with the same samples, such as an ``ArraySource`` of the data; all samples are compared.

    Raises:
        AssertionError: a rule does not hold; the message says which, and how to fix it.
    """
    length = len(source)
    _rule(isinstance(length, int) and length > 0, f"len() must be a positive int to be checked, got {length!r}")
    rows = _rows_to_read(source, samples)
    first = _read(source, rows.copy(), "read() must return samples that exist")
    _check_columns(first, len(rows))
    expected = _take(first, np.arange(len(rows)))  # a copy: a source that returns its own memory must not change it
    _same(_read(source, rows.copy(), _AGAIN), expected, _AGAIN)
    _check_freshness(source, rows, expected)
    _check_order_and_repeats(source, rows, expected)
    _check_stability(source, rows, expected)
    _check_bounds(source)
    _check_empty(source, expected)
    _check_threads(source, rows, expected)
    _check_pickling(source, rows, expected)
    _check_fingerprint(source)
    _check_shards(source)
    _check_closing(source, rows, expected)
    if same_as is not None:
        _check_same_samples(source, same_as)


_AGAIN = "reading the same indices again must give the same samples"


def _rows_to_read(source: Source, samples: int) -> NDArray[np.int64]:
    """Return rows spread over the source, and those on both sides of some shard boundaries."""
    length = len(source)
    spread = np.linspace(0, length - 1, min(length, samples)).astype(np.int64)
    shards = source.shards()
    ends = np.cumsum([length] if shards is None else shards)[:_BOUNDARIES]
    beside = np.concatenate([ends - 1, ends])
    return np.unique(np.concatenate([spread, beside[(beside >= 0) & (beside < length)]]).astype(np.int64))


def _check_columns(columns: Columns, count: int) -> None:
    _rule(isinstance(columns, dict) and len(columns) > 0, "read() must return a dict with at least one column")
    for name, column in columns.items():
        _rule(isinstance(name, str), f"column names must be str, got {name!r}")
        _rule(isinstance(column, (np.ndarray, Ragged)), f"column {name!r} is {type(column)}, not an array or Ragged")
        _rule(len(column) == count, f"column {name!r} has {len(column)} rows for {count} indices")
        for array in _arrays(column):
            _rule(type(array) is np.ndarray, f"column {name!r} is a subclass of ndarray: {type(array)}")
            _rule(array.flags.writeable, f"column {name!r} is read-only: copy it before returning it")
            _rule(array.flags.c_contiguous, f"column {name!r} is not C-contiguous: use np.ascontiguousarray")
            _rule(array.dtype.isnative, f"column {name!r} is not in native byte order")


def _check_freshness(source: Source, rows: NDArray[np.int64], expected: Columns) -> None:
    asked = rows.copy()
    first = _read(source, asked, _AGAIN)
    _rule(bool((asked == rows).all()), "read() must not write to the indices it is given")
    for column in first.values():
        for array in _arrays(column):
            if array.dtype.kind in "iufb" and array.size:
                array[...] = ~array if array.dtype.kind in "iub" else array + 1
    rule = "writing to the arrays that read() returned must not change what it returns next"
    _same(_read(source, rows, rule), expected, rule)


def _check_order_and_repeats(source: Source, rows: NDArray[np.int64], expected: Columns) -> None:
    def check(places: NDArray[np.intp], rule: str) -> None:
        _same(_read(source, rows[places], rule), _take(expected, places), rule)

    check(np.arange(len(rows))[::-1], "rows must come in the order of the indices")
    mixed = np.random.default_rng(0).integers(0, len(rows), size=2 * len(rows))
    check(mixed, "an index given twice must be read twice")
    for place in np.unique(np.linspace(0, len(rows) - 1, _ALONE).astype(np.intp)):
        check(np.array([place]), "a sample must not depend on its neighbours")


def _check_stability(source: Source, rows: NDArray[np.int64], expected: Columns) -> None:
    for row in (rows[:1], rows[-1:]):
        found = _read(source, row, "a sample must be readable alone")
        _rule(list(found) == list(expected), "names and order of columns must not depend on the indices")
        for name, column in found.items():
            _rule(
                _form(column) == _form(expected[name]),
                f"column {name!r} is {_form(column)} for some indices and {_form(expected[name])} for others",
            )


def _check_bounds(source: Source) -> None:
    length = len(source)
    for wrong in (length, -1, length + 1000):
        raised = _raised_by(source, wrong)
        _rule(
            isinstance(raised, SourceError),
            f"index {wrong} of {length} must raise SourceError, not {raised!r}: call holdfast.sources.check_indices",
        )
        named = str(wrong) in str(raised) and str(length) in str(raised)
        _rule(named, f"the error for index {wrong} must name it and the length {length}, says: {raised}")


def _raised_by(source: Source, index: int) -> Exception | None:
    try:
        source.read(np.array([0, index], dtype=np.int64))
    except Exception as error:
        return error
    return None


def _check_empty(source: Source, expected: Columns) -> None:
    columns = _read(source, np.empty(0, dtype=np.int64), "reading no samples must give every column, empty")
    _check_columns(columns, 0)
    _rule(list(columns) == list(expected), "reading no samples must still give every column")
    for name, column in columns.items():
        _rule(_form(column) == _form(expected[name]), f"column {name!r} changes its dtype or shape when empty")


def _check_threads(source: Source, rows: NDArray[np.int64], expected: Columns) -> None:
    rule = "read() must be safe to call from several threads"

    def read_shuffled(seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(rows))
        _same(_read(source, rows[order], rule), _take(expected, order), rule)

    with ThreadPoolExecutor(_THREADS) as pool:
        for done in [pool.submit(read_shuffled, seed) for seed in range(4 * _THREADS)]:
            done.result()


def _check_pickling(source: Source, rows: NDArray[np.int64], expected: Columns) -> None:
    try:
        copy = pickle.loads(pickle.dumps(source))  # noqa: S301 - bytes made on this line
    except Exception as error:
        raise AssertionError(f"a source must be picklable, for worker processes: {error!r}") from error
    _rule(len(copy) == len(source), "a pickled copy must have the same length")
    rule = "a pickled copy must read the same"
    _same(_read(copy, rows, rule), expected, rule)
    _rule(copy.fingerprint() == source.fingerprint(), "a pickled copy must have the same fingerprint")
    copy.close()


def _check_fingerprint(source: Source) -> None:
    found = source.fingerprint()
    _rule(isinstance(found, str) and bool(found), f"fingerprint() must be a non-empty str, got {found!r}")
    _rule(source.fingerprint() == found, "fingerprint() must not change from call to call")
    _rule(source.fingerprint(len(source)) == found, "fingerprint(len(source)) must equal fingerprint()")


def _check_shards(source: Source) -> None:
    shards = source.shards()
    if shards is not None:
        _rule(all(size >= 0 for size in shards), "the lengths of shards must not be negative")
        _rule(sum(shards) == len(source), f"the shards hold {sum(shards)} samples, but the source has {len(source)}")


def _check_closing(source: Source, rows: NDArray[np.int64], expected: Columns) -> None:
    source.close()
    source.close()
    rule = "a closed source must open again when read"
    _same(_read(source, rows, rule), expected, rule)


def _check_same_samples(source: Source, same_as: Source) -> None:
    _rule(len(source) == len(same_as), f"the source has {len(source)} samples, but should have {len(same_as)}")
    for start in range(0, len(source), _AT_ONCE):
        rows = np.arange(start, min(start + _AT_ONCE, len(source)), dtype=np.int64)
        found, expected = _read(source, rows, "every sample must be readable"), same_as.read(rows)
        _rule(list(found) == list(expected), f"the columns are {list(found)}, but should be {list(expected)}")
        for place in range(len(rows)):
            one = np.array([place])
            _same(_take(found, one), _take(expected, one), f"sample {start + place} is not the expected one")


def _read(source: Source, rows: NDArray[np.int64], rule: str) -> Columns:
    try:
        return source.read(rows)
    except Exception as error:
        raise AssertionError(f"{rule}: read() raised {error!r}") from error


def _rule(holds: bool, message: str) -> None:
    if not holds:
        raise AssertionError(message)


def _arrays(column: Column) -> list[NDArray[Any]]:
    return [column.values, column.offsets] if isinstance(column, Ragged) else [column]


def _form(column: Column) -> tuple[Any, ...]:
    if isinstance(column, Ragged):
        return "ragged", column.values.dtype, column.values.shape[1:], column.encoding
    return "array", column.dtype, column.shape[1:]


def _take(columns: Columns, places: NDArray[np.intp]) -> Columns:
    return {
        name: column.take(places) if isinstance(column, Ragged) else column[places] for name, column in columns.items()
    }


def _same(found: Columns, expected: Columns, message: str) -> None:
    _rule(list(found) == list(expected), f"{message} (columns {list(found)} against {list(expected)})")
    for name, column in expected.items():
        other = found[name]
        _rule(_form(other) == _form(column), f"{message} (column {name!r}: {_form(other)} against {_form(column)})")
        equal = all(_equal(mine, theirs) for mine, theirs in zip(_arrays(other), _arrays(column), strict=True))
        _rule(equal, f"{message} (column {name!r} differs)")


def _equal(one: NDArray[Any], other: NDArray[Any]) -> bool:
    if one.dtype.hasobject:
        return one.shape == other.shape and repr(one.tolist()) == repr(other.tolist())
    return one.shape == other.shape and one.tobytes() == other.tobytes()
