"""A path that is still being written: its current runs, re-read as little as its format allows.

A log of lines (text, JSON lines, CSV) is never read twice: each look reads the bytes written since the last one, with
the same reader as finished logs. A file that must be read as a whole (``trainer_state.json``, ``.wandb``, event files)
and a folder are re-read when they change, and a note says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from holdfast.debug.debugger import MLSystemsDebugger
from holdfast.debug.ingestion.detection import rank_formats
from holdfast.debug.ingestion.line_reading import LineReading
from holdfast.debug.ingestion.log_file import LogFile
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.ingestion.tail import Tail
from holdfast.errors import UnreadableLogError

__all__ = ["GrowingLog"]

# The first lines of a log may look like another format; up to this size its format is detected again whenever it has
# doubled.
_SETTLED = 1 << 20
_MAX_FILES = 5000

_State = tuple[tuple[str, int, int, int], ...]


class GrowingLog:
    """A file or folder that is read repeatedly while it grows.

    Args:
        debugger: reads what cannot be followed line by line.
        path: the file or folder; it need not exist yet.
        window: number of rows kept of a file that is followed line by line.
    """

    def __init__(self, debugger: MLSystemsDebugger, path: Path, window: int) -> None:
        self.path = path
        self.tail = Tail(path)
        self.thinned = False
        self.notes: list[str] = []
        self._debugger = debugger
        self._window = window
        self._state: _State | None = None
        self._reading: LineReading | None = None
        self._format = ""
        self._recognised_at = 0

    def look(self) -> list[RunLog] | None:
        """Return every run at the path, or None if nothing has changed since the last look.

        Raises:
            UnreadableLogError: there is no log yet.
        """
        state = tuple(self._stat())
        if state == self._state:
            return None
        self._state = state
        if self.path.is_dir() or self._debugger.has_own_ingestor(self.path):
            return self._whole("a folder" if self.path.is_dir() else "a log in a plug-in's format")
        if self._reading is not None and self.tail.was_replaced():
            self.notes.append(f"{self.path}: the file was replaced or truncated and is read from its beginning")
            self._reading, self._recognised_at = None, 0
        size = state[0][1] if state else 0
        if self._reading is None or (self._recognised_at < _SETTLED and size >= 2 * self._recognised_at):
            whole = self._recognise(size)
            if whole is not None:
                return self._whole(f"the format {whole}")
        return self._new_lines()

    def _stat(self) -> Iterator[tuple[str, int, int, int]]:
        files = sorted(self.path.rglob("*"))[:_MAX_FILES] if self.path.is_dir() else [self.path]
        for file in files:
            try:
                status = file.stat()
            except OSError:
                continue
            yield str(file), status.st_size, status.st_mtime_ns, status.st_ino

    def _recognise(self, size: int) -> str | None:
        """Choose the format; return the name of one that can only be read as a whole, or None."""
        file = LogFile(self.path)
        ranked = rank_formats(file) if size else []
        if not ranked:
            raise UnreadableLogError("nothing in the log is readable yet", file=str(self.path))
        form = ranked[0][1]
        if form.name == self._format and self._reading is not None:
            self._recognised_at = size
            return None
        reading = None if file.compressed or file.encoding != "utf-8" else form.follow(file)
        if reading is None:
            return form.name
        self._reading, self._format, self._recognised_at = reading, form.name, size
        self.thinned = False
        self.tail.rewind()
        return None

    def _new_lines(self) -> list[RunLog]:
        reading = self._reading
        assert reading is not None
        for count, line in enumerate(self.tail.lines(), 1):
            reading.feed(line)
            if count % (4 * self._window) == 0:  # A long log that is opened half-way: thinning has its cost too.
                reading.thin(2 * self._window)
        self.thinned = reading.thin(2 * self._window) or self.thinned
        return reading.so_far().runs()

    def _whole(self, what: str) -> list[RunLog]:
        note = f"{self.path}: {what} is re-read in full on every change"
        if note not in self.notes:
            self.notes.append(note)
        return self._debugger.read(self.path)
