"""What a program prints when it dies: a traceback, an out-of-memory message, an exit code, a kill, a time-out.

Read beside the numbers, from whatever stands between them. An error that training goes on after was caught: only what
nothing follows is a crash.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.debug.ingestion.log_file import LogFile, clean_line
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.types import Coverage

__all__ = ["CRASH_HINT", "CrashScanner", "apart_from_traceback", "read_crash"]

MAX_QUOTED_LINES = 6
MAX_QUOTED_CHARACTERS = 300
MAX_LINES_AFTER = 60
"""Lines after the last sign of a crash in a text without training, a long traceback's own ones included …"""
MAX_SHARE_AFTER = 0.1
"""… or this share of the text: a program that prints more than that went on."""

_PREFIX = r"^\s*(?:\[[^\]]{0,40}\]:?\s*|\d{1,4}:\s+|[|>]\s*)*"
_TRACEBACK = re.compile(_PREFIX + r"(?:│\s*)?Traceback \(most recent call last\)")
_BEGINS_TRACEBACK = "Traceback (most recent call last)"
_BAR_ENDS = ("]", "|", "it", "s", "%")
_FRAME = re.compile(_PREFIX + r'File "[^"]{1,300}", line \d+')
_ERROR = re.compile(
    _PREFIX + r"((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Iteration)\b(?::.*)?)$"
)
# Each says what happened by itself, wherever it stands. Numbers and fixed words keep prose out.
_ALONE: tuple[tuple[str, re.Pattern[str]], ...] = tuple(
    (kind, re.compile(pattern))
    for kind, pattern in (
        (
            "out_of_memory",
            r"\bOutOfMemoryError\b|CUDA out of memory\. Tried to allocate|RESOURCE_EXHAUSTED: (?:Out of memory|OOM)"
            r"|OOM when allocating tensor|std::bad_alloc|DefaultCPUAllocator: (?:can't|not enough)"
            r"|oom[-_]kill(?:er| event|ed)|Out Of Memory: Killed|Out of memory: Kill(?:ed)? process"
            r"|CUDA error: out of memory",
        ),
        (
            "collective_timeout",
            r"Watchdog caught collective operation timeout|NCCL (?:timeout|watchdog timeout)|Timed out waiting \d+ms"
            r"|collective operation timeout|ncclSystemError|ncclInternalError|ncclRemoteError|NCCL error"
            r"|ProcessGroupNCCL.*abort",
        ),
        (
            "killed",
            r"^\s*Killed\s*$|\bKilled\s+python|: line \d+: +\d+ Killed\s|Segmentation fault"
            r"|core dumped|\bBus error\b|^\s*Aborted\b"
            r"|slurmstepd: error: .*\bkilled|DUE TO TIME LIMIT"
            r"|Received (?:signal|SIG)\S* ?1?5?:? ?(?:SIGTERM|death)"
            r"|Signals\.SIG(?:KILL|TERM|ABRT|SEGV)|\bsignal (?:9|11|6|15) \(SIG\w+\)|Fatal Python error",
        ),
        ("interrupted", r"slurmstepd: error: .*CANCELLED AT"),
        (
            "exit_code",
            r"exits? with return code = -?[1-9]\d*|exited with (?:exit )?code -?[1-9]\d*"
            r"|returned non-zero exit status -?[1-9]\d*"
            r"|[Ee]xit(?:ed)?(?: with)? (?:code|status)[ :=]+-?[1-9]\d*\b|exitcode\s*:\s*-?[1-9]\d*|ChildFailedError"
            r"|^\S+: error: (?:argument |unrecognized |the following arguments|ambiguous option|too few|invalid )",
        ),
        (
            "device_error",
            r"CUDA error: (?!out of memory)|device-side assert triggered|CUBLAS_STATUS_\w+_FAILED|CUDNN_STATUS_\w+",
        ),
    )
)  # fmt: skip
CRASH_HINT = re.compile(
    r"rror|Traceback|emory|xit|illed|File \"|abort|Abort|NCCL|nccl|imed out|ollective|dumped|CANCELLED|TIME LIMIT"
    r"|SIG|Arguments|xception|nterrupt|CUDA|CUBLAS|CUDNN|RESOURCE_EXHAUSTED|OOM|bad_alloc|fault"
)
"""Cheap to look for: a line without any of these words says nothing about a crash."""
_LOGGING_ERROR = re.compile(r"--- Logging error ---\s*$")
_LOGGING_ERROR_END = re.compile(r"^Arguments: ")
_STOPPED = re.compile(r"KeyboardInterrupt|SystemExit: 0\b|^\s*\^C")
# Said of what goes on: a warning that names an error, a handler that caught one.
_HARMLESS = re.compile(
    r"[Ww]arning|WARN(?!ING: .*(?:timeout|out of memory))|\bignor(?:e|ed|ing)\b|[Ss]kipp(?:ed|ing)|retry"
    r"|\bcaught (?:an? )?(?:error|exception)"
    r"|\b0 errors?\b|[Ee]rror(?: rate)?\s*[:=]\s*[-+]?\d|exit code 0|^\s*#"
)


@dataclass(slots=True)
class CrashScanner:
    """Remembers the first sign of a crash that no line of training has followed."""

    _events: list[dict[str, Any]] = field(default_factory=list)
    _open: dict[str, Any] | None = None
    _frame: tuple[int, str] | None = None
    _logging: bool = False
    marks: int = 0
    """How many lines had a part in a crash so far."""

    def feed(self, number: int, line: str) -> None:
        """Look at one line that is not training."""
        if not CRASH_HINT.search(line):
            return
        if self._inside_logging_error(line):
            return
        self.marks += 1
        text = line.strip()[:MAX_QUOTED_CHARACTERS]
        if _TRACEBACK.match(line):
            self._open = self._add("traceback", number, text)
            return
        if _FRAME.match(line):
            self._frame = (number, text)
            if self._open is not None:
                self._quote(self._open, text, last=True)
            return
        if match := _ERROR.match(line):
            self._error(number, match.group(1)[:MAX_QUOTED_CHARACTERS])
            return
        kind = next((kind for kind, pattern in _ALONE if pattern.search(line)), None)
        if kind is not None and (kind == "exit_code" or not _HARMLESS.search(line)):
            self._add(kind, number, text)

    def _inside_logging_error(self, line: str) -> bool:
        """Whether a line belongs to what ``logging`` prints of a message it could not format, and goes on after."""
        if _LOGGING_ERROR.search(line):
            self._logging = True
        elif self._logging and _LOGGING_ERROR_END.match(line):
            self._logging = False
            return True
        return self._logging

    def _error(self, number: int, message: str) -> None:
        """Take the last line of a traceback, or of an error without one, as a syntax error is."""
        if self._open is None:
            if self._frame is None or number - self._frame[0] > 4:
                kind = next((kind for kind, pattern in _ALONE if pattern.search(message)), None)
                if kind is not None:
                    self._add(kind, number, message)
                return
            self._open = self._add("traceback", self._frame[0], self._frame[1])
        self._quote(self._open, message)
        self._open["message"] = message
        kind = next((kind for kind, pattern in _ALONE if pattern.search(message)), None)
        if kind is not None:
            self._open["kind"] = kind
        if _STOPPED.search(message):
            self._open["kind"] = "interrupted"
        self._open = None

    def _add(self, kind: str, number: int, text: str) -> dict[str, Any]:
        event = {"type": "crash", "kind": kind, "message": text, "line": number, "lines": [text]}
        if len(self._events) < MAX_QUOTED_LINES:
            self._events.append(event)
        return event

    @staticmethod
    def _quote(event: dict[str, Any], text: str, *, last: bool = False) -> None:
        """Keep a traceback's head, its last frame and its error."""
        lines = event["lines"]
        if last and len(lines) > 1:
            lines[-1] = text
        elif len(lines) < MAX_QUOTED_LINES:
            lines.append(text)

    def went_on(self) -> None:
        """Forget what was seen: training goes on after it."""
        if self._events:
            self._events, self._open = [], None
        self._frame = None

    @property
    def pending(self) -> bool:
        """Whether something was seen that nothing has followed."""
        return bool(self._events)

    def events(self) -> tuple[Mapping[str, Any], ...]:
        """Return what ended the run, in the order of the file."""
        return tuple({**event, "lines": tuple(event["lines"])} for event in self._events)


def apart_from_traceback(line: str) -> tuple[str, ...]:
    """Part a line from a traceback that begins in it: a progress bar ends without a line break.

    >>> apart_from_traceback("9%|# | 3/90 [00:01<00:30, loss=nan]Traceback (most recent call last):")
    ('9%|# | 3/90 [00:01<00:30, loss=nan]', 'Traceback (most recent call last):')
    """
    at = line.find(_BEGINS_TRACEBACK)
    return (line,) if at <= 0 or not line[:at].rstrip().endswith((*_BAR_ENDS,)) else (line[:at], line[at:])


def read_crash(file: LogFile) -> RunLog | None:
    """Read a text that holds no training but says how the program died; None where it says nothing of the sort.

    Where no training shows whether the program went on, its other lines do: what many of them follow was no end.
    """
    scanner = CrashScanner()
    number = after = 0
    for number, line in enumerate(file.lines(), 1):
        known = scanner.marks
        for part in apart_from_traceback(clean_line(line)):
            scanner.feed(number, part)
        after = after + 1 if known == scanner.marks else 0
        if scanner.pending and after > max(MAX_LINES_AFTER, MAX_SHARE_AFTER * number):
            scanner.went_on()
    if not scanner.pending:
        return None
    coverage = Coverage(number, 0, 0)
    return RunLog(str(file.path), "text", events=scanner.events(), confidence=0.6, coverage=coverage)
