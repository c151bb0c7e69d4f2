"""Follows logs that are still being written: reads what is new, and says what is new.

A log of lines (text, JSON lines, CSV) is never read twice: each look takes the bytes written since the last one, and
the detectors see a window of rows that is thinned towards the beginning of the run, so a look costs the same however
long the run has been going. A file that only makes sense as a whole (``trainer_state.json``, ``.wandb``, event files)
and a folder are read again when they change, and the news says so.

The reading behind it is the one finished logs go through (gaps, placeholders, restarts, skipped steps and all): a
finding while the log grows is one the finished log would give.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from holdfast.debug.debugger import MLSystemsDebugger
from holdfast.debug.growing import GrowingLog
from holdfast.debug.reporting.words import VERDICTS, clean, number, sure, where
from holdfast.debug.types import DebugReport, Detection, Failure, Finding, RunReport, Verdict
from holdfast.errors import UnreadableLogError

__all__ = ["Follower"]

_WINDOW = 4096
# What has happened has happened, even when the window no longer shows it; a plateau or a divergence may pass.
_HAPPENED = frozenset(
    (Failure.NAN, Failure.INF, Failure.SPIKE, Failure.EXPLOSION, Failure.LOSS_SCALE_COLLAPSE, Failure.DESYNC)
)

_Key = tuple[str, str, str | None, int | None]


class Follower:
    """Remembers what was last seen of some paths.

    Args:
        debugger: reads and diagnoses.
        paths: logs or folders; they need not exist yet.
        window: rows of a log that are held in full; as many again stand for all that came before them.
    """

    def __init__(self, debugger: MLSystemsDebugger, paths: Sequence[Path], *, window: int = _WINDOW) -> None:
        self._debugger = debugger
        self._logs = tuple(GrowingLog(debugger, path, window) for path in paths)
        self._runs: dict[Path, tuple[RunReport, ...]] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._happened: dict[_Key, Finding] = {}
        self._told: dict[_Key, float] = {}
        self._said: set[str] = set()

    @property
    def bytes_read(self) -> int:
        """Bytes read so far of the logs that are followed line by line."""
        return sum(log.tail.bytes_read for log in self._logs)

    def status(self) -> str:
        """Where the runs stand, in a few words; empty before the first look."""
        runs = [run for found in self._runs.values() for run in found]
        return "; ".join(f"step {number(_last_step(run))}: {VERDICTS[run.verdict]}" for run in runs[:4])

    def look(self) -> DebugReport | None:
        """Diagnose what is there now; None where nothing has changed since the last look.

        Raises:
            UnreadableLogError: none of the paths holds a log yet.
        """
        changed = False
        refused: UnreadableLogError | None = None
        for growing in self._logs:
            try:
                logs = growing.look()
            except UnreadableLogError as error:
                refused = error
                continue
            if logs is not None:
                changed = True
                runs = [self._debugger.diagnose(log, live=True) for log in logs]
                self._runs[growing.path] = tuple(self._remembering(run, thinned=growing.thinned) for run in runs)
        if refused is not None and not self._runs:
            raise refused
        return DebugReport(tuple(run for runs in self._runs.values() for run in runs)) if changed else None

    def _remembering(self, run: RunReport, *, thinned: bool) -> RunReport:
        """The report, with what happened before and has since been thinned out of the window."""
        now = {_key(run, finding.detection): finding for finding in run.findings}
        past = [f for key, f in self._happened.items() if key[0] == run.path and key not in now] if thinned else []
        self._happened |= {key: f for key, f in now.items() if f.detection.failure in _HAPPENED}
        return replace(run, findings=(*run.findings, *past), verdict=Verdict.UNHEALTHY) if past else run

    def news(self, report: DebugReport) -> Iterator[str]:
        """How logs are read where that is worth knowing, verdicts that have changed, and findings not told before."""
        for note in (note for log in self._logs for note in log.notes):
            if note not in self._said:
                self._said.add(note)
                yield clean(note)
        for run in report.runs:
            if self._verdicts.get(run.path) is not run.verdict:
                self._verdicts[run.path] = run.verdict
                yield f"{clean(run.path)}: {VERDICTS[run.verdict]} at step {number(_last_step(run))}"
            for finding in run.findings:
                yield from self._tell(run, finding)

    def _tell(self, run: RunReport, finding: Finding) -> Iterator[str]:
        """One failure of one layer and rank is told once, and again when it comes back."""
        detection = finding.detection
        key = _key(run, detection)
        first = -math.inf if detection.first_step is None else detection.first_step
        told = self._told.get(key)
        self._told[key] = max(-math.inf if told is None else told, detection.last_step or first)
        if told is not None and first <= told:
            return
        claim = clean(detection.evidence[0].claim) if detection.evidence else ""
        yield (
            f"  {detection.severity.value}: {detection.failure.title}, {where(detection)}"
            f" ({sure(detection.confidence)} sure): {claim}"
        )
        if finding.causes:
            yield f"    likely cause: {clean(finding.causes[0].remediation)}"


def _key(run: RunReport, detection: Detection) -> _Key:
    return run.path, detection.failure.name, detection.layer, detection.replica


def _last_step(run: RunReport) -> float | None:
    return max((float(signal.steps[-1]) for signal in run.signals if len(signal.steps)), default=None)
