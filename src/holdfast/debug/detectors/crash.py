"""A run that ended in an error quoted in its log: an exception, out of memory, an exit code, a kill, a time-out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from holdfast.debug.base import BaseDetector
from holdfast.debug.types import (
    Detection,
    DetectionContext,
    DetectionResult,
    Evidence,
    Failure,
    Severity,
    Signal,
)

__all__ = ["CrashDetector"]

_ADVICE: Mapping[str, str] = {
    "traceback": "Fix the error in the quoted lines, then resume from the last checkpoint.",
    "out_of_memory": "Lower the batch size or the sequence length, or shard the model; then resume.",
    "exit_code": "Look in the other logs of the job for the error behind this exit code.",
    "killed": "Ask the host or the scheduler why it killed the job: its memory, its time limit, a pre-emption.",
    "collective_timeout": "Find the rank that did not arrive: its log ends first. Collect a flight recorder.",
    "logged_error": "Fix the error in the quoted line, and start again.",
    "not_started": "Fix the command, path or environment named in the quoted line, and start again.",
    "device_error": "Run again with CUDA_LAUNCH_BLOCKING=1 to find the operation; check the device's health.",
}
_TITLES: Mapping[str, str] = {
    "traceback": "the program raised an exception",
    "out_of_memory": "memory ran out",
    "exit_code": "a process exited with an error",
    "killed": "the job was killed",
    "collective_timeout": "a collective timed out",
    "device_error": "the device failed",
    "logged_error": "the program reported an error and ended",
    "not_started": "the program could not be started",
    "interrupted": "the run was stopped by hand",
}
# The most informative kind comes first.
_ORDER = (
    "out_of_memory",
    "collective_timeout",
    "device_error",
    "traceback",
    "killed",
    "exit_code",
    "logged_error",
    "not_started",
    "interrupted",
)


@dataclass(frozen=True, slots=True)
class CrashDetector(BaseDetector):
    """Reports a crash quoted in a log.

    A run stopped by hand is reported as information, and so is a crash after which the run resumed in the same file and
    got past it. A crash after which another run begins is a warning: the run that crashed never finished. In a text
    without training, a late exception followed by more lines is a warning: nothing shows that the program recovered. A
    command that the shell could not start was not the program that trained.

    Args:
        confidence: confidence of a crash quoted in the log.
    """

    failure: ClassVar[Failure] = Failure("crash", "Crash", 5, "Fix the error in the quoted lines, then resume.")

    confidence: float = 0.99

    @property
    def name(self) -> str:
        """The detector's name."""
        return "crash"

    def get_required_signals(self) -> frozenset[str]:
        """Return nothing: this detector reads events."""
        return frozenset()

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        """Turn the run's crash events into one detection."""
        events = sorted(
            (
                event
                for event in context.events
                if event.get("type") == "crash" and (event.get("kind") != "not_started" or context.last_step is None)
            ),
            key=lambda event: _ORDER.index(event["kind"]) if event.get("kind") in _ORDER else len(_ORDER),
        )
        if not events:
            return DetectionResult(self.name)
        kind = str(events[0].get("kind", "traceback"))
        overcome = bool(events[0].get("resumed"))
        advice = _ADVICE.get(kind, "")
        claim = f"{_TITLES.get(kind, kind)}: {events[0].get('message', '')}"
        severity = Severity.INFO if kind == "interrupted" or overcome else Severity.CRITICAL
        if severity is Severity.CRITICAL and events[0].get("started_again"):
            severity = Severity.WARNING
        if (crashed := events[0].get("crashed_launches")) and kind != "interrupted":
            claim = f"{crashed} of {events[0].get('launches')} starts in this file ended in an error, the last: {claim}"
            severity = Severity.INFO if overcome else Severity.WARNING  # it trained afterwards: recovered
        if events[0].get("continued"):
            claim, severity = f"{claim} (more lines follow it, and none of them is training)", Severity.WARNING
        found = Detection(
            Failure("crash", "Crash", CrashDetector.failure.rank, advice),
            severity,
            self.confidence,
            context.last_step,
            context.last_step,
            (Evidence("", claim), *_quotes(events)),
        )
        return DetectionResult(self.name, (found,))


def _quotes(events: Sequence[Mapping[str, object]]) -> list[Evidence]:
    quotes = []
    for event in events[:3]:
        lines = event.get("lines")
        if isinstance(lines, (tuple, list)) and lines:
            quotes.append(Evidence(f"line {event.get('line')}", " ⏎ ".join(str(line) for line in lines)))
    return quotes
