"""The run ended in an error that its log quotes: an exception, no memory left, an exit code, a kill, a time-out."""

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
    "logged_error": "Fix what the quoted line says, and start again.",
    "not_started": "Mend what the quoted line says of the command, its path or its environment, and start again.",
    "device_error": "Run again with CUDA_LAUNCH_BLOCKING=1 to find the operation; check the device's health.",
}
_TITLES: Mapping[str, str] = {
    "traceback": "the program raised an exception",
    "out_of_memory": "no memory was left",
    "exit_code": "a process exited with an error",
    "killed": "the job was killed",
    "collective_timeout": "a collective timed out",
    "device_error": "the device failed",
    "logged_error": "the program reported an error and ended",
    "not_started": "the program could not be started",
    "interrupted": "the run was stopped by hand",
}
# What says most about why comes first.
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
    """Reports the crash that a log quotes.

    A run stopped by hand is reported as information, and so is a crash after which the run was started again in the
    same file: the user knows of it, and the later run is judged by itself. In a text without training a late exception
    is a warning where more lines follow it: nothing shows that the program got over it. What a shell could not
    start was not the program whose training was read.

    Args:
        confidence: how sure the quoted lines make it; they are what the program printed when it died.
    """

    failure: ClassVar[Failure] = Failure("crash", "Crash", 5, "Fix what the quoted lines say, then resume.")

    confidence: float = 0.99

    @property
    def name(self) -> str:
        """The detector's name."""
        return "crash"

    def get_required_signals(self) -> frozenset[str]:
        """Return none: it reads events."""
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
        overcome = bool(events[0].get("started_again"))
        advice = _ADVICE.get(kind, "")
        claim = f"{_TITLES.get(kind, kind)}: {events[0].get('message', '')}"
        severity = Severity.INFO if kind == "interrupted" or overcome else Severity.CRITICAL
        if (crashed := events[0].get("crashed_launches")) and kind != "interrupted":
            claim = f"{crashed} of {events[0].get('launches')} starts in this file ended in an error, the last: {claim}"
            severity = Severity.WARNING
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
