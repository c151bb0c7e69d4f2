"""What a program prints when it dies: a traceback, an out-of-memory message, an exit code, a kill, a time-out.

Read beside the numbers, from whatever is between them. An error after which training continues was caught: only what
nothing follows is a crash.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.debug.ingestion.line_parts import apart_from_traceback
from holdfast.debug.ingestion.log_file import LogFile, clean_line
from holdfast.debug.ingestion.reading_rules import EndingRule
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.types import Coverage

__all__ = ["CRASH_HINT", "CrashScanner", "is_bare_numbers", "letters_of", "read_crash"]

MAX_QUOTED_LINES = 6
MIN_OPENING = 12
"""Letters of a program's first line from which one like it is another start: shorter ones come up by chance."""
MAX_QUOTED_CHARACTERS = 300
MAX_RAISED = 1000
"""Exceptions that are remembered."""
_NO_LETTERS = re.compile(r"[\W\d_]+")
_BARE_NUMBERS = re.compile(r"^[\[(]?\s*[-+]?\d[\d.,;\s eE+-]*[\])]?\s*$")
_PREFIX = r"^\s*(?:\[[^\]]{0,40}\]:?\s*|\d{1,4}:\s+|[|>]\s*)*"
_TRACEBACK = re.compile(_PREFIX + r"(?:│\s*)?Traceback \(most recent call last\)")
_BEGINS_TRACEBACK = "Traceback (most recent call last)"
# What PowerShell redirects is folded at the width of its window, in the middle of words: compared without spaces.
_FOLDED_HEADER = _BEGINS_TRACEBACK.replace(" ", "")
_BEGINS_FOLDED = re.compile(r"Traceback *(?:\([a-z ]{0,21})?$")
_FRAME = re.compile(_PREFIX + r'File "[^"]{1,300}", line \d+')
_ERROR = re.compile(
    _PREFIX
    + r"((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Iteration)|Exception)\b(?::.*)?)$"
)
# Each says what happened by itself, wherever it is. Numbers and fixed words keep prose out.
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
            r"^\s*Killed\s*$|^forrtl: (?:severe|error) \(\d+\)"
            r"|\bKilled\s+python|: line \d+: +\d+ Killed\s|Segmentation fault"
            r"|core dumped|\bBus error\b|^\s*Aborted\b"
            r"|slurmstepd: error: .*\bkilled|DUE TO TIME LIMIT"
            r"|Received (?:signal|SIG)\S* ?1?5?:? ?(?:SIGTERM|death)"
            r"|Signals\.SIG(?:KILL|TERM|ABRT|SEGV)|\bsignal (?:9|11|6|15) \(SIG\w+\)|Fatal Python error",
        ),
        ("interrupted", r"slurmstepd: error: .*CANCELLED AT"),
        (
            "exit_code",
            r"exits? with return code = -?[1-9]\d*|exited with (?:exit )?code -?[1-9]\d*"
            r"|returned non-zero exit status -?[1-9]\d*|^make(?:\[\d+\])?: \*\*\* .*\bError [1-9]\d*"
            r"|[Ee]xit(?:ed)?(?: with)? (?:code|status)[ :=]+-?[1-9]\d*\b|exitcode\s*:\s*-?[1-9]\d*|ChildFailedError"
            r"|^\S+: error: (?:argument |unrecognized |the following arguments|ambiguous option|too few|invalid )",
        ),
        (  # What a program prints that catches whatever its training raises, and ends.
            "logged_error",
            r"^\W{0,6}(?:ERROR|Error|FATAL|Exception)\b.{0,20}\b(?:during|while|in) (?:training|fit\w*)\b\s*:"
            r"|^\W{0,6}(?:[Tt]raining|TRAINING) (?:has |HAS )?(?:failed|FAILED|crashed|CRASHED|aborted|ABORTED)\b"
            r"\s*(?:[:!.]|$|with\b|after\b|due\b|because\b|at\b)"
            r"|^\W{0,6}(?:[Tt]raining|[Mm]odel|[Ll]oss|TRAINING|MODEL|LOSS) (?:has |HAS )?(?:diverged|DIVERGED)"
            r"\s*(?:[:!.,(]|$|at\b)"
            # … or that judges its own run: "FAIL: Model cannot overfit".
            r"|^\W{0,6}FAIL(?:ED|URE)?\s?[:!-].{0,80}"
            r"\b(?:[Mm]odel|[Tt]rain\w*|[Oo]verfit\w*|[Cc]onverge\w*|[Ll]earn\w*)\b",
        ),
        ("traceback", r"^thread '[^']{1,60}' panicked at "),
        (
            "device_error",
            r"CUDA error: (?!out of memory)|device-side assert triggered|CUBLAS_STATUS_\w+_FAILED|CUDNN_STATUS_\w+",
        ),
    )
)  # fmt: skip
CRASH_HINT = re.compile(
    r"rror|Traceback|emory|xit|illed|File \"|abort|Abort|NCCL|nccl|imed out|ollective|dumped|CANCELLED|TIME LIMIT"
    r"|SIG|Arguments|xception|nterrupt|CUDA|CUBLAS|CUDNN|RESOURCE_EXHAUSTED|OOM|bad_alloc|fault"
    r"|FATAL|ERROR|FAIL|raining (?:has )?(?:failed|crashed|aborted)|RAINING [FCAH]|iverged|DIVERGED|panicked"
)
"""Cheap to look for: a line without any of these words says nothing about a crash."""
_LOGGING_ERROR = re.compile(r"--- Logging error ---\s*$")
_LOGGING_ERROR_END = re.compile(r"^Arguments: ")
# What the interpreter could not raise, from a destructor or at its exit: the program continued, or had ended.
_UNRAISABLE = re.compile(
    r"^\s*(?:Exception ignored (?:in|on|while)\b|Error in (?:atexit|sys\.excepthook|sys\.exitfunc))"
)
# A logger's line: "[2022-04-30 13:26:01][hydra.utils][ERROR] - …", "12:00:01 ERROR app: …", "ERROR:root:…".
_LOGGED_ERROR = re.compile(
    r"^.{0,40}?\d\d:\d\d.{0,60}?[\s\[|:-](?:ERROR|CRITICAL|FATAL)[\s\]|:-]|^(?:ERROR|CRITICAL|FATAL):[\w.]{1,40}:"
    r"|^(?:[Ee]rror|[Ff]atal|FATAL): (?![-+.\d])\S"  # As compiled programs end, and command-line tools.
)
# The first frame of an exception in a thread of a client that only watches the run.
_OF_A_LOGGER = re.compile(r"""^\W{0,8}File ".{0,300}[/\\](?:wandb[/\\]sdk|comet_ml|neptune|clearml)[/\\]""")
_STOPPED = re.compile(r"KeyboardInterrupt|SystemExit: 0\b|^\s*\^C")
# Said of what continues: a warning that names an error, a handler that caught one.
_HARMLESS = re.compile(
    r"[Ww]arning|WARN(?!ING: .*(?:timeout|out of memory))|\bignor(?:e|ed|ing)\b|[Ss]kipp(?:ed|ing)|retry"
    r"|\bcaught (?:an? )?(?:error|exception)"
    r"|\b0 errors?\b|[Ee]rror(?: rate)?\s*[:=]\s*[-+]?\d|exit code 0|^\s*#"
)


# An exit code is one whatever it is said with; so is a lack of memory that nothing follows, though it be a warning.
_NEVER_HARMLESS = frozenset(("exit_code", "out_of_memory"))


@dataclass(slots=True)
class CrashScanner:
    """Remembers the first sign of a crash that no line of training has followed."""

    _events: list[dict[str, Any]] = field(default_factory=list)
    _open: dict[str, Any] | None = None
    _frame: tuple[int, str] | None = None
    _logging: bool = False
    _unraisable: bool = False
    _folded: str = ""
    _unended: dict[str, Any] | None = None
    _alone: tuple[int, str] | None = None
    marks: int = 0
    """How many lines had a part in a crash so far."""
    raised: list[dict[str, Any]] = field(default_factory=list)
    """The exceptions so far, whatever followed them."""

    def feed(self, number: int, line: str) -> None:
        """Look at one line that is not training."""
        if (self._folded or self._unended is not None) and self._unfold(number, line):
            return
        if not CRASH_HINT.search(line):
            return
        if self._inside_logging_error(line) or self._is_unraisable(line):
            return
        self.marks += 1
        text = line.strip()[:MAX_QUOTED_CHARACTERS]
        if _TRACEBACK.match(line):
            self._begin(number, text)
            return
        if cut := _BEGINS_FOLDED.search(line):
            self._folded = cut.group().replace(" ", "")
            return
        if _FRAME.match(line):
            self._frame = (number, text)
            if self._open is not None:
                if len(self._open["lines"]) == 1 and _OF_A_LOGGER.match(text):
                    self._open["watcher"] = True
                self._quote(self._open, text, last=True)
            return
        if match := _ERROR.match(line):
            self._error(number, match.group(1)[:MAX_QUOTED_CHARACTERS])
            return
        kind = next((kind for kind, pattern in _ALONE if pattern.search(line)), None)
        if kind is not None and (kind in _NEVER_HARMLESS or not _HARMLESS.search(line)):
            self._add(kind, number, text)

    def _begin(self, number: int, text: str) -> None:
        """Take the first line of a traceback; one that has no frame yet is the same one, quoted by the shell."""
        if self._open is None or len(self._open["lines"]) > 1 or not self._open.get("folded"):
            self._open = self._add("traceback", number, text)

    def _unfold(self, number: int, line: str) -> bool:
        """Put together what was folded at the width of a window; whether the line was a part of it."""
        if self._unended is not None:
            event, self._unended = self._unended, None
            message = event["message"] + line.strip("\r\n")
            if line.strip() and len(message) <= MAX_QUOTED_CHARACTERS and not CRASH_HINT.search(line):
                event["message"] = event["lines"][-1] = message
                self._unended = event
                return True
            return False
        joined = self._folded + "".join(line.split())
        self._folded = joined if _FOLDED_HEADER.startswith(joined) else ""
        if joined.startswith(_FOLDED_HEADER):
            self._begin(number, _BEGINS_TRACEBACK)
            if self._open is not None:
                self._open["folded"] = True
        return bool(self._folded) or joined.startswith(_FOLDED_HEADER)

    def _is_unraisable(self, line: str) -> bool:
        """Return whether a line belongs to an exception that could not be raised, and so ended nothing."""
        if _UNRAISABLE.match(line):
            self._unraisable = True
        elif self._unraisable and _ERROR.match(line):
            self._unraisable = False
            return True
        return self._unraisable

    def _inside_logging_error(self, line: str) -> bool:
        """Return whether a line is part of what ``logging`` prints about a message it could not format."""
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
                elif ":" in message:
                    self._alone = (number, message)
                return
            self._open = self._add("traceback", self._frame[0], self._frame[1])
        self._quote(self._open, message)
        self._open["message"] = message
        if self._open.get("watcher") and self._open in self._events:
            self._events.remove(self._open)  # What sends the log away lost its connection, as it does when all ends.
            self._open = None
            return
        kind = next((kind for kind, pattern in _ALONE if pattern.search(message)), None)
        if kind is not None:
            self._open["kind"] = kind
        if _STOPPED.search(message):
            self._open["kind"] = "interrupted"
        elif len(self.raised) < MAX_RAISED:
            self.raised.append(self._open)
        self._unended = self._open if self._open.get("folded") else None
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
        """Forget what was seen: training continues after it."""
        if self._events:
            self._events, self._open = [], None
        self._frame = self._alone = self._unended = None

    @property
    def pending(self) -> bool:
        """Whether something was seen that nothing has followed."""
        return bool(self._events)

    def events(self, *, end: int | None = None) -> tuple[Mapping[str, Any], ...]:
        """Return what ended the run, in the order of the file; ``end`` is its last line that is not blank.

        An exception on that line needs no traceback before it: a debugger's session ends with one.
        """
        events = list(self._events)
        if self._alone is not None and self._alone[0] == end and not events:
            number, message = self._alone
            kind = "interrupted" if _STOPPED.search(message) else "traceback"
            events = [{"type": "crash", "kind": kind, "message": message, "line": number, "lines": [message]}]
        return tuple(
            {
                **{key: value for key, value in event.items() if key not in ("folded", "watcher")},
                "lines": tuple(event["lines"]),
            }
            for event in events
        )


@dataclass(slots=True)
class _Launches:
    """Counts how often a program was started in one file, by its first line, and how often it ended in an error."""

    all: int = 0
    crashed: int = 0
    last: tuple[Mapping[str, Any], ...] = ()
    _opening: str = ""

    def begins(self, line: str) -> bool:
        """Return whether a line is the one the program prints first, whatever numbers are in it."""
        words = letters_of(line)
        if not self._opening:
            self._opening = words if len(words) >= MIN_OPENING else ""
            self.all = int(bool(self._opening))
            return False
        return words == self._opening

    def count(self, scanner: CrashScanner) -> None:
        """Count a launch, and the end of the one before it."""
        self.all += 1
        if scanner.pending:
            self.crashed += 1
            self.last = scanner.events()
            scanner.went_on()


def letters_of(line: str) -> str:
    """Return the letters of a line: what is the same each time a program prints it."""
    return _NO_LETTERS.sub("", line[:200])


def is_bare_numbers(line: str) -> bool:
    """Return whether a line holds numbers and nothing else."""
    return bool(_BARE_NUMBERS.match(line))


def _failed_starts(raised: Sequence[dict[str, Any]], rule: EndingRule) -> tuple[Mapping[str, Any], ...]:
    """Return the last error of a text whose last job was stopped after start upon start had ended in one.

    Errors with few lines between them, of several processes or caught and raised again, are those of one start.
    """
    lines = [event["line"] for event in raised]
    starts = 1 + sum(after - before > rule.lines_after for before, after in itertools.pairwise(lines))
    if not raised or starts < rule.crashed_launches:
        return ()
    last = {**raised[-1], "lines": tuple(raised[-1]["lines"])}
    return ({**last, "started_again": True, "launches": starts + 1, "crashed_launches": starts},)


def read_crash(file: LogFile) -> RunLog | None:
    """Read a text that holds no training but says how the program died; None where it says nothing of the sort.

    Where no training shows whether the program continued, its other lines do: what many of them follow was no end. One
    whose last line was logged as an error ended in it.
    """
    scanner, rule, launches = CrashScanner(), file.limits.ending, _Launches()
    number = after = numbers = 0
    last = (0, "")
    for number, line in enumerate(file.lines(), 1):
        known = scanner.marks
        line = clean_line(line)
        if launches.begins(line):
            launches.count(scanner)
        for part in apart_from_traceback(line):
            scanner.feed(number, part)
        last = (number, line) if line.strip() else last
        after = after + 1 if known == scanner.marks else 0
        numbers = numbers + is_bare_numbers(line) if scanner.pending else 0
        if scanner.pending and (
            numbers >= rule.unplaced_rows or after > max(rule.lines_after, rule.share_after * number)
        ):
            scanner.went_on()
    events = scanner.events(end=last[0])
    if not events and _LOGGED_ERROR.match(last[1]):
        text = last[1].strip()[:MAX_QUOTED_CHARACTERS]
        events = ({"type": "crash", "kind": "logged_error", "message": text, "line": last[0], "lines": (text,)},)
    if not events and launches.crashed >= rule.crashed_launches:
        told = {"started_again": True, "launches": launches.all, "crashed_launches": launches.crashed}
        events = tuple({**event, **told} for event in launches.last)
    if events and all(event["kind"] == "interrupted" for event in events):
        events = _failed_starts(scanner.raised, rule) or events
    if not events:
        return None
    coverage = Coverage(number, 0, 0)
    return RunLog(str(file.path), "text", events=events, confidence=0.6, coverage=coverage)
