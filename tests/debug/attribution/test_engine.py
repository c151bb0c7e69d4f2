"""From detections to causes: one story, one finding; causes ranked by what was observed; confidences that add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.debug.detectors.series import falling_loss, signal

from holdfast.debug.attribution import OBSERVATIONS, AttributionEngine, Calibration, LearnedRanker, load_rules, observe
from holdfast.debug.attribution.ranker import feature_names
from holdfast.debug.detectors import default_detectors, known_failures
from holdfast.debug.types import DetectionContext, Failure, Finding, Severity, Signal
from holdfast.errors import ConfigError

CAUSES = {rule.cause for rule in load_rules()}


def explain(*signals: Signal, method: str = "rules", **context: Any) -> tuple[Finding, ...]:
    known = DetectionContext(**context)
    results = [
        detector.detect([s for s in signals if s.kind in detector.get_required_signals()], known)
        for detector in default_detectors()
    ]
    return AttributionEngine(method=method).explain(results, signals, known)


def exploding_run() -> list[Signal]:
    """The learning rate is raised, the gradients explode, the loss turns NaN."""
    loss, norm, rate = falling_loss(400), np.full(400, 0.4), np.full(400, 1e-3)
    rate[280:] = 0.5
    norm[290:] = np.exp(np.linspace(0, 12, 110))
    loss[295:350] = np.exp(np.linspace(1, 9, 55))
    loss[350:] = np.nan
    return [signal("loss", loss), signal("grad_norm", norm), signal("lr", rate)]


def test_every_cause_of_the_catalogue_has_a_rule_and_a_remedy() -> None:
    assert all(rule.remediation and rule.priors for rule in load_rules())


def test_every_failure_has_at_least_one_possible_cause() -> None:
    explained = {failure for rule in load_rules() for failure in rule.priors}
    assert explained == {failure.name for failure in known_failures()}


def test_a_raised_rate_an_explosion_and_nan_are_one_finding() -> None:
    (finding,) = explain(*exploding_run())
    assert finding.detection.failure == Failure.NAN
    assert finding.detection.severity is Severity.CRITICAL
    assert Failure.EXPLOSION in {related.failure for related in finding.related}
    assert finding.causes[0].cause == "learning_rate_too_high"


def test_two_troubles_far_apart_are_two_findings() -> None:
    loss = falling_loss(2000)
    loss[300:310] += 4.0
    loss[1900:] = np.nan
    found = [finding.detection.failure for finding in explain(signal("loss", loss))]
    assert found == [Failure.NAN, Failure.SPIKE]


def test_the_worst_finding_comes_first() -> None:
    loss = falling_loss(600)
    loss[500:] = np.nan
    wait = np.full(600, 0.8)
    found = explain(signal("loss", loss), signal("data_time", wait), signal("step_time", np.ones(600)))
    assert [finding.detection.failure for finding in found] == [Failure.NAN, Failure.DATA_STARVATION]


def test_a_healthy_run_needs_no_explanation() -> None:
    assert explain(signal("loss", falling_loss())) == ()


def test_a_short_bad_stretch_with_abrupt_edges_points_at_the_data() -> None:
    loss = falling_loss(600)
    loss[400:415] += 4.0
    (finding,) = explain(signal("loss", loss), signal("lr", np.full(600, 1e-3)))
    assert finding.causes[0].cause == "bad_data_window"


def test_gradients_that_add_up_smoothly_point_at_zero_grad() -> None:
    generator = np.random.default_rng(0)
    loss = np.concatenate((falling_loss(80, end=3.2), np.linspace(3.2, 4.5, 320))) + 0.05 * generator.standard_normal(
        400
    )
    norm = np.linspace(0.5, 60, 400)
    (finding,) = explain(signal("loss", loss), signal("grad_norm", norm), signal("lr", np.full(400, 1e-3)))
    assert finding.causes[0].cause == "missing_zero_grad"


def test_parameters_that_do_not_move_point_at_clipping() -> None:
    loss = np.log(10) + 0.02 * np.random.default_rng(0).standard_normal(300)
    (finding,) = explain(
        signal("loss", loss),
        signal("grad_norm", 1 + 0.1 * loss),
        signal("lr", np.full(300, 1e-3)),
        signal("update_norm", np.zeros(300)),
        signal("weight_norm", np.full(300, 12.0)),
    )
    assert finding.causes[0].cause == "clipping_zero"


def test_a_tiny_rate_points_at_itself() -> None:
    loss = np.log(10) + 0.02 * np.random.default_rng(0).standard_normal(300)
    (finding,) = explain(signal("loss", loss), signal("grad_norm", 1 + 0.1 * loss), signal("lr", np.full(300, 1e-8)))
    assert finding.causes[0].cause == "learning_rate_too_low"


def test_evidence_for_and_against_is_given_in_words() -> None:
    (finding,) = explain(*exploding_run())
    words = set(OBSERVATIONS.values())
    assert finding.causes[0].evidence_for
    assert all(set(cause.evidence_for) | set(cause.evidence_against) <= words for cause in finding.causes)


@pytest.mark.parametrize("method", ["rules", "learned"])
@given(seed=st.integers(0, 3000), at=st.integers(100, 350), height=st.floats(1.0, 50.0), nan=st.booleans())
def test_confidences_lie_between_nothing_and_certainty_and_fall(
    method: str, seed: int, at: int, height: float, nan: bool
) -> None:
    loss = falling_loss(400, seed=seed)
    loss[at:] += height
    if nan:
        loss[-20:] = np.nan
    for finding in explain(signal("loss", loss), method=method):
        shares = [cause.confidence for cause in finding.causes]
        assert all(0.0 <= share <= 1.0 for share in shares)
        assert sum(shares) <= 1.0 + 1e-9
        assert {cause.cause for cause in finding.causes} <= CAUSES


def test_both_ways_to_attribute_give_causes_that_can_explain_the_failure() -> None:
    possible = {rule.cause for rule in load_rules() if "nan" in rule.priors or "explosion" in rule.priors}
    for method in ("rules", "learned"):
        assert {cause.cause for cause in explain(*exploding_run(), method=method)[0].causes[:1]} <= possible


def test_an_unknown_way_to_attribute_is_refused() -> None:
    with pytest.raises(ConfigError, match="magic"):
        AttributionEngine(method="magic")


def test_rules_that_name_things_that_do_not_exist_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "rules.json"
    rule = {
        "cause": "c",
        "title": "t",
        "priors": {"nan": 0.0},
        "for": {"sunspots": 1.0},
        "against": {},
        "remediation": "r",
    }
    path.write_text(json.dumps({"causes": [rule]}))
    with pytest.raises(ConfigError, match="sunspots"):
        load_rules(path)


def test_the_ranker_is_plain_numbers_made_for_these_observations() -> None:
    ranker = LearnedRanker.load()
    assert ranker.weights.shape == (len(ranker.causes), len(ranker.features))
    assert set(ranker.features) <= set(feature_names())
    assert set(ranker.causes) <= CAUSES


def test_a_ranker_made_for_other_observations_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ranker.json"
    path.write_text(json.dumps({"causes": ["a"], "features": ["x"], "weights": [[1.0]], "bias": [0.0]}))
    with pytest.raises(ConfigError, match="different observations"):
        LearnedRanker.load(path)


def test_observations_are_shares_of_one() -> None:
    run = exploding_run()
    results = [
        d.detect([s for s in run if s.kind in d.get_required_signals()], DetectionContext())
        for d in default_detectors()
    ]
    seen = observe([detection for result in results for detection in result.detections], run, DetectionContext())
    assert set(seen) == set(OBSERVATIONS)
    assert all(0.0 <= share <= 1.0 for share in seen.values())


def test_the_shipped_calibration_never_says_less_for_more() -> None:
    table = Calibration.load()
    raw = np.linspace(0, 1, 50)
    for method in ("rules", "learned"):
        assert np.all(np.diff([table.cause(share, method=method) for share in raw]) >= 0)
    assert np.all(np.diff([table.finding(share) for share in raw]) >= 0)
