"""Public logs nobody made for this project: what is known of them, and how the debugger does on them.

``bench/foreign_labels.jsonl`` holds their paths below a folder of your own and what a person saw in each; the logs
themselves are not part of the project.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.debug import MLSystemsDebugger
from holdfast.debug.attribution import AttributionEngine, expected_calibration_error
from holdfast.debug.attribution.labelled import LabelledRun, load_labels, score_runs
from holdfast.debug.detectors import default_detectors
from holdfast.debug.types import DetectionContext

__all__ = ["foreign_figures", "foreign_runs"]

LABELS = Path(__file__).resolve().parent.parent / "foreign_labels.jsonl"


def foreign_runs(folder: Path) -> list[LabelledRun]:
    """Every run of the labelled logs that are in the folder."""
    debugger = MLSystemsDebugger(plugins=False)
    runs: list[LabelledRun] = []
    for label in load_labels(LABELS):
        path = folder / label.path.relative_to(LABELS.parent)
        logs = debugger.read(str(path)) if path.exists() else []
        contexts = [DetectionContext(config=log.config, events=log.events) for log in logs]
        runs += [LabelledRun(label, log.signals, context) for log, context in zip(logs, contexts, strict=True)]
    return runs


def foreign_figures(folder: Path) -> dict[str, float]:
    """Failures named, false alarms and calibration on the labelled logs, run by run."""
    score = score_runs(foreign_runs(folder), default_detectors(), AttributionEngine())
    found, causes = score.claims, score.cause_claims
    return {
        "foreign_runs": float(score.runs),
        "foreign_recall": score.recall,
        "foreign_false_alarms": score.false_alarms,
        "foreign_findings": float(len(found)),
        "foreign_finding_ece": expected_calibration_error([sure for sure, _ in found], [hit for _, hit in found]),
        "foreign_cause_claims": float(len(causes)),
        "foreign_cause_ece": expected_calibration_error([sure for sure, _ in causes], [hit for _, hit in causes]),
        "foreign_cause_top1": score.cause_top1,
    }
