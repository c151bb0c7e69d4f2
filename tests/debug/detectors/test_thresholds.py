"""Every number a detector decides by has a name, a reason and a way to change it."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.debug.detectors.series import falling_loss, signal

from holdfast.debug import MLSystemsDebugger
from holdfast.debug.attribution import AttributionEngine
from holdfast.debug.base import BaseDetector
from holdfast.debug.detectors import default_detectors, detector_types, known_failures, thresholds_of
from holdfast.debug.detectors import steps as steps_package
from holdfast.debug.detectors.steps.baseline import ShapeRule
from holdfast.debug.detectors.steps.select import SelectRule
from holdfast.debug.ingestion.limits import Limits
from holdfast.debug.ingestion.reading_rules import EndingRule, ListRule, RestartRule, TableRule, TextRule
from holdfast.debug.thresholds import SharedRule
from holdfast.debug.tuning import Tuning
from holdfast.debug.types import (
    Detection,
    DetectionContext,
    DetectionResult,
    Evidence,
    Failure,
    Severity,
    Signal,
    Verdict,
)
from holdfast.errors import ConfigError, UnreadableLogError

EVERY = default_detectors()
# Halves, thirds, quarters and fifths of a series, percent, and what arithmetic needs; everything else is a threshold.
STRUCTURAL = frozenset((0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 100, 0.5, 0.25, 0.1, 0.9, 1e6))


def rules_of(rule: Any) -> Iterator[Any]:
    yield rule
    for field in fields(rule):
        value = getattr(rule, field.name)
        if is_dataclass(value):
            yield from rules_of(value)


def documented_fields(kind: type) -> set[str]:
    body = ast.parse(inspect.getsource(kind)).body[0]
    assert isinstance(body, ast.ClassDef)
    documented = set()
    for line, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(after, ast.Expr):
            documented.add(line.target.id)
    return documented


@pytest.mark.parametrize("owner", Tuning().rules.values(), ids=lambda owner: type(owner).__name__)
def test_every_threshold_says_what_it_is(owner: Any) -> None:
    for rule in rules_of(owner):
        undocumented = {field.name for field in fields(rule) if not is_dataclass(getattr(rule, field.name))}
        undocumented -= documented_fields(type(rule))
        assert undocumented <= {"confidence"}, f"{type(rule).__name__}: {sorted(undocumented)}"


def modules() -> list[Path]:
    package: ModuleType = steps_package
    folder = Path(str(package.__file__)).parent
    return sorted(
        [*folder.glob("*.py"), *folder.parent.glob("*.py"), *(folder.parents[1] / "attribution").glob("*observ*.py")]
    )


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.stem)
def test_no_unnamed_number_decides(path: Path) -> None:
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    numbers = {
        (node.lineno, node.value)
        for function in functions
        for line in function.body
        for node in ast.walk(line)
        if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)) and not isinstance(node.value, bool)
    }
    assert sorted(found for found in numbers if found[1] not in STRUCTURAL) == []


# Properties of a normal distribution, guards of arithmetic, words for tenths and fifths, and the weights of reports.
NOT_DECIDING = frozenset(
    (
        *("MEDIAN_ERROR", "MAD_TO_DEVIATION", "SAMPLE", "TENTH", "FIFTHS"),
        *("MAX_RATIO", "MAX_EXPONENT", "NEARLY_ONE", "TINY_TIME", "MAX_CONFIDENCE", "FALSE_ALARM"),
    )
)


def test_no_constant_of_a_module_decides_beyond_the_reach_of_thresholds() -> None:
    folder = Path(str(steps_package.__file__)).parents[1]
    found = {
        target.id
        for path in [*folder.rglob("*.py"), *(folder.parent / "attribution").glob("*.py"), folder.parent / "compare.py"]
        for line in ast.parse(path.read_text()).body
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        for target in line.targets
        if isinstance(target, ast.Name) and isinstance(line.value.value, (int, float))
    }
    assert found == NOT_DECIDING


def test_what_all_rules_share_is_changed_in_all_of_them_at_once() -> None:
    changed = Tuning.of({"select": {"beginning": 0.7}, "shape": {"signed_share": 0.3}})
    shared = [rule for owner in changed.rules.values() for rule in rules_of(owner) if isinstance(rule, SharedRule)]
    assert {rule.beginning for rule in shared if isinstance(rule, SelectRule)} == {0.7}
    assert {rule.signed_share for rule in shared if isinstance(rule, ShapeRule)} == {0.3}
    assert len(shared) > 20


def test_what_a_beginning_is_decides_whether_a_flat_loss_never_fell() -> None:
    values = 1.7 + 1e-3 * np.random.default_rng(0).standard_normal(300)
    flat = signal("loss", values, steps=np.arange(300.0) + 200.0)
    verdicts = [
        MLSystemsDebugger(plugins=False, thresholds={"select": {"beginning": share}}).debug([flat]).verdict
        for share in (0.2, 0.5)
    ]
    assert verdicts[0] is not Verdict.UNHEALTHY
    assert verdicts[1] is Verdict.UNHEALTHY


@pytest.mark.parametrize("detector", EVERY, ids=lambda detector: detector.name)
def test_every_threshold_can_be_set_by_its_name(detector: BaseDetector) -> None:
    for option, value in thresholds_of(detector).items():
        (changed,) = (d for d in default_detectors({detector.name: {option: value * 2 + 1}}) if d.name == detector.name)
        assert thresholds_of(changed)[option] == value * 2 + 1


def test_a_bare_name_means_the_first_threshold_of_that_name() -> None:
    (spike,) = (d for d in default_detectors({"spike": {"minimum_noises": 12}}) if d.name == "spike")
    assert thresholds_of(spike)["burst.minimum_noises"] == 12
    assert thresholds_of(spike)["rise.minimum_noises"] == 6


def test_detectors_and_failures_are_found_without_a_list() -> None:
    assert {"crash", "policy_collapse", "nan"} <= set(detector_types())
    assert [failure.name for failure in known_failures()] == list(detector_types())
    assert all(failure.title and failure.advice for failure in known_failures())


@dataclass(frozen=True, slots=True)
class Boredom(BaseDetector):
    """A user's detector with a failure of its own."""

    failure: ClassVar[Failure] = Failure("boredom", title="Nothing happens", rank=500, advice="Do something.")

    @property
    def name(self) -> str:
        return "boredom"

    def get_required_signals(self) -> frozenset[str]:
        return frozenset(("loss",))

    def detect(self, signals: Sequence[Signal], context: DetectionContext) -> DetectionResult:
        seen = Evidence(signals[0].name, "is boring")
        return DetectionResult(self.name, (Detection(self.failure, Severity.WARNING, 0.9, 1.0, 2.0, (seen,)),))


def test_a_detector_of_the_users_own_names_its_own_failure_in_every_report() -> None:
    from holdfast.debug import Reporter

    debugger = MLSystemsDebugger(plugins=False)
    debugger.add_detector(Boredom())
    report = debugger.debug([signal("loss", falling_loss(200))])
    for form in ("text", "json", "markdown", "html", "junit"):
        assert "oredom" in Reporter().render(report, form) or "Nothing happens" in Reporter().render(report, form)


TUNING = Tuning()


@pytest.mark.parametrize("name", TUNING.rules)
def test_every_threshold_of_everything_that_decides_can_be_changed_by_name(name: str) -> None:
    for option, value in thresholds_of(TUNING.rules[name]).items():
        changed = Tuning.of({name: {option: value * 2 + 1}})
        assert changed.thresholds()[name][option] == value * 2 + 1
        rest = {key: number for key, number in changed.thresholds()[name].items() if key != option}
        assert rest == {key: number for key, number in TUNING.thresholds()[name].items() if key != option}


def test_thresholds_of_attribution_decide_which_cause_comes_first() -> None:
    loss = np.concatenate((falling_loss(150), 8.0 + 0.05 * np.random.default_rng(0).standard_normal(150)))
    signals = [signal("loss", loss), signal("lr", np.full(300, 0.02))]
    usual = MLSystemsDebugger(plugins=False).debug(signals)
    large = MLSystemsDebugger(plugins=False, thresholds={"attribution": {"observer.rate.large": -4.0}}).debug(signals)
    rates = [
        next(cause.confidence for cause in report.runs[0].findings[0].causes if cause.cause == "learning_rate_too_high")
        for report in (usual, large)
    ]
    assert rates[1] > rates[0]


def test_thresholds_of_the_verdict_decide_what_healthy_takes() -> None:
    rows = [{"step": n, "loss": 3.0 / (n + 1)} for n in range(12)]
    assert MLSystemsDebugger(plugins=False).debug(rows).verdict is Verdict.HEALTHY
    strict = MLSystemsDebugger(plugins=False, thresholds={"verdict": {"minimum_points_improving": 20}})
    assert strict.debug(rows).verdict is Verdict.UNKNOWN


def test_an_engine_of_ones_own_takes_no_thresholds_of_attribution() -> None:
    with pytest.raises(ConfigError, match="its own thresholds"):
        MLSystemsDebugger(attribution=AttributionEngine(), thresholds={"attribution": {"related": 0.1}}, plugins=False)


@pytest.mark.parametrize(
    "rule",
    [Limits(), RestartRule(), EndingRule(), TextRule(), ListRule(), TableRule()],
    ids=lambda rule: type(rule).__name__,
)
def test_every_threshold_of_reading_has_a_reason(rule: Any) -> None:
    assert {field.name for field in fields(rule)} == documented_fields(type(rule))


def test_the_rules_of_reading_are_reached_by_name(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    begin = "training begins now\n"
    counts = (40, 25, 60)
    path.write_text("".join(begin + "".join(f"loss: {2 / (n + 1):.4f}\n" for n in range(own)) for own in counts))
    thresholds = {"reading": {"restarts.opening_characters": 100}}
    assert len(MLSystemsDebugger(plugins=False).read(path)) == 3
    assert len(MLSystemsDebugger(plugins=False, thresholds=thresholds).read(path)) == 1
    assert Tuning().thresholds()["reading"]["restarts.opening_characters"] == 8
    with pytest.raises(ConfigError):
        MLSystemsDebugger(plugins=False, thresholds=thresholds, limits=Limits())


def test_which_lists_and_columns_are_series_is_reached_by_name(tmp_path: Path) -> None:
    lists, columns = tmp_path / "lists.txt", tmp_path / "loss.csv"
    lists.write_text("train_loss: [2.3, 2.1, 1.9, 1.7, 1.5, 1.3]\n")
    columns.write_text("step,rate_1,rate_2\n" + "".join(f"{n},{2.0 / n},{3.0 / n}\n" for n in range(1, 7)))
    (read,) = MLSystemsDebugger(plugins=False).read(lists)
    assert [signal.kind for signal in read.signals] == ["loss"]
    strict = {"reading": {"lists.numbers": 7, "lists.unnamed_points": 7}}
    with pytest.raises(UnreadableLogError):
        MLSystemsDebugger(plugins=False, thresholds=strict).read(lists)
    for thresholds, kinds in (({}, ["loss", "loss"]), (strict, [None, None])):
        (read,) = MLSystemsDebugger(plugins=False, thresholds=thresholds).read(columns)
        assert [signal.kind for signal in read.signals] == kinds
