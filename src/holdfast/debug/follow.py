"""Follows logs that are still being written: looks again only when a file has changed, and says only what is new."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from holdfast.debug.debugger import MLSystemsDebugger
from holdfast.debug.reporting.words import FAILURES, VERDICTS, clean, number, sure, where
from holdfast.debug.types import DebugReport, RunReport, Verdict

__all__ = ["Follower"]


class Follower:
    """Remembers what was last seen of some paths."""

    def __init__(self, debugger: MLSystemsDebugger, paths: Sequence[Path]) -> None:
        self._debugger = debugger
        self._paths = tuple(paths)
        self._state: tuple[tuple[str, int, int], ...] | None = None
        self._verdicts: dict[str, Verdict] = {}
        self._told: set[tuple[str, str, float | None, str | None, int | None]] = set()

    def look(self) -> DebugReport | None:
        """Diagnose what is there now; None where nothing has changed since the last look.

        Raises:
            UnreadableLogError: there is no log yet.
        """
        state = tuple(self._stat())
        if state == self._state:
            return None
        self._state = state
        runs = [self._debugger.diagnose(log, live=True) for path in self._paths for log in self._debugger.read(path)]
        return DebugReport(tuple(runs))

    def _stat(self) -> Iterator[tuple[str, int, int]]:
        for path in self._paths:
            files = sorted(path.rglob("*"))[:5000] if path.is_dir() else [path]
            for file in files:
                if file.is_file():
                    status = file.stat()
                    yield str(file), status.st_size, status.st_mtime_ns

    def news(self, report: DebugReport) -> Iterator[str]:
        """A line a run whose verdict has changed, and one a finding not told before."""
        for run in report.runs:
            if self._verdicts.get(run.path) is not run.verdict:
                self._verdicts[run.path] = run.verdict
                yield f"{clean(run.path)}: {VERDICTS[run.verdict]} at step {number(_last_step(run))}"
            for finding in run.findings:
                detection = finding.detection
                key = (run.path, detection.failure.value, detection.first_step, detection.layer, detection.replica)
                if key in self._told:
                    continue
                self._told.add(key)
                claim = clean(detection.evidence[0].claim) if detection.evidence else ""
                yield (
                    f"  {detection.severity.value}: {FAILURES[detection.failure]}, {where(detection)}"
                    f" ({sure(detection.confidence)} sure): {claim}"
                )
                if finding.causes:
                    yield f"    likely cause: {clean(finding.causes[0].remediation)}"


def _last_step(run: RunReport) -> float | None:
    return max((float(signal.steps[-1]) for signal in run.signals if len(signal.steps)), default=None)
