"""The compacted parts of a run log, unpacked: while one is processed, the next is unpacked on another core.

Unpacking is most of the cost of opening a long run, and runs outside the interpreter (bench/page.py).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.errors import RunLogError
from holdfast.run.layout import LogFile
from holdfast.run.step_table import checked_columns, is_valid_table
from holdfast.run_files import VALUE, CompactedFile, where_true

__all__ = ["Part", "parts_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """The content of a compacted file.

    Attributes:
        rows: the number of lines.
        steps: the numbers of the step lines, as a table.
        others: the rows of the other lines.
        lines: the other lines.
    """

    rows: int
    steps: Any
    others: NDArray[np.int64]
    lines: list[bytes]


def parts_of(files: Sequence[tuple[LogFile, int]]) -> Generator[Part, None, None]:
    """Yield the parts in order; close the iterator if not all are wanted.

    Args:
        files: compacted files, each with the number of leading lines to leave out.

    Raises:
        RunLogError: a file cannot be read; raised when its turn comes.
    """
    if len(files) == 1:  # not worth a thread
        yield _unpack(*files[0])
    if len(files) < 2:
        return
    with ThreadPoolExecutor(1, thread_name_prefix="holdfast-unpack") as pool:
        coming = pool.submit(_unpack, *files[0])
        for following in files[1:]:
            part, coming = coming.result(), pool.submit(_unpack, *following)
            yield part
        yield coming.result()


def _unpack(file: LogFile, skip: int) -> Part:
    import pyarrow.compute as compute

    with CompactedFile(file.path, within=file.folder) as compacted:
        columns = compacted.numbers().slice(skip)
        is_step = compute.and_(compute.is_null(columns["event"]), compute.is_valid(columns[VALUE + "step"]))
        others = np.flatnonzero(~where_true(is_step))
        lines = compacted.lines_where(compute.invert(is_step), skip=skip)
    steps = columns.filter(is_step)
    if not is_valid_table(steps.select(checked_columns(columns))):
        raise RunLogError("invalid number in the compacted run log", file=str(file.path))
    return Part(len(columns), steps, others, lines)
