"""``MLSystemsDebugger``: from a log, or from metrics in memory, to a report.

Ingestion → routing → detectors (in parallel) → attribution → verdict. Every part can be replaced or extended.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from holdfast.debug.attribution import AttributionEngine
from holdfast.debug.attribution.calibration import Calibration
from holdfast.debug.base import BaseDetector, BaseIngestor, BaseSignalExtractor
from holdfast.debug.compare import compare_runs
from holdfast.debug.fitted import load_calibration, load_thresholds
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.log_ingestor import LogIngestor
from holdfast.debug.ingestion.metric_ingestor import MetricIngestor
from holdfast.debug.ingestion.run_log import RunLog
from holdfast.debug.magnitude import bounded
from holdfast.debug.plugins import load_plugins
from holdfast.debug.routing import Router
from holdfast.debug.tuning import ATTRIBUTION, COMPARE, READING, VERDICT, Tuning
from holdfast.debug.types import (
    DebugReport,
    DetectionContext,
    DetectionResult,
    Finding,
    Reason,
    ReasonCode,
    RunReport,
    Signal,
    Verdict,
)
from holdfast.errors import ConfigError, UnreadableLogError

__all__ = ["MLSystemsDebugger"]

_SURE = 0.5


class MLSystemsDebugger:
    """Diagnoses training runs.

    Args:
        detectors: the detectors to run; all of holdfast's by default.
        attribution: ``"rules"``, ``"learned"``, or an engine.
        limits: limits on reading a log.
        workers: number of threads that run the detectors.
        plugins: whether installed plug-ins (entry points of the group ``holdfast.debug``) are used.
        calibration: tables fitted on your own runs: a file written by ``holdfast calibrate``, or the tables themselves.
        thresholds: a file written by ``holdfast calibrate``, or detector, ``attribution`` or ``verdict`` → option →
            value.

    Raises:
        ConfigError: a file is invalid, an option does not exist, or two arguments contradict each other.

    Example:
        >>> report = MLSystemsDebugger().debug([{"step": n, "loss": 5.0 / (n + 1)} for n in range(200)])
        >>> report.verdict.value
        'healthy'
    """

    def __init__(
        self,
        *,
        detectors: Sequence[BaseDetector] | None = None,
        attribution: str | AttributionEngine = "rules",
        limits: Limits | None = None,
        workers: int | None = None,
        plugins: bool = True,
        calibration: Calibration | str | Path | None = None,
        thresholds: Mapping[str, Mapping[str, float]] | str | Path | None = None,
    ) -> None:
        self._ingestors: list[BaseIngestor] = []
        self._extractors: list[BaseSignalExtractor] = []
        chosen = load_thresholds(Path(thresholds)) if isinstance(thresholds, (str, Path)) else dict(thresholds or {})
        self._tuning = Tuning.of(chosen)
        if limits is not None and READING in chosen:
            raise ConfigError("your own limits have their own thresholds", hint="pass limits or thresholds")
        self._limits = limits or self._tuning.reading
        self._logs = LogIngestor(self._limits)
        self._metrics = MetricIngestor(limits=self._limits)
        own = _detectors(detectors, chosen)
        self._detectors = list(self._tuning.detectors) if own is None else own
        self._engine = _engine(attribution, calibration, chosen) or AttributionEngine(
            method=str(attribution), calibration=_tables(calibration), rule=self._tuning.attribution
        )
        self._workers = workers or min(8, os.cpu_count() or 1)
        self._notes: list[str] = []
        self._router: Router | None = None
        if plugins:
            self._add_plugins()

    def _add_plugins(self) -> None:
        parts, self._notes = load_plugins()
        for part in parts:
            if isinstance(part, BaseIngestor):
                self.add_ingestor(part)
            elif isinstance(part, BaseSignalExtractor):
                self.add_signal_extractor(part)
            else:
                self.add_detector(part)

    def __repr__(self) -> str:
        return f"holdfast.MLSystemsDebugger({len(self._detectors)} detectors)"

    @property
    def detectors(self) -> tuple[BaseDetector, ...]:
        """The detectors, in the order they were added."""
        return tuple(self._detectors)

    def add_ingestor(self, ingestor: BaseIngestor) -> None:
        """Try this ingestor before the built-in ones."""
        self._ingestors.append(_checked(ingestor, BaseIngestor))

    def add_signal_extractor(self, extractor: BaseSignalExtractor) -> None:
        """Use this extractor for sources that are neither logs nor tables of metrics."""
        self._extractors.append(_checked(extractor, BaseSignalExtractor))

    def add_detector(self, detector: BaseDetector) -> None:
        """Add a detector.

        Raises:
            ConfigError: a detector of that name has already been added.
        """
        _checked(detector, BaseDetector)
        if any(other.name == detector.name for other in self._detectors):
            raise ConfigError(
                "two detectors have the same name", hint="give the new one its own name", detector=detector.name
            )
        self._detectors.append(detector)
        self._router = None

    def debug(self, source: Any, *, compare: Any = None) -> DebugReport:
        """Diagnose every run in ``source``.

        Args:
            source: a path, several paths, a URL, the text of a log, or metrics in memory (see ``MetricIngestor``).
            compare: a source with a run known to be healthy.

        Raises:
            UnreadableLogError: nothing in the source could be read.
        """
        runs = tuple(self.diagnose(log) for log in self.read(source))
        if compare is not None:
            healthy = self.diagnose(self.read(compare)[0])
            runs = tuple(self.compare(run, healthy) for run in runs)
        return DebugReport(runs)

    def compare(self, run: RunReport, healthy: RunReport) -> RunReport:
        """Return the report on ``run``, compared with the report on a run that went well."""
        return compare_runs(run, healthy, rule=self._tuning.verdict, compare=self._tuning.compare)

    def read(self, source: Any, *, progress: Callable[[int], None] | None = None) -> list[RunLog]:
        """Read every run in the source without running detectors.

        ``progress`` is called with the number of bytes read.
        """
        if isinstance(source, RunLog):
            return [source]
        if isinstance(source, (list, tuple)) and source:
            if all(isinstance(item, Signal) for item in source):
                return [RunLog("memory", "signals", tuple(source))]
            if all(isinstance(item, RunLog) for item in source):
                return list(source)
            if all(isinstance(item, (str, Path)) for item in source):
                return [log for item in source for log in self.read(item, progress=progress)]
        for ingestor in self._ingestors:
            if ingestor.can_ingest(source) >= _SURE:
                where = str(source) if isinstance(source, (str, Path)) else "memory"
                return [RunLog(where, ingestor.name, tuple(ingestor.ingest(source)))]
        if isinstance(source, (str, os.PathLike)):
            return self._logs.read(source, progress=progress)
        extracted = tuple(signal for extractor in self._extractors for signal in extractor.extract(source))
        if extracted:
            return [RunLog("memory", "extracted", extracted)]
        if self._metrics.can_ingest(source) < _SURE:
            raise UnreadableLogError(
                f"cannot read metrics from an object of type {type(source).__name__}",
                hint="pass a path, records, columns, a DataFrame, or add a signal extractor for it",
            )
        return [RunLog("memory", "metrics", tuple(self._metrics.ingest(source)))]

    def has_own_ingestor(self, path: Path) -> bool:
        """Return whether an added ingestor, and no built-in one, reads this path."""
        return any(ingestor.can_ingest(path) >= _SURE for ingestor in self._ingestors)

    def diagnose(self, log: RunLog, *, live: bool = False) -> RunReport:
        """Run the detectors over one run and attribute causes to what they found."""
        world_size = log.config.get("world_size")
        context = DetectionContext(
            config=log.config,
            events=log.events,
            world_size=world_size if isinstance(world_size, int) else None,
            live=live,
            last_step=max((float(signal.steps[-1]) for signal in log.signals if len(signal.steps)), default=None),
            source=Path(log.path).stem,
        )
        signals = bounded(log.signals)
        results, failed = self._detect(signals, context)
        findings = self._engine.explain(results, signals, context)
        verdict, reason = self._tuning.verdict.judge(findings, signals, log.coverage)
        if failed and verdict is Verdict.HEALTHY:
            verdict, reason = Verdict.UNKNOWN, Reason(ReasonCode.DETECTOR_FAILED, "a detector failed")
        notes = (*failed, *log.notes, *self._notes)
        return RunReport(
            log.path, log.format, verdict, findings, signals, notes, log.config, reason, log.coverage, log.part
        )

    def ask(self, names: Collection[str], signals: Sequence[Signal]) -> tuple[Finding, ...]:
        """Run only the detectors with these names: a quick check of a live run."""
        context = DetectionContext(live=True)
        signals = bounded(signals)
        asked = [detector for detector in self._detectors if detector.name in names]
        results = [detector.detect(signals, context) for detector in asked]
        return self._engine.explain(results, signals, context)

    def _detect(self, signals: Sequence[Signal], context: DetectionContext) -> tuple[list[DetectionResult], list[str]]:
        if self._router is None:
            self._router = Router(self._detectors)
        routed = self._router.route(signals)
        if len(routed) <= 1 or self._workers == 1:
            outcomes = [_run(detector, own, context) for detector, own in routed]
        else:
            with ThreadPoolExecutor(self._workers, thread_name_prefix="holdfast-detector") as pool:
                outcomes = list(pool.map(lambda pair: _run(pair[0], pair[1], context), routed))
        results = [outcome for outcome in outcomes if isinstance(outcome, DetectionResult)]
        return results, [outcome for outcome in outcomes if isinstance(outcome, str)]


def _detectors(
    detectors: Sequence[BaseDetector] | None, thresholds: Mapping[str, Mapping[str, float]]
) -> list[BaseDetector] | None:
    """Return the caller's detectors, if any."""
    if detectors is not None and set(thresholds) - {ATTRIBUTION, VERDICT, COMPARE, READING}:
        raise ConfigError("your own detectors have their own thresholds", hint="pass detectors or thresholds")
    return None if detectors is None else list(detectors)


def _engine(
    attribution: str | AttributionEngine,
    calibration: Calibration | str | Path | None,
    thresholds: Mapping[str, Mapping[str, float]],
) -> AttributionEngine | None:
    """Return the caller's engine, if any."""
    if not isinstance(attribution, AttributionEngine):
        return None
    if calibration is not None:
        raise ConfigError("your own engine has its own calibration", hint="pass an engine or a calibration")
    if ATTRIBUTION in thresholds:
        raise ConfigError("your own engine has its own thresholds", hint="pass an engine or thresholds")
    return attribution


def _tables(calibration: Calibration | str | Path | None) -> Calibration | None:
    return load_calibration(Path(calibration)) if isinstance(calibration, (str, Path)) else calibration


def _run(detector: BaseDetector, signals: tuple[Signal, ...], context: DetectionContext) -> DetectionResult | str:
    try:
        return detector.detect(signals, context)
    except Exception as error:  # A broken detector must not discard the findings of the others.
        return f"the detector {detector.name!r} failed ({type(error).__name__}: {error}); the report does not cover it"


def _checked(part: Any, kind: type) -> Any:
    if not isinstance(part, kind):
        raise ConfigError(
            f"expected a {kind.__name__}, got a {type(part).__name__}", hint=f"subclass holdfast.debug.{kind.__name__}"
        )
    return part
