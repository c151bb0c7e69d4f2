"""Public logs nobody made for this project: what is known of them, and how the debugger does on them.

``bench/foreign_labels.jsonl`` holds their paths below folders of your own (owner+repository/file for those that were
drawn at random) and what a person saw in each; the logs themselves are not part of the project.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from holdfast.debug import MLSystemsDebugger
from holdfast.debug.attribution import AttributionEngine, expected_calibration_error
from holdfast.debug.attribution.labelled import LabelledRun, load_labels, score_runs
from holdfast.debug.detectors import default_detectors
from holdfast.debug.types import DetectionContext
from holdfast.errors import UnreadableLogError

__all__ = ["foreign_figures", "foreign_runs"]

LABELS = Path(__file__).resolve().parent.parent / "foreign_labels.jsonl"


def foreign_runs(folders: Sequence[Path]) -> list[LabelledRun]:
    """Every run of the labelled logs that are in one of the folders."""
    debugger = MLSystemsDebugger(plugins=False)
    runs: list[LabelledRun] = []
    for label in load_labels(LABELS):
        own = label.path.relative_to(LABELS.parent)
        path = next((folder / own for folder in folders if (folder / own).exists()), None)
        try:
            logs = [] if path is None else debugger.read(str(path))
        except UnreadableLogError:
            logs = []  # How many files are not read is another figure.
        contexts = [DetectionContext(config=log.config, events=log.events) for log in logs]
        runs += [LabelledRun(label, log.signals, context) for log, context in zip(logs, contexts, strict=True)]
    return runs


def foreign_figures(folders: Sequence[Path]) -> dict[str, float]:
    """Failures named, false alarms and calibration on the labelled logs, run by run."""
    runs = foreign_runs(folders)
    score = score_runs(runs, default_detectors(), AttributionEngine())
    found, causes = score.claims, score.cause_claims
    # A crash quotes its cause, so these claims are easy: the others are given by themselves as well.
    others = [run for run in runs if run.label.failure != "crash"]
    told = score_runs(others, default_detectors(), AttributionEngine()).cause_claims
    return {
        "foreign_runs": float(score.runs),
        "foreign_recall": score.recall,
        "foreign_false_alarms": score.false_alarms,
        "foreign_findings": float(len(found)),
        "foreign_finding_ece": expected_calibration_error([sure for sure, _ in found], [hit for _, hit in found]),
        "foreign_cause_claims": float(len(causes)),
        "foreign_cause_ece": expected_calibration_error([sure for sure, _ in causes], [hit for _, hit in causes]),
        "foreign_cause_top1": score.cause_top1,
        "foreign_cause_claims_no_crash": float(len(told)),
        "foreign_cause_ece_no_crash": expected_calibration_error([sure for sure, _ in told], [hit for _, hit in told]),
    }
