"""The debugger on live runs: fed step by step, or reading logs as they grow.

Both work the same way. Rows go into a window whose older half is thinned when it is full, so that the beginning of a
long run is kept, only more coarsely; the debugger for finished logs examines the window; and each finding is reported
once. The state can be saved, restored and rolled back to a step.

In a training loop there are two kinds of checks. A *glance* at every step costs almost nothing: is a loss no longer
finite, does a gradient norm climb out of its range? A *look* runs every detector, as often as a fixed time budget per
step allows: ten times the signals means ten times fewer looks, never a slower step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from holdfast.debug.base import BaseDetector
from holdfast.debug.debugger import MLSystemsDebugger
from holdfast.debug.growing import GrowingLog
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.names import meaning_of
from holdfast.debug.ingestion.rows import RowCollector
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.memory import Memory, StoredFinding
from holdfast.debug.reporting.words import VERDICTS, clean, number, sure, where
from holdfast.debug.thinning import thin
from holdfast.debug.types import DebugReport, Finding, RunReport, Verdict
from holdfast.errors import ConfigError, UnreadableLogError
from holdfast.versioned import AS_TEXT, Count, Format

__all__ = ["LIVE_STATE", "OnlineDebugger", "OnlineOptions"]

MIN_POINTS = 4
"""Minimum number of points of a series before detectors examine it."""
MAX_LOOKS_SHARE = 20
"""A look waits for one new step per this many earlier ones: more looks would find nothing new."""
MIN_NORMS = 5
"""Minimum number of gradient norms before one can be far above their running level …"""
FAR_ABOVE = 1.6
"""… by this much in its natural logarithm: a factor of five."""
MAX_LOG = 709.0
"""The largest number whose exponential is finite."""
_FED = "live"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnlineOptions:
    """Limits on memory and time.

    Args:
        window: number of rows kept in full; as many again represent everything before them.
        first_look: number of steps before the first look.
        budget_seconds: maximum average time per step.
    """

    window: int = 4096
    first_look: int = 48
    budget_seconds: float = 30e-6

    def __post_init__(self) -> None:
        if self.window < 64 or self.first_look < 8 or self.budget_seconds <= 0:
            raise ConfigError(
                "the online window is too small",
                window=self.window,
                first_look=self.first_look,
                hint="at least 64 points, 8 before the first look, and a positive budget",
            )


@dataclass(frozen=True, slots=True)
class LiveState:
    """A saved ``OnlineDebugger``: its window, and what it has reported."""

    fed: Count
    rows: Annotated[dict[str, Any], AS_TEXT]
    told: list[tuple[str, str | None, int | None, float]] = field(default_factory=list)
    happened: list[StoredFinding] = field(default_factory=list)
    thinned: bool = False


LIVE_STATE = Format("live debugger state", LiveState, version=1)
"""The format of ``OnlineDebugger.state_dict``."""


class OnlineDebugger:
    """Watches a live run.

    ``update(step, {"loss": 2.1, "grad_norm": 0.4})`` takes one step's numbers and returns new findings, usually none.
    ``look()`` reads what was written to ``paths`` since the last look, and returns a report if anything changed.

    Args:
        debugger: reads and diagnoses; by default with the built-in detectors.
        paths: logs or folders that grow; they need not exist yet.
        options: limits on memory and time.
        kinds: canonical kinds by signal name, for names that are not recognised.
        clock: the time source of the budget; this thread's CPU time, so that a busy machine does not starve the looks.

    Examples:
        >>> online = OnlineDebugger()
        >>> losses = [2.0 / (step + 1) for step in range(80)] + [float("nan")] * 10
        >>> new = [found for step, loss in enumerate(losses) for found in online.update(step, {"loss": loss})]
        >>> [(found.detection.failure.name, found.detection.first_step) for found in new]
        [('nan', 80.0)]
    """

    def __init__(
        self,
        debugger: MLSystemsDebugger | None = None,
        *,
        paths: Sequence[Path] = (),
        options: OnlineOptions | None = None,
        kinds: Mapping[str, str] | None = None,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.options = options or OnlineOptions()
        self.looks = 0
        self._debugger = debugger or MLSystemsDebugger(workers=1, plugins=False)
        self._kinds = dict(kinds or {})
        self._clock = clock
        self._rows = RowCollector(Limits())
        self._waiting: list[tuple[float, dict[str, float]]] = []
        self._names: Collection[str] = ()
        self._watched: dict[str, _Level | None] = {}
        self._fed = self._next_look = 0
        self._thinned = False
        self._memories: dict[str, Memory] = {_FED: Memory()}
        self._logs = tuple(GrowingLog(self._debugger, path, self.options.window) for path in paths)
        self._runs: dict[Path, tuple[RunReport, ...]] = {}
        self._verdicts: dict[str, Verdict] = {}
        self._said: set[str] = set()

    def __repr__(self) -> str:
        return f"holdfast.OnlineDebugger({self._debugger!r}, looks={self.looks})"

    @property
    def detectors(self) -> tuple[BaseDetector, ...]:
        """The detectors that examine the series."""
        return self._debugger.detectors

    @property
    def norm_bounds(self) -> dict[str, float]:
        """For each gradient norm, the value above which it would be checked now."""
        return {name: level.bound for name, level in self._watched.items() if level is not None}

    def update(self, step: float, metrics: Mapping[str, float]) -> tuple[Finding, ...]:
        """Take the values of one step; return the new findings."""
        row = dict(metrics)
        self._waiting.append((step, row))
        if row.keys() != self._names:
            self._discover(row)
        alarm = None
        for name, level in self._watched.items():
            value = row.get(name)
            if value is not None and (value - value != 0.0 if level is None else level.climbs(value)):
                alarm = name
        self._fed += 1
        if alarm is not None:
            found = self._glance(alarm)
            if found:
                return found
        if self._fed >= self._next_look:
            return self._memories[_FED].news(self._measured_look())
        if len(self._waiting) > self.options.window:
            self._drain()
        return ()

    def findings(self, *, config: Mapping[str, Any] | None = None) -> tuple[Finding, ...]:
        """Return every current finding on the fed steps, with causes: what a report on the log so far would say."""
        return self.report(config=config).findings

    def report(self, *, config: Mapping[str, Any] | None = None) -> RunReport:
        """Return the report on the steps fed so far."""
        self._drain()
        signals = self._rows.reading(kinds=self._kinds, divide=False).signals
        run = self._debugger.diagnose(RunLog(_FED, _FED, tuple(signals), config or {}), live=True)
        return _remembering(self._memories[_FED], run, thinned=self._thinned)

    def state_dict(self) -> dict[str, Any]:
        """Return the window of the fed steps and what was reported, in JSON-compatible form."""
        self._drain()
        memory = self._memories[_FED]
        state = LiveState(self._fed, self._rows.state(), memory.told(), memory.happened(), self._thinned)
        return LIVE_STATE.to_json(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state_dict`` was called.

        Raises:
            StateError: it is not a live debugger state.
            StateVersionError: it was saved by a newer release.
        """
        saved = LIVE_STATE.from_json(state)
        self._waiting.clear()
        self._rows.load(saved.rows)
        self._memories[_FED].load(saved.told, saved.happened)
        self._fed, self._thinned = saved.fed, saved.thinned
        self._watch_again()

    def forget_after(self, step: float) -> None:
        """Drop the fed steps after ``step``, and what was found in them, as after a rollback."""
        self._drain()
        self._rows.forget_after(step)
        self._memories[_FED].forget_after(step)
        self._watch_again()

    def look(self) -> DebugReport | None:
        """Diagnose the current content of the paths, or return None if nothing has changed since the last look.

        Raises:
            UnreadableLogError: none of the paths contains a log yet.
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
                self._runs[growing.path] = tuple(
                    _remembering(self._memory(run.title), run, thinned=growing.thinned) for run in runs
                )
        if refused is not None and not self._runs:
            raise refused
        return DebugReport(tuple(run for runs in self._runs.values() for run in runs)) if changed else None

    def news(self, report: DebugReport) -> Iterator[str]:
        """Return notes on how logs are read, verdicts that changed, and findings not reported before."""
        for note in (note for log in self._logs for note in log.notes):
            if note not in self._said:
                self._said.add(note)
                yield clean(note)
        for run in report.runs:
            if self._verdicts.get(run.title) is not run.verdict:
                self._verdicts[run.title] = run.verdict
                yield f"{clean(run.title)}: {VERDICTS[run.verdict]} at step {number(_last_step(run))}"
            for finding in self._memory(run.title).news(run.findings):
                yield from _told(finding)

    def status(self) -> str:
        """Return the state of the followed runs, in a few words; empty before the first look."""
        runs = [run for found in self._runs.values() for run in found]
        return "; ".join(f"step {number(_last_step(run))}: {VERDICTS[run.verdict]}" for run in runs[:4])

    @property
    def bytes_read(self) -> int:
        """The number of bytes read so far of logs that are followed line by line."""
        return sum(log.tail.bytes_read for log in self._logs)

    def _memory(self, run: str) -> Memory:
        return self._memories.setdefault(run, Memory())

    def _discover(self, row: Mapping[str, float]) -> None:
        """Watch the losses and gradient norms among new names."""
        self._names = row.keys()
        for name in row:
            meaning = meaning_of(name)
            kind = self._kinds.get(name, meaning.kind)
            if name in self._watched or not (kind == "loss" or (kind == "grad_norm" and meaning.layer is None)):
                continue
            self._watched[name] = None if kind == "loss" else _Level()
            self._next_look = max(self._next_look, self._fed + self.options.first_look)
        self._next_look = max(self._next_look, self.options.first_look)

    def _watch_again(self) -> None:
        """Recompute the running levels from the window, as if it had been fed."""
        self._names, self._watched = (), {}
        signals = self._rows.reading(kinds=self._kinds, divide=False).signals
        self._discover({signal.name: 0.0 for signal in signals})
        for signal in signals:
            level = self._watched.get(signal.name)
            for value in signal.values.tolist() if level is not None else ():
                level.climbs(value) if level is not None else None
        self._next_look = self._fed + self.options.first_look

    def _drain(self) -> None:
        """Move the rows taken since the last look to the window."""
        for step, row in self._waiting:
            self._rows.add(step, row)
        self._waiting.clear()
        self._thinned = thin(self._rows, 2 * self.options.window) or self._thinned

    def _glance(self, name: str) -> tuple[Finding, ...]:
        """Run only the relevant detectors: something looks wrong right now."""
        self._drain()
        wanted = {"nan", "inf"} if self._watched[name] is None else {"explosion"}
        signals = self._rows.reading(kinds=self._kinds, divide=False).signals
        own = [signal for signal in signals if signal.name == name]
        return self._memories[_FED].news(self._debugger.ask(wanted, own))

    def _measured_look(self) -> tuple[Finding, ...]:
        started = self._clock()
        findings = self.report().findings
        self.looks += 1
        spent = self._clock() - started
        # The next look comes once this one is within the budget, and never with too few new points to matter.
        budget = math.ceil(spent / self.options.budget_seconds)
        self._next_look = self._fed + max(self.options.first_look, budget, self._fed // MAX_LOOKS_SHARE)
        return findings


@dataclass(slots=True)
class _Level:
    """The running level of a gradient norm."""

    log_level: float = math.nan
    last: float = math.nan
    seen: int = 0

    @property
    def bound(self) -> float:
        """The norm that is far above its running level."""
        if self.seen < MIN_NORMS or math.isnan(self.log_level):
            return math.inf
        return math.exp(min(self.log_level + FAR_ABOVE, MAX_LOG))

    def climbs(self, value: float) -> bool:
        """Return whether the norm is far above its running level and still rising; update that level."""
        self.seen += 1
        if not value > 0.0 or value == math.inf:
            return False
        log = math.log(value)
        rising = value > self.last
        self.last = value
        level = self.log_level
        if math.isnan(level):
            self.log_level = log
            return False
        # The level follows slowly, and outliers even more slowly: an explosion must not drag it along.
        self.log_level = level + (0.05 if log < level + 1.0 else 0.005) * (log - level)
        return rising and log > level + FAR_ABOVE and self.seen > MIN_NORMS


def _remembering(memory: Memory, run: RunReport, *, thinned: bool) -> RunReport:
    """Return the report, with earlier events that have since been thinned out of the window."""
    findings = memory.with_past(run.findings, thinned=thinned)
    if len(findings) == len(run.findings):
        return run
    return replace(run, findings=findings, verdict=Verdict.UNHEALTHY, reason=None)


def _told(finding: Finding) -> Iterator[str]:
    seen = finding.detection
    claim = clean(seen.evidence[0].claim) if seen.evidence else ""
    yield f"  {seen.severity.value}: {seen.failure.title}, {where(seen)} ({sure(seen.confidence)} sure): {claim}"
    if finding.causes:
        yield f"    likely cause: {clean(finding.causes[0].remediation)}"


def _last_step(run: RunReport) -> float | None:
    return max((float(signal.steps[-1]) for signal in run.signals if len(signal.steps)), default=None)
