"""What a program prints when it dies: a traceback, an out-of-memory message, an exit code, a kill, a time-out.

Read from the lines between the numbers. An error after which training continues was caught: only an error that nothing
follows is a crash.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.debug.ingestion.crash_words import (
    COMPLETED,
    HARMLESS,
    LAST_WORDS,
    NEVER_HARMLESS,
    OF_ONE_REQUEST,
    STOPPED,
    kind_of,
    may_tell,
    serves,
    trains,
)
from holdfast.debug.ingestion.line_parts import apart_from_traceback
from holdfast.debug.ingestion.log_file import LogFile, clean_line
from holdfast.debug.ingestion.reading_rules import EndingRule
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.ingestion.text_rows import row_test
from holdfast.debug.types import Coverage

__all__ = ["CrashScanner", "crashed_launches", "is_bare_numbers", "letters_of", "read_crash"]

MAX_QUOTED_LINES = 6
MAX_QUOTED_CHARACTERS = 300
MAX_ALIKE = 2
"""Maximum number of lines kept per kind, so that one printed at every step leaves room for the one that ended the
run."""
MAX_RAISED = 1000
"""Maximum number of exceptions remembered."""
_NO_LETTERS = re.compile(r"[\W\d_]+")
_BARE_NUMBERS = re.compile(r"^[\[(]?\s*[-+]?\d[\d.,;\s eE+-]*[\])]?\s*$")
_PREFIX = r"^\s*(?:\[[^\]]{0,40}\]:?\s*|\d{1,4}:\s+|[|>]\s*)*"
_TRACEBACK = re.compile(_PREFIX + r"(?:│\s*)?Traceback \(most recent call last\)")
# What a launcher, container or logger puts before each line of a traceback: identical except for its digits.
_AFTER_A_HEAD = re.compile(r"^(.{1,100}?[\s:|>\]-])Traceback \(most recent call last\):?\s*$")
_DIGIT = re.compile(r"\d")
_BEGINS_TRACEBACK = "Traceback (most recent call last)"
# Redirected PowerShell output is folded at the window width, in the middle of words: compare without spaces.
_FOLDED_HEADER = _BEGINS_TRACEBACK.replace(" ", "")
_BEGINS_FOLDED = re.compile(r"Traceback *(?:\([a-z ]{0,21})?$")
_FRAME = re.compile(_PREFIX + r'File "[^"]{1,300}", line \d+')
_ERROR = re.compile(
    _PREFIX + r"((?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Failure|Iteration)"
    r"|Exception|(?<=\.)Error)\b(?:\(\w+\))?(?::.*)?)$"
)
_LOGGING_ERROR = re.compile(r"--- Logging error ---\s*$")
_LOGGING_ERROR_END = re.compile(r"^Arguments: ")
# Errors that the interpreter could not raise, from a destructor or at exit: the program continued, or had ended.
_UNRAISABLE = re.compile(
    r"^\s*(?:Exception ignored (?:in|on|while)\b|Error in (?:atexit|sys\.excepthook|sys\.exitfunc))"
)
# The first frame of an exception in a thread of a client that only watches the run.
_OF_A_LOGGER = re.compile(r"""^\W{0,8}File ".{0,300}[/\\](?:wandb[/\\]sdk|comet_ml|neptune|clearml)[/\\]""")
# The first frame of an exception in a request, which ends only that request.
_OF_A_SERVER = re.compile(
    r"""^\W{0,8}File ".{0,300}[/\\](?:tornado[/\\](?:web|routing)|flask[/\\]app|werkzeug[/\\]serving|socketserver"""
    r"""|aiohttp[/\\]web_protocol|(?:uvicorn|starlette|django|gradio|streamlit)[/\\][\w/\\]{1,80})\.py\""""
)
# Exceptions that are clear without a message.
_SAYS_ENOUGH = frozenset(("AssertionError", "KeyboardInterrupt", "MemoryError", "NotImplementedError", "RuntimeError"))
# A line printed by another process of the job: Ray's workers end after their driver has.
_OF_A_WORKER = re.compile(r"^\(\S+ (?:pid|ip)=")


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
    _alone: tuple[int, str, str] | None = None
    _completed: bool = False
    _head: str = ""
    marks: int = 0
    """The number of lines so far that were part of a crash."""
    raised: list[dict[str, Any]] = field(default_factory=list)
    """The exceptions so far, whatever followed them."""
    logged: list[dict[str, Any]] = field(default_factory=list)
    """The errors that a logger reported so far, whatever followed them."""

    def feed(self, number: int, line: str) -> None:
        """Read one line that is not training."""
        if (self._folded or self._unended is not None) and self._unfold(number, line):
            return
        if self._alone is not None and line[:1].isspace() and number - self._alone[0] <= 1:
            self._alone = (number, *self._alone[1:])  # The message continues.
        line = self._without_head(line)
        if not may_tell(line):
            if ("rain" in line or "epochs" in line) and COMPLETED.search(line):
                self._completed = True
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
                if len(self._open["lines"]) == 1:
                    self._open["watcher"] = bool(_OF_A_LOGGER.match(text))
                    self._open["served"] = bool(_OF_A_SERVER.match(text))
                self._quote(self._open, text, last=True)
            return
        if match := _ERROR.match(line):
            self._error(number, match.group(1)[:MAX_QUOTED_CHARACTERS])
            return
        kind = kind_of(line)
        if kind is not None and (kind in NEVER_HARMLESS or not HARMLESS.search(line)):
            self._add(kind, number, text)
        elif LAST_WORDS.match(line):
            if len(self.logged) < MAX_RAISED:
                self.logged.append(_crash("logged_error", number, text))
            if not self._completed:
                self._alone = (number, "logged_error", text)

    def _without_head(self, line: str) -> str:
        """Return a line without the prefix printed before each line of the traceback to which it may belong."""
        if "Traceback" in line and not _TRACEBACK.match(line) and (match := _AFTER_A_HEAD.match(line)):
            self._head = match.group(1)
        size = len(self._head)
        if not size or _DIGIT.sub("0", line[:size]) != _DIGIT.sub("0", self._head):
            return line
        return line[size:]

    def _begin(self, number: int, text: str) -> None:
        """Start a traceback; if the previous one has no frame yet, it is the same one, quoted by the shell."""
        if self._open is None or len(self._open["lines"]) > 1 or not self._open.get("folded"):
            self._open = self._add("traceback", number, text)

    def _unfold(self, number: int, line: str) -> bool:
        """Join lines folded at the width of a window; return whether the line was part of them."""
        if self._unended is not None:
            event, self._unended = self._unended, None
            message = event["message"] + line.strip("\r\n")
            if line.strip() and len(message) <= MAX_QUOTED_CHARACTERS and not may_tell(line):
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
        """Take the last line of a traceback, or of an error without one, such as a syntax error."""
        if self._open is None:
            if self._frame is None or number - self._frame[0] > 4:
                kind = kind_of(message)
                if kind is not None:
                    self._add(kind, number, message)
                elif ":" in message or "." in message or message in _SAYS_ENOUGH:
                    self._alone = (number, "interrupted" if STOPPED.search(message) else "traceback", message)
                return
            self._open = self._add("traceback", self._frame[0], self._frame[1])
        self._quote(self._open, message)
        self._open["message"] = message
        if self._open.get("watcher") and self._open in self._events:
            self._events.remove(self._open)  # A log shipper lost its connection, as happens when everything ends.
            self._open = None
            return
        kind = kind_of(message)
        if kind is not None:
            self._open["kind"] = kind
        if STOPPED.search(message):
            self._open["kind"] = "interrupted"
        elif len(self.raised) < MAX_RAISED:
            self.raised.append(self._open)
        self._unended = self._open if self._open.get("folded") else None
        self._open = None

    def _add(self, kind: str, number: int, text: str) -> dict[str, Any]:
        event = _crash(kind, number, text)
        alike = sum(other["kind"] == kind for other in self._events) if kind != "traceback" else 0
        if len(self._events) < MAX_QUOTED_LINES and alike < MAX_ALIKE:
            self._events.append(event)
        return event

    @staticmethod
    def _quote(event: dict[str, Any], text: str, *, last: bool = False) -> None:
        """Keep the head of a traceback, its last frame and its error."""
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
        self._completed = False

    @property
    def pending(self) -> bool:
        """Whether something was seen that nothing has followed."""
        return bool(self._events)

    def events(self, *, end: int | None = None) -> tuple[Mapping[str, Any], ...]:
        """Return what ended the run, in file order; ``end`` is the last line that is not blank.

        An exception on that line needs no traceback before it, as at the end of a debugger session. Neither does an
        error that a logger or the program itself reports there.
        """
        events = list(self._events)
        if self._alone is not None and self._alone[0] == end and not events:
            number, kind, message = self._alone
            events = [_crash(kind, number, message)]
        return tuple(map(_told, events))


def _crash(kind: str, number: int, text: str) -> dict[str, Any]:
    return {"type": "crash", "kind": kind, "message": text, "line": number, "lines": [text]}


def _told(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return an event without what only the scanner needs."""
    kept = {key: value for key, value in event.items() if key not in ("folded", "watcher", "served")}
    return {**kept, "lines": tuple(event["lines"])}


def letters_of(line: str) -> str:
    """Return the letters of a line, which are the same each time a program prints it."""
    return _NO_LETTERS.sub("", line[:200])


def is_bare_numbers(line: str) -> bool:
    """Return whether a line contains nothing but numbers."""
    return bool(_BARE_NUMBERS.match(line))


def _failed_starts(raised: Sequence[dict[str, Any]], rule: EndingRule) -> tuple[Mapping[str, Any], ...]:
    """Return the last error of a text whose last job was stopped after repeated starts had failed.

    Errors close together, from several processes or re-raised, belong to one start.
    """
    lines = [event["line"] for event in raised]
    starts = 1 + sum(after - before > rule.lines_after for before, after in itertools.pairwise(lines))
    if not raised or starts < rule.crashed_launches:
        return ()
    return ({**_told(raised[-1]), "started_again": True, "launches": starts + 1, "crashed_launches": starts},)


def crashed_launches(
    raised: Sequence[dict[str, Any]], openings: Sequence[int], rule: EndingRule
) -> tuple[Mapping[str, Any], ...]:
    """Return the last error of several starts that died before the training that was read began.

    ``openings`` are the lines at which the program printed its first line again, before any row of training: each ends
    the previous start. The processes of one start print theirs before any of them dies.
    """
    died = [
        last
        for begin, end in itertools.pairwise([0, *openings])
        if (last := next((event for event in reversed(raised) if begin <= event["line"] < end), None))
    ]
    if len(died) < rule.crashed_launches:
        return ()
    launches = {"launches": len(openings) + 1, "crashed_launches": len(died)}
    return ({**_told(died[-1]), "started_again": True, "resumed": True, **launches},)


def _passed_over(raised: Sequence[dict[str, Any]], lines: int) -> tuple[Mapping[str, Any], ...]:
    """Return the last error of a text without training that continues after it, for less than it had before."""
    late = [event for event in raised[-1:] if 2 * event["line"] > lines]
    return tuple({**_told(event), "continued": True} for event in late)


def read_crash(file: LogFile) -> RunLog | None:
    """Read a text without training that says how the program died; return None if it does not.

    Without training, the other lines show whether the program continued: an error that many lines follow was not its
    end. An exception is reported nevertheless if it came late, or repeatedly: nothing shows that it was harmless. A
    server goes on to its next request, and the rows of a table are not messages of a program.
    """
    scanner, rule = CrashScanner(), file.limits.ending
    number = after = numbers = last = 0
    opening = before = ""
    openings: list[int] = []
    is_row = row_test(file)
    service = training = False
    for number, line in enumerate(file.lines(), 1):
        known = scanner.marks
        line = clean_line(line)
        if is_row(line):
            continue
        service = service or serves(line)
        training = training or (trains(line) and not may_tell(line))
        for part in apart_from_traceback(line):
            scanner.feed(number, part)
        last = number if line.strip() else last
        words = letters_of(line)
        if words == opening != before and len(words) >= file.limits.restarts.opening_characters:
            openings.append(number)
        opening, before = opening or words, words
        if scanner.pending and _OF_A_WORKER.match(line):
            continue
        after = after + 1 if known == scanner.marks else 0
        numbers = numbers + is_bare_numbers(line) if scanner.pending else 0
        if numbers >= rule.unplaced_rows:
            scanner.raised.clear()
        if scanner.pending and (
            numbers >= rule.unplaced_rows or after > max(rule.lines_after, rule.share_after * number)
        ):
            scanner.went_on()
    events = scanner.events(end=last)
    if service and not training and {event["kind"] for event in (*events, *scanner.raised)} <= OF_ONE_REQUEST:
        return None
    if all(event["kind"] == "interrupted" for event in events):
        raised = [] if scanner.raised and scanner.raised[-1].get("served") else scanner.raised
        events = _failed_starts(raised, rule) or events or _passed_over(raised, number)
    events = events or crashed_launches(scanner.logged, openings, rule)
    if not events:
        return None
    coverage = Coverage(number, 0, 0)
    return RunLog(str(file.path), "text", events=events, confidence=0.6, coverage=coverage)
