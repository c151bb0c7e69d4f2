"""The page of a holdfast run, from its log: live while it runs, and afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.debug import MLSystemsDebugger
from holdfast.debug.ingestion.names import meaning_of
from holdfast.debug.ingestion.run_log import RunLog as ReadLog
from holdfast.debug.reporting.words import clean, remarks
from holdfast.debug.types import RunReport, Signal, Verdict
from holdfast.page.from_report import TITLES, charts_of, flag_of, lead_of
from holdfast.page.good_run import config_difference, last_good_run
from holdfast.page.model import Bucket, Chart, Flag, HeatMap, Line, Page
from holdfast.page.ranks import MAX_RANKS, rank_strip
from holdfast.page.reading import reading_chart, reading_table
from holdfast.page.run_events import checkpoint_states, rolled_back_to, run_events, verify_checkpoints
from holdfast.page.run_flags import recorded_flag, with_investigations
from holdfast.page.sources import is_of_source, source_charts, sources_of
from holdfast.page.throughput import throughput_chart
from holdfast.run import RunLog
from holdfast.run.buckets import OWN_TIME, TIME_FIELDS
from holdfast.run.columns import RunColumns
from holdfast.run.investigations import read_investigations

__all__ = ["RunFeed", "page_of_run"]

LAYERS = {"grad_norm/": "Gradient norm by layer", "weight_norm/": "Weight norm by layer"}
NOT_SERIES = frozenset(("at", OWN_TIME, *TIME_FIELDS.values())) - {"step_time", "data_time"}
FIRST = tuple(TITLES[kind] for kind in ("loss", "eval_loss", "grad_norm", "lr", "throughput"))
MAX_GIVEN_UP = 8
"""Maximum number of abandoned branches that are drawn, newest first."""
LOOK_DELAY = 1.0
"""Seconds until the detectors start in the background: the requested page is sent first."""
LOOK_SHARE = 0.1
"""Maximum fraction of the time that the detectors may take."""
LOOK_SECONDS = 20.0
"""Minimum seconds between two runs of the detectors on a live run."""


def page_of_run(folder: str | Path) -> Page:
    """Return the current page of a run's folder."""
    return RunFeed(Path(folder)).page()


class RunFeed:
    """A run's folder, re-read as little as possible.

    Args:
        folder: the run's folder.
        name: the displayed name; the folder's path by default.
        wait: whether the first page waits for the detectors; otherwise they run in the background, and the page says
            so.
        verify: whether to read and verify every checkpoint of the run.

    Raises:
        RunFolderError: it is not the folder of a run.
    """

    def __init__(self, folder: Path, *, name: str | None = None, wait: bool = True, verify: bool = False) -> None:
        self._wait = wait
        self._looking: threading.Thread | None = None
        self._log = RunLog(folder)
        self._name = name or str(folder)
        self._checked = verify_checkpoints(self._log.folder) if verify else {}
        self._columns = RunColumns(folder)
        self._ranks = {0: self._columns}
        self._lock = threading.Lock()
        self._changes = 0
        self._report: RunReport | None = None
        self._looked_at = (-float("inf"), -1)
        self._looks = 0
        self._look_took = 0.0
        self._difference: tuple[str, tuple[tuple[str, str, str], ...]] | None = None

    @property
    def name(self) -> str:
        """The displayed name of the run."""
        return self._name

    def version(self) -> str:
        """Return a text that changes whenever the log has grown."""
        with self._lock:
            self._changes += self._columns.refresh()
            return f"{self._changes}.{self._looks}"

    def page(self) -> Page:
        """Return the current page."""
        with self._lock:
            self._changes += self._columns.refresh()
            signals = self._signals()
            report = self._diagnosed(signals)
            return self._page(signals, report)

    def _diagnosed(self, signals: tuple[Signal, ...]) -> RunReport:
        """Run the detectors again if the log has grown and they last ran some time ago."""
        when, changes = self._looked_at
        pause = max(LOOK_SECONDS, self._look_took / LOOK_SHARE)
        if self._report is None or (changes != self._changes and time.monotonic() - when >= pause):
            log = ReadLog(path=self._name, format="holdfast", signals=signals, config=self._config())
            if self._wait:
                self._look(log, self._changes)
            elif self._looking is None or not self._looking.is_alive():
                self._looking = threading.Timer(LOOK_DELAY, self._look, args=(log, self._changes))
                self._looking.daemon = True
                self._looking.start()
        return self._report or RunReport(self._name, "holdfast", Verdict.UNKNOWN, (), signals)

    def _look(self, log: ReadLog, changes: int) -> None:
        began = time.monotonic()
        report = MLSystemsDebugger().diagnose(log)
        self._look_took = time.monotonic() - began
        self._report, self._looked_at = report, (time.monotonic(), changes)
        self._looks += 1

    def _config(self) -> dict[str, Any]:
        config = self._columns.headers[-1].get("config") if self._columns.headers else None
        return config if isinstance(config, dict) else {}

    def _signals(self) -> tuple[Signal, ...]:
        found = []
        for name in self._columns.names:
            steps, values = self._columns.series(name)
            if name not in NOT_SERIES and len(steps):
                meaning = meaning_of(name)
                metadata = {**meaning.metadata, "kind": meaning.kind}
                found.append(Signal(name, steps, values, meaning.layer, meaning.replica, metadata))
        return tuple(found)

    def _page(self, signals: tuple[Signal, ...], report: RunReport) -> Page:
        columns = self._columns
        flags = self._flags(report)
        overcome = rolled_back_to(columns)
        serious = overcome is None and any(flag.severity in ("warning", "critical") for flag in flags)
        steps = max((int(signal.steps[-1]) + 1 for signal in signals), default=0)
        environment = columns.headers[-1].get("environment") or {} if columns.headers else {}
        worst = next((flag for flag in flags if flag.onset is not None), None)
        lead = lead_of(report) if self._report is not None else "The detectors are still running."
        if worst is not None and overcome is not None:
            since = "Nothing since then points to a failure." if report.verdict is Verdict.HEALTHY else lead
            lead = f"{worst.title} at step {worst.onset:,.0f}; rolled back to step {overcome:,} and continued. {since}"
        elif worst is not None and serious:
            lead = f"{worst.title} at step {worst.onset:,.0f}. {worst.advice}"
        return Page(
            title=clean(self._name),
            verdict=(Verdict.UNHEALTHY if serious else report.verdict).value,
            lead=lead,
            facts=tuple(
                f"{count:,} {word}{'' if count == 1 else 's'}"
                for count, word in ((steps, "step"), (len(columns.headers), "attempt"), (len(self._log.ranks), "rank"))
            ),
            charts=self._charts(signals),
            flags=flags,
            events=run_events(columns, checkpoint_states(columns, self._log.folder, self._checked)),
            goodput=tuple(self._goodput()),
            heat_maps=tuple(self._heat_maps()),
            tables=tuple(table for table in (reading_table(self._ranks.values()),) if table is not None),
            command=worst.command if serious and worst else "",
            notes=tuple(clean(note) for note in remarks(report)),
            config={clean(name): clean(value) for name, value in self._config().items()},
            changed=self._changed(),
            compared_with=clean(self._difference[0]) if self._difference else "",
            environment={clean(name): clean(value) for name, value in environment.items()},
        )

    def _goodput(self) -> Iterator[Bucket]:
        spent = self._columns.spent()
        for name, seconds in self._columns.goodput.seconds.items():
            if seconds:
                yield Bucket(name, seconds, *spent.get(name, ()))

    def _flags(self, report: RunReport) -> tuple[Flag, ...]:
        findings = [event for event in self._columns.events if event["event"] == "finding"]
        seen = {recorded_flag(event).title for event in findings}
        found = read_investigations(self._log.folder.root)
        # A finding about one rank concerns its machine, not the samples.
        alone = [recorded_flag(event) for event in findings if event.get("names_rank")]
        others = [recorded_flag(event) for event in findings if not event.get("names_rank")]
        others += [flag for flag in map(flag_of, report.findings) if flag.title not in seen]
        return (*(with_investigations(flag, found, self._name) for flag in others), *alone)

    def _changed(self) -> tuple[tuple[str, str, str], ...]:
        """Return what differs from the last good run next to this one; computed once."""
        if self._difference is None:
            good = last_good_run(self._log.folder.root)
            self._difference = (good.name if good else "", config_difference(self._config(), good) if good else ())
        return self._difference[1]

    def _charts(self, signals: tuple[Signal, ...]) -> tuple[Chart, ...]:
        names = sources_of(self._columns)
        by_layer = tuple(LAYERS)
        charts = charts_of(
            tuple(
                signal
                for signal in signals
                if not signal.name.startswith(by_layer) and is_of_source(signal.name, names) is None
            )
        )
        named = {chart.title for chart in charts}
        speed = None if TITLES["throughput"] in named else throughput_chart(self._columns)
        derived = [chart for chart in (speed, reading_chart(self._columns)) if chart is not None]
        charts = tuple(sorted((*charts, *source_charts(self._columns, signals), *derived), key=_rank_of))
        given_up = [Line("given up", *branch, faded=True) for branch in self._columns.given_up[-MAX_GIVEN_UP:]]
        return tuple(
            replace(chart, lines=(*chart.lines, *given_up))
            if any(line.name == "loss" for line in chart.lines)
            else chart
            for chart in charts
        )

    def _heat_maps(self) -> Iterator[HeatMap]:
        strip = rank_strip(self._every_rank())
        if strip is not None:
            yield strip
        columns = self._columns
        for prefix, title in LAYERS.items():
            layers = [name for name in columns.names if name.startswith(prefix)]
            if layers:
                rows = (Line(clean(name.removeprefix(prefix)), *columns.series(name)) for name in layers)
                yield HeatMap(title, tuple(rows))

    def _every_rank(self) -> dict[int, RunColumns]:
        for rank in self._log.ranks[:MAX_RANKS]:
            own = self._ranks.setdefault(rank, RunColumns(self._log.folder.root, rank=rank))
            if own is not self._columns:
                own.refresh()
        return self._ranks


def _rank_of(chart: Chart) -> int:
    """Return the position of a chart: the most important first, then the others in order."""
    return FIRST.index(chart.title) if chart.title in FIRST else len(FIRST)
