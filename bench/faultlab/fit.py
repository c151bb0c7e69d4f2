"""Fits what ships as numbers, on tuning halves only: the calibration tables and the learned ranker.

The confidences of findings come from tuning halves and from public logs nobody made for this project; on the lab alone
findings are right so often that the table would promise too much elsewhere. Those of causes come from tuning halves
alone, as they were logged and with most of it taken away: public logs, which seldom say why a run failed, check them.
The ranker's come from predicting each model family with weights fitted on the other. Everything it reads is made by
``python -m bench.faultlab generate`` with the arguments of :data:`TUNING`; what is missing is said before anything is
fitted.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from bench.faultlab.foreign import foreign_runs
from bench.faultlab.generate import default_folder
from bench.faultlab.score import Case, load_cases

from holdfast.debug.attribution import AttributionEngine, Calibration, fit_table, observe, tell_stories
from holdfast.debug.attribution.labelled import Label, LabelledRun, look, score_runs
from holdfast.debug.attribution.ranker import feature_names, features_of
from holdfast.debug.detectors import default_detectors

__all__ = ["TUNING", "fit", "tuning_folders"]

SHIPPED = Path("src/holdfast/debug/attribution")
TUNING = {0: 220, 1: 120, 4: 220}
"""Draws whose tuning halves are read, and their runs: ``--draw 0``, ``--draw 1 --half tune --limit 60``, and ``--draw 4
--half tune``. Their reporting halves are never looked at, but for the published one's."""


BARE = (("loss",), ("loss", "lr"), ("loss", "eval_loss", "metric"))
"""What is left of the runs that the table for logs without witnesses is fitted on: what most public logs hold."""


def tuning_folders() -> list[Path]:
    """Where the tuning halves are cached.

    Raises:
        SystemExit: a draw is not generated, or not whole.
    """
    for draw, runs in TUNING.items():
        found = len(list(default_folder(draw).glob("tune-*/label.json")))
        if found < runs:
            limit = f" --limit {runs // 2}" if draw == 1 else ""
            command = f"python -m bench.faultlab generate --draw {draw} --half tune{limit}"
            raise SystemExit(f"draw {draw} has {found} of {runs} tuning runs: run `{command}` first")
    return [default_folder(draw) for draw in TUNING]


def fit(folders: Sequence[Path], *, foreign: Sequence[Path] = (), target: Path = SHIPPED) -> dict[str, float]:
    """Write ``calibration.json`` and ``ranker.json``; returns a few figures about the fit.

    Args:
        folders: runs to fit on.
        foreign: folders with the public logs of ``bench/foreign_labels.jsonl``, to fit the confidences on too.
        target: where to write.
    """
    cases = [case for folder in folders for case in load_cases(folder, "tune")]
    stories = [(case, story) for case in cases if (story := _story(case)) is not None]
    matrix = np.stack([features_of(feature_names(), story[0], story[1]) for _, story in stories])
    truth = np.asarray([case.label["cause"] or "none" for case, _ in stories])
    family = np.asarray([case.spec["family"] for case, _ in stories])
    faulty = truth != "none"
    weights = _regress(matrix[faulty], truth[faulty])
    ranker = {"version": 1, "features": list(feature_names()), **weights}
    (target / "ranker.json").write_text(json.dumps(ranker) + "\n")

    learned = fit_table(*_cross_family(matrix[faulty], truth[faulty], family[faulty]))
    runs = foreign_runs(foreign)
    tables = replace(_calibrated(cases, runs), learned=learned)
    (target / "calibration.json").write_text(json.dumps(tables.as_json()) + "\n")
    return {"runs": float(len(cases)), "stories": float(len(stories)), "foreign_runs": float(len(runs))}


def _calibrated(cases: Sequence[Case], foreign: Sequence[LabelledRun]) -> Calibration:
    engine = AttributionEngine(calibration=Calibration())
    score = score_runs(foreign, default_detectors(), engine)
    claims, hits = [], []
    found, right = [], []
    for case in cases:
        findings = engine.explain(case.results, case.log.signals, case.context)
        if not findings:
            continue
        found.append(findings[0].detection.confidence)
        right.append(findings[0].detection.failure.name in case.label["accepted"])
        if case.label["cause"]:
            # The first cause alone: what the others are given is what it leaves. Fitted on the runners-up as well, the
            # table is off by 0.045 on the very runs it was fitted on, and by 0.017 without them.
            for cause in findings[0].causes[:1]:
                claims.append(cause.confidence)
                hits.append(cause.cause == case.label["cause"])
    found += [confidence for confidence, _ in score.claims]
    right += [hit for _, hit in score.claims]
    bare = [
        claim for case in cases if case.label["cause"] for kinds in BARE if (claim := _bare_claim(case, kinds, engine))
    ]
    return Calibration(
        findings=fit_table(found, right),
        causes=fit_table(claims, hits),
        unwitnessed=fit_table([sure for sure, _ in bare], [hit for _, hit in bare]),
    )


def _bare_claim(case: Case, kinds: tuple[str, ...], engine: AttributionEngine) -> tuple[float, bool] | None:
    """The first cause given for a run of which only these series were logged, and whether it is right."""
    signals = tuple(signal for signal in case.log.signals if signal.kind in kinds and signal.layer is None)
    run = LabelledRun(Label(Path(case.name), case.label["failure"]), signals, case.context)
    findings = engine.explain([look(detector, run) for detector in default_detectors()], signals, case.context)
    if not findings or not findings[0].causes or findings[0].detection.failure.name not in case.label["accepted"]:
        return None
    return findings[0].causes[0].confidence, findings[0].causes[0].cause == case.label["cause"]


def _story(case: Case) -> tuple[list[str], dict[str, float]] | None:
    detections = [detection for result in case.results for detection in result.detections]
    stories = tell_stories(detections, case.log.signals)
    if not stories:
        return None
    seen = observe(stories[0], case.log.signals, case.context)
    return [detection.failure.name for detection in stories[0]], seen


def _regress(matrix: np.ndarray, truth: np.ndarray) -> dict[str, list[Any]]:
    from sklearn.linear_model import LogisticRegression

    model = LogisticRegression(C=1.0, max_iter=2000).fit(matrix, truth)
    return {
        "causes": [str(cause) for cause in model.classes_],
        "weights": [[round(float(w), 5) for w in row] for row in model.coef_],
        "bias": [round(float(b), 5) for b in model.intercept_],
    }


def _cross_family(matrix: np.ndarray, truth: np.ndarray, family: np.ndarray) -> tuple[list[float], list[bool]]:
    scores: list[float] = []
    hits: list[bool] = []
    for held_out in sorted(set(family.tolist())):
        inside = family != held_out
        weights = _regress(matrix[inside], truth[inside])
        causes = weights["causes"]
        raw = matrix[~inside] @ np.asarray(weights["weights"]).T + np.asarray(weights["bias"])
        shares = np.exp(raw - raw.max(axis=1, keepdims=True))
        shares /= shares.sum(axis=1, keepdims=True)
        for row, true in zip(shares, truth[~inside], strict=True):
            for place in np.argsort(-row)[:3]:
                scores.append(float(row[place]))
                hits.append(causes[place] == true)
    return scores, hits
