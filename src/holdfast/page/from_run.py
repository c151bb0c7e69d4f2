"""The page of a run of holdfast's own, from its log: live while it runs, and afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.debug import MLSystemsDebugger
from holdfast.debug.ingestion.names import meaning_of
from holdfast.debug.ingestion.run_log import RunLog as ReadLog
from holdfast.debug.reporting.words import clean, remarks
from holdfast.debug.types import RunReport, Signal, Verdict
from holdfast.page.from_report import charts_of, flag_of, lead_of
from holdfast.page.good_run import config_difference, last_good_run
from holdfast.page.model import Bucket, Chart, Event, Flag, HeatMap, Line, Page
from holdfast.page.run_flags import recorded_flag, with_investigations
from holdfast.page.sources import is_of_source, source_charts, sources_of
from holdfast.run import RunLog
from holdfast.run.buckets import TIME_FIELDS
from holdfast.run.columns import RunColumns
from holdfast.run.investigations import read_investigations

__all__ = ["RunFeed", "page_of_run"]

LAYERS = {"grad_norm/": "Gradient norm by layer", "weight_norm/": "Weight norm by layer"}
NOT_SERIES = frozenset(("at", *TIME_FIELDS.values())) - {"step_time", "data_time"}
NOT_SHOWN = frozenset(("finding", "rolled_back", "stream", "metrics", "alert_sent"))
"""Events that are not something that happened to the run at a step, or are shown elsewhere."""
MAX_GIVEN_UP = 8
"""Branches that were given up and are still drawn, the newest first."""
MAX_HEAT_COLUMNS = 400
MAX_RANKS = 64
"""Ranks whose step times are shown side by side."""
LOOK_SECONDS = 20.0
"""How often the detectors look at a run that is still going, at most."""


def page_of_run(folder: str | Path) -> Page:
    """Return the page of a run's folder as it stands."""
    return RunFeed(Path(folder)).page()


class RunFeed:
    """A run's folder, read as little as possible at every look.

    Args:
        folder: the run's folder.
        name: what it is called; the folder's path by default.
        wait: let the first look wait for the detectors; else they look in the background, and the page says so.

    Raises:
        RunFolderError: it is not the folder of a run.
    """

    def __init__(self, folder: Path, *, name: str | None = None, wait: bool = True) -> None:
        self._wait = wait
        self._looking: threading.Thread | None = None
        self._log = RunLog(folder)
        self._name = name or str(folder)
        self._columns = RunColumns(folder)
        self._ranks = {0: self._columns}
        self._lock = threading.Lock()
        self._changes = 0
        self._report: RunReport | None = None
        self._looked_at = (-float("inf"), -1)
        self._looks = 0
        self._difference: tuple[str, tuple[tuple[str, str, str], ...]] | None = None

    @property
    def name(self) -> str:
        """What the run is called."""
        return self._name

    def version(self) -> str:
        """Return a text that changes whenever the log has grown."""
        with self._lock:
            self._changes += self._columns.refresh()
            return f"{self._changes}.{self._looks}"

    def page(self) -> Page:
        """Return the page as of now."""
        with self._lock:
            self._changes += self._columns.refresh()
            signals = self._signals()
            report = self._diagnosed(signals)
            return self._page(signals, report)

    def _diagnosed(self, signals: tuple[Signal, ...]) -> RunReport:
        """Let the detectors look again, if the log has grown and the last look was some time ago."""
        when, changes = self._looked_at
        if self._report is None or (changes != self._changes and time.monotonic() - when >= LOOK_SECONDS):
            log = ReadLog(path=self._name, format="holdfast", signals=signals, config=self._config())
            if self._wait:
                self._look(log, self._changes)
            elif self._looking is None or not self._looking.is_alive():
                self._looking = threading.Thread(target=self._look, args=(log, self._changes), daemon=True)
                self._looking.start()
        return self._report or RunReport(self._name, "holdfast", Verdict.UNKNOWN, (), signals)

    def _look(self, log: ReadLog, changes: int) -> None:
        report = MLSystemsDebugger().diagnose(log)
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
        overcome = _rolled_back_to(columns)
        serious = overcome is None and any(flag.severity in ("warning", "critical") for flag in flags)
        steps = max((int(signal.steps[-1]) + 1 for signal in signals), default=0)
        environment = columns.headers[-1].get("environment") or {} if columns.headers else {}
        worst = next((flag for flag in flags if flag.onset is not None), None)
        lead = lead_of(report) if self._report is not None else "The detectors are looking at the run."
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
            events=tuple(_events(columns)),
            goodput=tuple(Bucket(name, seconds) for name, seconds in columns.goodput.seconds.items() if seconds),
            heat_maps=tuple(self._heat_maps()),
            command=worst.command if serious and worst else "",
            notes=tuple(clean(note) for note in remarks(report)),
            config={clean(name): clean(value) for name, value in self._config().items()},
            changed=self._changed(),
            compared_with=clean(self._difference[0]) if self._difference else "",
            environment={clean(name): clean(value) for name, value in environment.items()},
        )

    def _flags(self, report: RunReport) -> tuple[Flag, ...]:
        recorded = tuple(recorded_flag(event) for event in self._columns.events if event["event"] == "finding")
        seen = {flag.title for flag in recorded}
        flags = (*recorded, *(flag for flag in map(flag_of, report.findings) if flag.title not in seen))
        investigations = read_investigations(self._log.folder.root)
        return tuple(with_investigations(flag, investigations, self._name) for flag in flags)

    def _changed(self) -> tuple[tuple[str, str, str], ...]:
        """Return what differs from the last good run beside this one; looked up once."""
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
        charts = (*charts, *source_charts(self._columns, signals))
        given_up = [Line("given up", *branch, faded=True) for branch in self._columns.given_up[-MAX_GIVEN_UP:]]
        return tuple(
            replace(chart, lines=(*chart.lines, *given_up))
            if any(line.name == "loss" for line in chart.lines)
            else chart
            for chart in charts
        )

    def _heat_maps(self) -> Iterator[HeatMap]:
        columns = self._columns
        for prefix, title in LAYERS.items():
            layers = [name for name in columns.names if name.startswith(prefix)]
            if layers:
                yield _heat_map(title, {name.removeprefix(prefix): columns.series(name) for name in layers})
        ranks = self._log.ranks[:MAX_RANKS]
        if len(ranks) > 1:
            rows = {}
            for rank in ranks:
                own = self._ranks.setdefault(rank, RunColumns(self._log.folder.root, rank=rank))
                own.refresh()
                rows[f"rank {rank}"] = own.series("step_time")
            yield _heat_map("Step time by rank", rows)


def _heat_map(title: str, rows: dict[str, tuple[Any, Any]]) -> HeatMap:
    """Return series side by side, each column the largest value of its stretch of steps."""
    every = np.unique(np.concatenate([steps for steps, _ in rows.values()]))
    edges = every[:: max(1, -(-len(every) // MAX_HEAT_COLUMNS))]
    values = np.full((len(rows), len(edges)), np.nan)
    for row, (steps, numbers) in enumerate(rows.values()):
        places = np.searchsorted(edges, steps, side="right") - 1
        filled = np.full(len(edges), -np.inf)
        np.maximum.at(filled, places, numbers)
        values[row] = np.where(np.isneginf(filled), np.nan, filled)
    return HeatMap(title, tuple(map(clean, rows)), edges, values)


def _events(columns: RunColumns) -> Iterator[Event]:
    sizes = {header["attempt"]: header.get("world_size") for header in columns.headers}
    for record in columns.events:
        kind, step = record["event"], record.get("step")
        if not isinstance(step, int) or kind in NOT_SHOWN:
            continue
        attempt = record["attempt"]
        if kind == "start":
            if attempt == 1:
                continue
            before, now = sizes.get(attempt - 1), sizes.get(attempt)
            resized = f", {before} → {now} ranks" if before and now and before != now else ""
            text = f"attempt {attempt}, from {record.get('checkpoint') or 'the beginning'}{resized}"
            yield Event(step, "resize" if resized else "restart", clean(text))
        else:
            left = {"event", "step", "at", "chain", "attempt"}
            shown = {name: value for name, value in record.items() if name not in left and not name.endswith("_time")}
            yield Event(step, clean(kind), clean(", ".join(f"{name} {value}" for name, value in shown.items())))


def _rolled_back_to(columns: RunColumns) -> int | None:
    """Return where the run went back to, if it did so after the last finding that matters."""
    step: int | None = None
    for record in columns.events:
        if record["event"] == "rolled_back":
            step = record["step"]
        elif record["event"] == "finding" and record.get("severity") in ("warning", "critical"):
            step = None
    return step
