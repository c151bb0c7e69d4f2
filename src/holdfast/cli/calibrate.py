"""``holdfast calibrate LABELS``: refit thresholds and confidences on labelled runs and recorded verdicts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.console import working
from holdfast.cli.help import Command, examples
from holdfast.cli.json_text import print_json
from holdfast.cli.paths import existing_file
from holdfast.cli.write_whole import write_whole

if TYPE_CHECKING:
    from holdfast.debug.attribution.calibration import Calibration
    from holdfast.debug.attribution.labelled import LabelledRun, Score

__all__ = ["register"]

EXAMPLES = examples(
    "holdfast calibrate labels.jsonl --output fitted.json",
    "holdfast calibrate labels.jsonl --thresholds old.json --against fitted.json",
    "holdfast calibrate --feedback holdfast-feedback.jsonl --output fitted.json",
)

Claims = list[tuple[float, bool]]


def register(app: typer.Typer) -> None:
    """Add the command to the command line."""

    @app.command(cls=Command, epilog=EXAMPLES)
    def calibrate(
        labels: Annotated[
            Path | None,
            typer.Argument(
                metavar="LABELS", callback=existing_file, help="JSON or JSON lines: path, failure (or null), cause."
            ),
        ] = None,
        output: Annotated[Path | None, typer.Option("--output", "-o", help="Write the fitted numbers here.")] = None,
        thresholds: Annotated[
            Path | None,
            typer.Option("--thresholds", callback=existing_file, help="Start from these thresholds (set A)."),
        ] = None,
        against: Annotated[
            Path | None,
            typer.Option(
                "--against", callback=existing_file, help="Compare with these thresholds (set B); fits nothing."
            ),
        ] = None,
        feedback: Annotated[
            Path | None,
            typer.Option(
                "--feedback", callback=existing_file, help="Also fit on verdicts recorded by `holdfast feedback`."
            ),
        ] = None,
        calibration: Annotated[
            Path | None,
            typer.Option(
                "--calibration",
                callback=existing_file,
                help="The calibration used for the reports that the verdicts are about.",
            ),
        ] = None,
        search: Annotated[bool, typer.Option("--search/--no-search", help="Also search for better thresholds.")] = True,
        as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    ) -> None:
        """Refit confidences and thresholds from labelled runs and recorded verdicts, or compare two threshold sets.

        Prints the false positives and false negatives of every detector, before and after (or for A and B). Pass the
        fitted file to `holdfast debug --calibration FILE --thresholds FILE`.
        """
        from holdfast.debug.attribution.calibration import Calibration
        from holdfast.debug.fitted import Fitted, load_calibration, load_thresholds
        from holdfast.debug.refit import refit
        from holdfast.errors import ConfigError

        if labels is None and (feedback is None or against is not None):
            raise ConfigError("there is nothing to fit on", hint="pass LABELS, --feedback FILE, or both")
        start = {} if thresholds is None else load_thresholds(thresholds)
        with working("reading the runs"):
            runs = [] if labels is None else _read_runs(labels, start)
        if against is not None:
            _print({"A": _score(runs, start), "B": _score(runs, load_thresholds(against))}, {}, as_json=as_json)
            return
        base = Calibration.load() if calibration is None else load_calibration(calibration)
        verdicts = [] if feedback is None else _read_feedback(feedback)
        claims, cause_claims = _claims(verdicts, base)
        scores: dict[str, Score] = {}
        chosen = start
        if runs:
            with working("fitting"):
                fitted = refit(runs, start=start, search=search)
            scores = {"before": fitted.before, "after": fitted.after}
            chosen = fitted.thresholds
            claims += fitted.after.claims
            cause_claims += fitted.after.cause_claims
        tables, errors = _fit(base, claims, cause_claims)
        sources = _by_source(runs, chosen, tables)
        about = {
            "sources": sources,
            "runs": len(runs),
            "claims": len(claims),
            "feedback": _count(verdicts),
            "calibration_error": errors,
        }
        body = Fitted(thresholds=chosen, calibration=tables, about=about).as_json()
        if output is not None:
            write_whole(output, json.dumps(body, indent=2) + "\n")
        _print(scores, body, as_json=as_json)


def _by_source(
    runs: list[LabelledRun], thresholds: dict[str, dict[str, float]], tables: Calibration
) -> dict[str, dict[str, float]]:
    """Return the error of the fitted confidences for each source that the labels name."""
    from holdfast.debug.attribution import AttributionEngine, expected_calibration_error
    from holdfast.debug.attribution.labelled import score_runs
    from holdfast.debug.tuning import Tuning

    tuned = Tuning.of(thresholds)
    engine = AttributionEngine(calibration=tables, rule=tuned.attribution)
    found: dict[str, dict[str, float]] = {}
    for source in sorted({run.label.source for run in runs if run.label.source}):
        own = [run for run in runs if run.label.source == source]
        score = score_runs(own, tuned.detectors, engine)
        found[source] = {
            name: expected_calibration_error([sure for sure, _ in claims], [hit for _, hit in claims])
            for name, claims in (("findings", score.claims), ("causes", score.cause_claims))
        }
    return found


def _fit(base: Calibration, claims: Claims, cause_claims: Claims) -> tuple[Calibration, dict[str, float]]:
    """Return the tables, refitted if there are enough claims, and the errors of the confidences before and after."""
    from holdfast.debug.attribution.calibration import expected_calibration_error, fit_table
    from holdfast.debug.refit import MIN_CLAIMS

    tables = base
    raw, right = [claim for claim, _ in claims], [hit for _, hit in claims]
    if len(claims) >= MIN_CLAIMS:
        tables = replace(tables, findings=fit_table(raw, right))
    if len(cause_claims) >= MIN_CLAIMS:
        table = fit_table([claim for claim, _ in cause_claims], [hit for _, hit in cause_claims])
        tables = replace(tables, causes=table)
    return tables, {
        "before": expected_calibration_error([base.finding(claim) for claim in raw], right),
        "after": expected_calibration_error([tables.finding(claim) for claim in raw], right),
    }


def _claims(verdicts: list[dict[str, Any]], base: Calibration) -> tuple[Claims, Claims]:
    """Return the reports' claims by raw confidence, and whether each was true; a missed failure is not a claim."""
    claims: Claims = []
    causes: Claims = []
    for entry in verdicts:
        sure, cause_sure = entry.get("confidence"), entry.get("claimed_cause_confidence")
        if entry["verdict"] != "missed" and isinstance(sure, (int, float)):
            claims.append((base.raw_finding(float(sure)), entry["verdict"] == "true"))
        if entry.get("cause") and isinstance(cause_sure, (int, float)):
            causes.append((base.raw_cause(float(cause_sure)), entry["cause"] == entry.get("claimed_cause")))
    return claims, causes


def _read_runs(labels: Path, thresholds: dict[str, dict[str, float]]) -> list[LabelledRun]:
    from holdfast.debug import MLSystemsDebugger
    from holdfast.debug.attribution.labelled import LabelledRun, load_labels
    from holdfast.debug.types import DetectionContext
    from holdfast.errors import DebugError

    debugger = MLSystemsDebugger(plugins=False, thresholds=thresholds)
    runs: list[LabelledRun] = []
    for label in load_labels(labels):
        logs = debugger.read(str(label.path))
        contexts = [DetectionContext(config=log.config, events=log.events) for log in logs]
        runs.extend(LabelledRun(label, log.signals, context) for log, context in zip(logs, contexts, strict=True))
    if not runs:
        raise DebugError("there is no labelled run", file=str(labels), hint="list at least one path with its failure")
    return runs


def _score(runs: list[LabelledRun], thresholds: dict[str, dict[str, float]]) -> Score:
    from holdfast.debug.attribution import AttributionEngine
    from holdfast.debug.attribution.labelled import score_runs
    from holdfast.debug.tuning import Tuning

    tuned = Tuning.of(thresholds)
    return score_runs(runs, tuned.detectors, AttributionEngine(rule=tuned.attribution))


def _read_feedback(path: Path) -> list[dict[str, Any]]:
    from holdfast.cli.feedback import read_feedback

    return read_feedback(path)


def _count(verdicts: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    """Return the number of true and false verdicts, and of misses, by failure."""
    counts: dict[str, dict[str, int]] = {}
    for entry in verdicts:
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
        print_json({"scores": shown, **body})
        return
    names = list(scores)
    if names:
        _print_scores(scores, names)
    for detector, options in body.get("thresholds", {}).items():
        typer.echo(f"threshold  {detector}: " + ", ".join(f"{name} = {value:g}" for name, value in options.items()))
    if body:
        about, errors = body["about"], body["about"]["calibration_error"]
        for failure, row in about["feedback"].items():
            typer.echo(f"verdicts   {failure}: {row['true']} true, {row['false']} false, {row['missed']} missed")
        for source, row in about["sources"].items():
            typer.echo(f"calibration error, {source}: findings {row['findings']:.3f}, causes {row['causes']:.3f}")
        title = f"calibration error of {about['claims']} findings"
        typer.echo(f"{title}: {errors['before']:.3f} before, {errors['after']:.3f} after")


def _print_scores(scores: dict[str, Score], names: list[str]) -> None:
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
