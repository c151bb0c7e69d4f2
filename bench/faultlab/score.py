"""Reads the lab's logs back as any user's, runs the debugger on them and holds what it says against the labels."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.debug.attribution import AttributionEngine, Calibration, expected_calibration_error
from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors import default_detectors
from holdfast.debug.ingestion.detection import read_file
from holdfast.debug.ingestion.run_log import RunLog, merge_run_logs
from holdfast.debug.types import DetectionContext, DetectionResult, Finding

__all__ = [
    "Case",
    "Outcome",
    "figures_of",
    "judge",
    "lab_figures",
    "load_cases",
    "main",
    "onset_errors",
    "print_outcomes",
]


@dataclass(frozen=True, slots=True)
class Case:
    """One labelled run, read back from its log."""

    name: str
    spec: dict[str, Any]
    label: dict[str, Any]
    log: RunLog
    results: tuple[DetectionResult, ...]

    @property
    def context(self) -> DetectionContext:
        """What the detectors and the engine may know besides the signals."""
        return DetectionContext(config=self.log.config, events=self.log.events)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the debugger said of a case."""

    case: Case
    findings: tuple[Finding, ...]

    @property
    def named(self) -> str:
        """The failure of the worst finding, or healthy."""
        return self.findings[0].detection.failure.name if self.findings else "healthy"

    @property
    def right(self) -> bool:
        """Whether a finding has one of the names the label accepts (or there is none, for a healthy run)."""
        if self.case.label["failure"] is None:
            return not self.findings
        return any(finding.detection.failure.name in self.case.label["accepted"] for finding in self.findings)

    def cause_rank(self) -> int | None:
        """The place of the true cause among those given for the worst finding, from 0; None when it is not there."""
        causes = [cause.cause for cause in self.findings[0].causes] if self.findings else []
        return causes.index(self.case.label["cause"]) if self.case.label["cause"] in causes else None


def load_cases(folder: Path, half: str, *, detectors: Sequence[BaseDetector] | None = None) -> list[Case]:
    """Read every scored run of one half and run the detectors on it."""
    chosen = list(detectors or default_detectors())
    cases: list[Case] = []
    for path in sorted(folder.glob("*/label.json")):
        facts = json.loads(path.read_text())
        if facts["spec"]["half"] != half or not facts["label"]["scored"]:
            continue
        log = _read(path.parent / facts["log"])
        context = DetectionContext(config=log.config, events=log.events)
        results = []
        for detector in chosen:
            own = [signal for signal in log.signals if signal.kind in detector.get_required_signals()]
            if own:
                results.append(detector.detect(own, context))
        cases.append(Case(path.parent.name, facts["spec"], facts["label"], log, tuple(results)))
    return cases


def _read(path: Path) -> RunLog:
    if path.is_dir():
        return merge_run_logs(str(path), [read_file(file) for file in sorted(path.iterdir())])
    return read_file(path)


def judge(cases: Sequence[Case], engine: AttributionEngine) -> list[Outcome]:
    """Explain every case."""
    return [Outcome(case, engine.explain(case.results, case.log.signals, case.context)) for case in cases]


def figures_of(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The figures the lab is judged by."""
    faulty = [outcome for outcome in outcomes if outcome.case.label["failure"] is not None]
    healthy = [outcome for outcome in outcomes if outcome.case.label["failure"] is None]
    ranks = [outcome.cause_rank() for outcome in faulty]
    claims = [
        (o.findings[0].causes[0].confidence, o.cause_rank() == 0) for o in faulty if o.findings and o.findings[0].causes
    ]
    found = [(o.findings[0].detection.confidence, o.right) for o in outcomes if o.findings]
    return {
        "runs": float(len(outcomes)),
        "faulty_runs": float(len(faulty)),
        "healthy_runs": float(len(healthy)),
        "recall": sum(outcome.right for outcome in faulty) / max(len(faulty), 1),
        "exact_class": sum(outcome.named == outcome.case.label["failure"] for outcome in faulty) / max(len(faulty), 1),
        "false_alarms": sum(not outcome.right for outcome in healthy) / max(len(healthy), 1),
        "cause_top1": sum(rank == 0 for rank in ranks) / max(len(faulty), 1),
        "cause_top3": sum(rank is not None and rank < 3 for rank in ranks) / max(len(faulty), 1),
        "cause_ece": expected_calibration_error([c for c, _ in claims], [r for _, r in claims]),
        "finding_ece": expected_calibration_error([c for c, _ in found], [r for _, r in found]),
    }


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print the confusion matrix, every miss and every wrong cause."""
    table = Counter((o.case.label["failure"] or "healthy", o.named) for o in outcomes)
    truths = sorted({truth for truth, _ in table})
    names = sorted({named for _, named in table})
    print("\nlabel (down) against the name of the worst finding (across)")
    print(" " * 20 + "".join(f"{name[:11]:>12}" for name in names))
    for truth in truths:
        print(f"{truth:<20}" + "".join(f"{table[truth, name] or '·':>12}" for name in names))
    print("\nmisses")
    for outcome in outcomes:
        if not outcome.right:
            spec, label = outcome.case.spec, outcome.case.label
            print(
                f"  {outcome.case.name} ({spec['family']}, {spec['log_format']}): {label['failure'] or 'healthy'} "
                f"({label['why']}), named {[f.detection.failure.name for f in outcome.findings] or 'healthy'}"
            )
    print("\nwrong first cause")
    for outcome in outcomes:
        if outcome.case.label["failure"] is not None and outcome.findings and outcome.cause_rank() != 0:
            causes = [f"{cause.cause} {cause.confidence:.2f}" for cause in outcome.findings[0].causes[:3]]
            print(
                f"  {outcome.case.name} ({outcome.case.spec['family']}): {outcome.case.label['cause']}, "
                f"said {outcome.named}: {', '.join(causes)}"
            )


def lab_figures(folder: Path, half: str, *, show: bool = False) -> dict[str, float]:
    """Score one half with the rules and with the learned ranker."""
    cases = load_cases(folder, half)
    engines = {
        "rules": AttributionEngine(method="rules"),
        "learned": AttributionEngine(method="learned"),
        "uncalibrated": AttributionEngine(method="rules", calibration=Calibration()),
    }
    judged = {name: judge(cases, engine) for name, engine in engines.items()}
    if show:
        print_outcomes(judged["rules"])
        print()
    figures = {f"{half}_{key}": value for key, value in figures_of(judged["rules"]).items()}
    errors = onset_errors(judged["rules"], folder)
    if errors:
        figures[f"{half}_onset_error_steps"] = statistics.median(error for error, _ in errors)
        figures[f"{half}_onset_error_share"] = statistics.median(error / steps for error, steps in errors)
        figures[f"{half}_onsets"] = float(len(errors))
    learned = figures_of(judged["learned"])
    figures |= {f"{half}_learned_{key}": learned[key] for key in ("cause_top1", "cause_top3", "cause_ece")}
    figures[f"{half}_cause_ece_uncalibrated"] = figures_of(judged["uncalibrated"])["cause_ece"]
    return figures


def onset_errors(outcomes: Sequence[Outcome], folder: Path) -> list[tuple[int, int]]:
    """How far off, in steps, the onset of a finding is, and how long the run was, where a fault has a known moment.

    That is the first step whose loss differs from the twin's for a stretch of bad data, and the first that is not
    finite for numbers that are lost.
    """
    errors: list[tuple[int, int]] = []
    for outcome in outcomes:
        named = [f.detection for f in outcome.findings if f.detection.failure.name in outcome.case.label["accepted"]]
        true = _true_onset(outcome.case, folder)
        if true is not None and named and named[0].first_step is not None:
            errors.append((abs(round(named[0].first_step) - true), int(outcome.case.spec["steps"])))
    return errors


def _true_onset(case: Case, folder: Path) -> int | None:
    if case.spec["cause"] == "bad_data_window":
        good, bad = (_recorded_loss(folder / name) for name in (f"{case.name}-twin", case.name))
        return next((step for step, pair in enumerate(zip(good, bad, strict=False)) if pair[0] != pair[1]), None)
    if case.label["failure"] == "nan":
        return next(
            (step for step, loss in enumerate(_recorded_loss(folder / case.name)) if not math.isfinite(loss)), None
        )
    return None


def _recorded_loss(run: Path) -> list[float]:
    series = json.loads((run / "record.json").read_text())["series"]
    return list(series["loss"]["values"]) if "loss" in series else []


def main(folder: Path, *, half: str, as_json: bool, foreign: Sequence[Path] = ()) -> None:
    """Print how the debugger does on one half, and on public logs where their folders are given."""
    figures = lab_figures(folder, half, show=not as_json)
    if foreign:
        from bench.faultlab.foreign import foreign_figures

        figures |= foreign_figures(foreign)
    if as_json:
        print(json.dumps({"figures": figures, "about": {"half": half}}))
        return
    for name, value in sorted(figures.items()):
        print(f"{name:<36}{value:10.4f}")
