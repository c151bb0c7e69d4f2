"""`holdfast calibrate LABELS`: refit thresholds and confidences on labelled runs, or compare two threshold sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from holdfast.debug.attribution.labelled import LabelledRun, Score

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command()
    def calibrate(
        labels: Annotated[
            Path, typer.Argument(help="JSON or JSON lines: path, failure (or null), cause.", show_default=False)
        ],
        output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the fitted numbers here.")] = None,
        thresholds: Annotated[
            Path | None, typer.Option("--thresholds", help="Begin from these thresholds (set A).")
        ] = None,
        against: Annotated[
            Path | None, typer.Option("--against", help="Compare with these thresholds (set B); fits nothing.")
        ] = None,
        feedback: Annotated[
            Path | None, typer.Option("--feedback", help="Count verdicts recorded by `holdfast feedback` too.")
        ] = None,
        search: Annotated[
            bool, typer.Option("--search/--no-search", help="Look for better thresholds as well.")
        ] = True,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Refit confidences and thresholds from labelled runs, or compare two threshold sets on them.

        Prints false positives and false negatives of every detector, before and after (or A and B). The fitted file
        holds `thresholds` and `calibration`, which `holdfast.debug` takes as `default_detectors(thresholds)` and
        `AttributionEngine(calibration=…)`.
        """
        from holdfast.debug.attribution.refit import refit

        runs = _read_runs(labels)
        start = _read_thresholds(thresholds)
        if against is not None:
            scores = {"A": _score(runs, start), "B": _score(runs, _read_thresholds(against))}
            _print(scores, {}, as_json=as_json)
            return
        fitted = refit(runs, start=start, search=search)
        raw, mapped = fitted.calibration_errors
        body: dict[str, Any] = {
            "version": 1,
            "thresholds": fitted.thresholds,
            "calibration": fitted.calibration.as_json(),
            "calibration_error": {"before": raw, "after": mapped},
        }
        if feedback is not None:
            body["feedback"] = _count_feedback(feedback)
        if output is not None:
            output.write_text(json.dumps(body, indent=2) + "\n", encoding="utf-8")
        _print({"before": fitted.before, "after": fitted.after}, body, as_json=as_json)


def _read_runs(labels: Path) -> list[LabelledRun]:
    from holdfast.debug import MLSystemsDebugger
    from holdfast.debug.attribution.labelled import LabelledRun, load_labels
    from holdfast.debug.types import DetectionContext
    from holdfast.errors import DebugError

    debugger = MLSystemsDebugger(plugins=False)
    runs: list[LabelledRun] = []
    for label in load_labels(labels):
        logs = debugger.read(str(label.path))
        contexts = [DetectionContext(config=log.config, events=log.events) for log in logs]
        runs.extend(LabelledRun(label, log.signals, context) for log, context in zip(logs, contexts, strict=True))
    if not runs:
        raise DebugError("there is no labelled run", file=str(labels), hint="list at least one path with its failure")
    return runs


def _read_thresholds(path: Path | None) -> dict[str, dict[str, float]]:
    from holdfast.errors import ConfigError

    if path is None:
        return {}
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the thresholds cannot be read: {error}", file=str(path)) from error
    chosen = body.get("thresholds", body) if isinstance(body, dict) else None
    if not isinstance(chosen, dict) or not all(isinstance(options, dict) for options in chosen.values()):
        raise ConfigError("not a set of thresholds", file=str(path), hint='write {"spike": {"minimum_noises": 12}}')
    return chosen


def _score(runs: list[LabelledRun], thresholds: dict[str, dict[str, float]]) -> Score:
    from holdfast.debug.attribution import AttributionEngine
    from holdfast.debug.attribution.labelled import score_runs
    from holdfast.debug.detectors import default_detectors

    return score_runs(runs, default_detectors(thresholds), AttributionEngine())


def _count_feedback(path: Path) -> dict[str, dict[str, int]]:
    """True and false verdicts, and misses, by failure."""
    from holdfast.cli.feedback import read_feedback

    counts: dict[str, dict[str, int]] = {}
    for entry in read_feedback(path):
        row = counts.setdefault(str(entry["failure"]), {"true": 0, "false": 0, "missed": 0})
        row[str(entry["verdict"])] += 1
    return counts


def _print(scores: dict[str, Score], body: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        shown = {
            name: {
                "runs": score.runs,
                "recall": score.recall,
                "false_alarms": score.false_alarms,
                "cause_top1": score.cause_top1,
                "detectors": {
                    detector: {"tp": tally.true_positives, "fp": tally.false_positives, "fn": tally.false_negatives}
                    for detector, tally in score.tallies.items()
                },
            }
            for name, score in scores.items()
        }
        typer.echo(json.dumps({"scores": shown, **body}))
        return
    names = list(scores)
    typer.echo(f"{'':<22}" + "".join(f"{name:>22}" for name in names))
    for title, key in (
        ("runs", "runs"),
        ("recall", "recall"),
        ("false alarms", "false_alarms"),
        ("first cause right", "cause_top1"),
    ):
        typer.echo(f"{title:<22}" + "".join(f"{getattr(scores[name], key):>22.4g}" for name in names))
    for detector in scores[names[0]].tallies:
        rows = [scores[name].tallies[detector] for name in names]
        if any(row.true_positives or row.false_positives or row.false_negatives for row in rows):
            cells = [f"{r.true_positives} right {r.false_positives} false {r.false_negatives} missed" for r in rows]
            typer.echo(f"{detector:<22}" + "".join(f"{cell:>28}" for cell in cells))
    for detector, options in body.get("thresholds", {}).items():
        typer.echo(f"threshold  {detector}: " + ", ".join(f"{name} = {value:g}" for name, value in options.items()))
    if body:
        errors = body["calibration_error"]
        typer.echo(f"calibration error of findings: {errors['before']:.3f} before, {errors['after']:.3f} after")
