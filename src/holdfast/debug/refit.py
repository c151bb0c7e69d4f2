"""Refits thresholds and confidences on labelled runs, without letting them drift far.

Thresholds are searched one at a time over a few multiples of their current value; a change must lower the cost on the
labelled runs, and of equal ones the smallest change wins. Only the changed detector is run again; then come the
thresholds that all detectors share, for which all are run again. Those of attribution follow, if enough runs have a
known cause. Those of the verdict and of comparisons can only be set by hand: labels say nothing about *cannot tell*.
Finally, confidences are refitted with a calibration table.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.debug.attribution.calibration import Calibration, fit_table
from holdfast.debug.attribution.engine import AttributionEngine, AttributionRule
from holdfast.debug.attribution.labelled import LabelledRun, Score, cause_cost_of, cost_of, look, score_runs
from holdfast.debug.detectors.registry import detector_types
from holdfast.debug.thresholds import thresholds_of
from holdfast.debug.tuning import ATTRIBUTION, SELECT, SHAPE, Tuning, whole_names
from holdfast.debug.types import DetectionResult

__all__ = ["Refit", "refit"]

MULTIPLES = (0.7, 1.4, 0.5, 2.0)
"""The multiples of a threshold's current value that are tried, smaller changes first."""
MIN_CLAIMS = 20
"""Minimum number of claims to fit a table."""
MIN_GAIN = 1e-9
"""Minimum decrease of the cost: more than rounding."""

Thresholds = Mapping[str, Mapping[str, float]]
Looks = list[dict[str, DetectionResult]]


@dataclass(frozen=True, slots=True)
class Refit:
    """The result: thresholds, calibration, and the scores before and after."""

    thresholds: dict[str, dict[str, float]]
    calibration: Calibration
    before: Score
    after: Score


def refit(runs: Sequence[LabelledRun], *, start: Thresholds | None = None, search: bool = True) -> Refit:
    """Fit thresholds (unless disabled) and then the calibration.

    Args:
        runs: labelled runs; the more and the more varied, the better.
        start: thresholds to start from; by default the built-in ones.
        search: whether to search for better thresholds, or only calibrate.
    """
    chosen = whole_names(start or {})
    before = best = _score(runs, chosen)
    if search and (before.cost > 0 or before.cause_top1 < 1):
        looks: Looks = [{one.name: look(one, run) for one in Tuning.of(chosen).detectors} for run in runs]
        for name in _troubled(before):
            chosen, looks = _search(runs, name, chosen, looks)
        chosen, looks = _search_shared(runs, chosen, looks)
        chosen = _search_causes(runs, chosen, looks)
        best = _score(runs, chosen)
    calibration = Calibration.load()
    if len(best.claims) >= MIN_CLAIMS:
        calibration = replace(calibration, findings=_table(best.claims))
    if len(best.cause_claims) >= MIN_CLAIMS:
        calibration = replace(calibration, causes=_table(best.cause_claims), unwitnessed=None)
    return Refit(chosen, calibration, before, best)


def _search(
    runs: Sequence[LabelledRun], name: str, chosen: dict[str, dict[str, float]], looks: Looks
) -> tuple[dict[str, dict[str, float]], Looks]:
    """Try every threshold of one detector, with the results of the others unchanged."""
    cost = cost_of(runs, looks)
    for option, value in thresholds_of(detector_types()[name]()).items():
        present = chosen.get(name, {}).get(option, value)
        for multiple in MULTIPLES:
            trial = {**chosen, name: {**chosen.get(name, {}), option: _scaled(present, multiple)}}
            (detector,) = (one for one in Tuning.of(trial).detectors if one.name == name)
            seen: Looks = [{**others, name: look(detector, run)} for run, others in zip(runs, looks, strict=True)]
            found = cost_of(runs, seen)
            if found < cost - MIN_GAIN:
                cost, chosen, looks = found, trial, seen
    return chosen, looks


def _search_shared(
    runs: Sequence[LabelledRun], chosen: dict[str, dict[str, float]], looks: Looks
) -> tuple[dict[str, dict[str, float]], Looks]:
    """Try every threshold that all detectors share, if they are still wrong."""
    cost = cost_of(runs, looks)
    for name in (SELECT, SHAPE):
        for option, value in thresholds_of(Tuning().rules[name]).items():
            for multiple in MULTIPLES if cost > 0 else ():
                own = chosen.get(name, {})
                trial = {**chosen, name: {**own, option: _scaled(own.get(option, value), multiple)}}
                detectors = Tuning.of(trial).detectors
                seen: Looks = [{one.name: look(one, run) for one in detectors} for run in runs]
                found = cost_of(runs, seen)
                if found < cost - MIN_GAIN:
                    cost, chosen, looks = found, trial, seen
    return chosen, looks


def _search_causes(
    runs: Sequence[LabelledRun], chosen: dict[str, dict[str, float]], looks: Looks
) -> dict[str, dict[str, float]]:
    """Try every threshold of attribution on the runs with a known cause, with the detections unchanged."""
    known = [(run, seen) for run, seen in zip(runs, looks, strict=True) if run.label.cause is not None]
    if len(known) < MIN_CLAIMS:
        return chosen
    told, seen = [run for run, _ in known], [looks for _, looks in known]
    cost = cause_cost_of(told, seen, _engine(chosen))
    for option, value in thresholds_of(AttributionRule()).items():
        if cost == 0:
            break
        present = chosen.get(ATTRIBUTION, {}).get(option, value)
        for multiple in MULTIPLES:
            own = {**chosen.get(ATTRIBUTION, {}), option: _scaled(present, multiple)}
            trial = {**chosen, ATTRIBUTION: own}
            found = cause_cost_of(told, seen, _engine(trial))
            if found < cost - MIN_GAIN:
                cost, chosen = found, trial
    return chosen


def _engine(thresholds: Thresholds) -> AttributionEngine:
    return AttributionEngine(calibration=Calibration(), rule=Tuning.of(thresholds).attribution)


def _score(runs: Sequence[LabelledRun], thresholds: Thresholds) -> Score:
    return score_runs(runs, Tuning.of(thresholds).detectors, _engine(thresholds))


def _table(claims: Sequence[tuple[float, bool]]) -> tuple[tuple[float, float], ...]:
    return fit_table([claim for claim, _ in claims], [hit for _, hit in claims])


def _troubled(score: Score) -> list[str]:
    """Return the detectors that were wrong, worst first; there is no reason to change the others."""
    wrong = {name: tally.false_positives * 3 + tally.false_negatives for name, tally in score.tallies.items()}
    known = detector_types()
    return sorted((name for name, count in wrong.items() if count and name in known), key=lambda name: -wrong[name])


def _scaled(value: float, multiple: float) -> float:
    return max(1, round(value * multiple)) if isinstance(value, int) else value * multiple
