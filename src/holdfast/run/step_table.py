"""The lines of many steps, parsed together by Arrow: a tenth of what ``parse_record`` costs per line (bench/page.py).

A table is returned only if everything in it is valid. If it is not, or if Arrow could exhaust its stack or the memory,
there is none: the lines are then parsed one by one, which names the faulty line.
"""

from __future__ import annotations

import io
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from holdfast.foreign import MAX_DEPTH
from holdfast.run.buckets import OWN_TIME, TIME_FIELDS
from holdfast.run_files import VALUE, as_numpy
from holdfast.run_records import HEADER, MAX_SECONDS
from holdfast.versioned import MAX_COUNT

__all__ = ["checked_columns", "in_portions", "is_valid_table", "step_table"]

MAX_SHORT_BYTES = 4096
"""Arrow's parser recurses, and a stack overflow kills the process; a line this short is not nested that deeply."""
MAX_CELLS = 1 << 27
"""Maximum number of values in a table: one gigabyte."""
MIN_CELL_BYTES = 8
"""Minimum bytes per field of a line. Every field may have a different name, and every name becomes a column."""
MIN_PORTION, MAX_PORTION = 64, 4096
_TIMES = (*TIME_FIELDS.values(), OWN_TIME, "at")
_NUMBERS = ("loss", "grad_norm", "lr", *_TIMES)
_TEXTS = ("chain", "loss_bits", "grad_norm_bits")


def in_portions(lines: list[bytes]) -> Iterator[list[bytes]]:
    """Yield the lines in portions that make tables of moderate size, whatever is in them."""
    if lines:
        usual_bytes = max(1, sum(map(len, lines)) // len(lines))
        portion = math.isqrt(MAX_CELLS * MIN_CELL_BYTES // usual_bytes)
        portion = min(MAX_PORTION, max(MIN_PORTION, portion))
        for start in range(0, len(lines), portion):
            yield lines[start : start + portion]


def step_table(lines: list[bytes]) -> Any:
    """Return the numbers of step lines as a table; None if they have to be parsed one by one."""
    import pyarrow as arrow
    from pyarrow import json as arrow_json

    joined = b"".join(lines)
    if len(joined) * len(lines) > 2 * MAX_CELLS * MIN_CELL_BYTES:
        return None
    if any(len(line) > MAX_SHORT_BYTES and line.count(b"[") + line.count(b"{") > MAX_DEPTH for line in lines):
        return None
    try:
        found = arrow_json.read_json(io.BytesIO(joined))
        kinds = {column.name: column.type for column in found.schema}
    except (arrow.ArrowException, UnicodeDecodeError):  # not JSON, or a name that is not text
        return None
    if len(found) != len(lines) or not _are_steps(kinds):
        return None
    numeric = [name for name, kind in kinds.items() if arrow.types.is_integer(kind) or arrow.types.is_floating(kind)]
    table = arrow.table({VALUE + name: found[name].cast(arrow.float64()) for name in numeric})
    if any(np.isinf(as_numpy(table[name].drop_null())).any() for name in table.column_names):
        return None  # Arrow reads numbers that are too large as infinite
    return table if is_valid_table(table) else None


def _are_steps(kinds: dict[str, Any]) -> bool:
    """Return whether the columns and their types are those of steps."""
    import pyarrow as arrow

    types = arrow.types
    if "step" not in kinds or not types.is_integer(kinds["step"]) or "event" in kinds or HEADER in kinds:
        return False
    if any(types.is_null(kind) for kind in kinds.values()):
        return False
    numbers = [kinds[name] for name in _NUMBERS if name in kinds]
    texts = [kinds[name] for name in _TEXTS if name in kinds]
    return (
        all(types.is_integer(kind) or types.is_floating(kind) for kind in numbers)
        and all(types.is_string(kind) for kind in texts)
        and ("batches" not in kinds or kinds["batches"] == arrow.list_(arrow.int64()))
        and ("redone" not in kinds or types.is_boolean(kinds["redone"]))
    )


def is_valid_table(table: Any) -> bool:
    """Return whether steps and times are in range in every row of a table."""
    if not len(table):
        return True
    steps = table[VALUE + "step"]
    if steps.null_count or not _all_between(steps, MAX_COUNT) or np.any(as_numpy(steps) % 1):
        return False
    return all(_all_between(table[name].drop_null(), MAX_SECONDS) for name in checked_columns(table)[1:])


def checked_columns(table: Any) -> list[str]:
    """Return the columns of a table that ``is_valid_table`` checks, the steps first."""
    return [VALUE + "step", *(VALUE + name for name in _TIMES if VALUE + name in table.column_names)]


def _all_between(column: Any, high: float) -> bool:
    values = as_numpy(column)
    return bool(np.all((values >= 0) & (values <= high)))
