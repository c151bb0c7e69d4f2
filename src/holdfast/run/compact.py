"""Compaction: a sealed part of the log becomes a Parquet file that holds every line and the numbers as columns.

The lines are kept byte for byte, so the chain can still be checked. A part is compacted by its own rank, in the
background; a kill leaves the original, both, or the compacted file, and all three read the same.
"""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

from holdfast.durable import sync
from holdfast.errors import HoldfastError
from holdfast.run.layout import LogFile, RunFolder
from holdfast.run.run_log import is_step, parsed, read_lines
from holdfast.run_files import OTHER, VALUE

__all__ = ["Compaction", "columns_of", "compact"]

# A smaller file is read faster as it is, and ``tail`` and ``jq`` keep working on it.
MIN_BYTES = 1 << 20


def columns_of(file: LogFile, lines: list[bytes]) -> dict[str, Any]:
    """Return the columns of a log file's Parquet form, made from its lines."""
    import pyarrow as arrow

    records = [parsed(file, number, line) for number, line in enumerate(lines, start=1)]
    columns: dict[str, Any] = {"line": arrow.array([line[:-1].decode() for line in lines], arrow.string())}
    columns["event"] = arrow.array([record.get("event") for record in records], arrow.string())
    others = [None if is_step(record) else line[:-1].decode() for line, record in zip(lines, records, strict=True)]
    columns[OTHER] = arrow.array(others, arrow.string())
    names = dict.fromkeys(name for record in records for name, value in record.items() if _is_number(value))
    for name in names:
        values = [record.get(name) for record in records]
        columns[VALUE + name] = arrow.array(
            [float(value) if value is not None and _is_number(value) else None for value in values], arrow.float64()
        )
    return columns


def compact(file: LogFile) -> Path:
    """Replace a sealed log file by its Parquet form; return the new file."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    lines = read_lines(file)
    columns = columns_of(file, lines)
    target = file.path.with_suffix(".parquet")
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    numbers = [name for name in columns if name.startswith(VALUE)]
    # BYTE_STREAM_SPLIT and lz4 take a quarter of the reading time of dictionaries and zstd, in less space.
    parquet.write_table(
        arrow.table(columns),
        temporary,
        compression={name: "lz4" if name in numbers else "zstd" for name in columns},
        use_dictionary=["event"],
        column_encoding=dict.fromkeys(numbers, "BYTE_STREAM_SPLIT"),
    )
    made = LogFile(file.rank, file.attempt, file.part, temporary.with_suffix(".parquet"))
    os.replace(temporary, made.path)
    if read_lines(made) != lines:
        made.path.unlink()
        raise OSError("the compacted log does not match its lines")
    sync(made.path)
    os.replace(made.path, target)
    sync(target.parent)
    file.path.unlink()
    return target


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


class Compaction:
    """A background thread that compacts one rank's sealed parts.

    Args:
        folder: the run's folder.
        rank: the rank whose parts are compacted.
        min_bytes: smaller files stay as they are.
    """

    def __init__(self, folder: RunFolder, *, rank: int, min_bytes: int = MIN_BYTES) -> None:
        self._folder = folder
        self._rank = rank
        self._min_bytes = min_bytes
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()

    def start(self, *, before: LogFile) -> None:
        """Compact parts sealed before this file was begun; do nothing while an earlier compaction is running."""
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._run, args=(before,), name="holdfast-compaction", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait for the file being compacted; the others are left for the next start."""
        self._stopping.set()
        # The garbage collector may release a run on any thread, including this one.
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self, before: LogFile) -> None:
        sealed = [file for file in self._folder.log_files(rank=self._rank) if file < before and not file.is_compacted]
        for left in self._folder.logs.glob(f".attempt-*.rank-{self._rank:05d}.*"):
            left.unlink(missing_ok=True)  # left by a process that was killed while compacting
        for file in sealed:
            if self._stopping.is_set():
                return
            # After a full disk or a damaged line the original stays as it is; the next start tries again.
            with contextlib.suppress(OSError, HoldfastError, ValueError):
                if file.path.stat().st_size >= self._min_bytes:
                    compact(file)
